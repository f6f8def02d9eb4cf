#include "witan/kernels/common/blocks.h"

namespace witan::kernels {

void swap_blocks(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, swap_blocks, (Cost{0, bytes_of(x, y)}), y, x);
}

void take_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  WITAN_LAUNCH(stream, take_part, (Cost{0, 2 * bytes_of(y)}), y, x, part);
}

void place_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  WITAN_LAUNCH(stream, place_part, (Cost{0, bytes_of(x, y)}), y, x, part);
}

void copy_columns(Stream& stream, const Tensor& y, const Tensor& x, const Columns& columns) {
  const double copied = static_cast<double>(x.size(0) * columns.count * size_of(x.dtype()));
  WITAN_LAUNCH(stream, copy_columns, (Cost{0, 2 * copied}), y, x, columns);
}

// Counted as nothing: the rows are few as a rule, and how many only the device knows.
void zero_last_rows(Stream& stream, const Tensor& y, const Tensor& counts) {
  WITAN_LAUNCH(stream, zero_last_rows, (Cost{0, bytes_of(counts)}), y, counts);
}

}  // namespace witan::kernels
