#include <array>
#include <bit>

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/common/device_table.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

void block_square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  assert(sums.shape() == block_sums_shape(x.shape()) && sums.dtype() == DType::f64 && x.stride(2) == 1);
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(x, sums)};
  WITAN_LAUNCH(stream, block_square_sums, cost, sums, x);
}

std::vector<int64_t> add_blocks_table(std::span<const AddBlocksItem> items) {
  std::vector<int64_t> table;
  int64_t chunks = 0;
  for (const auto& [blocks, rows, first_row] : items) {
    const AddBlocksRow row{address_of(blocks), blocks.size(1), rows, chunks, first_row};
    const auto values = std::bit_cast<std::array<int64_t, kAddBlocksColumns>>(row);
    table.insert(table.end(), values.begin(), values.end());
    chunks += blocks.size(0) * rows;
  }
  return table;
}

void add_blocks_all(Stream& stream, const Tensor& sums, std::span<const AddBlocksItem> items, const Tensor& table) {
  Cost cost;
  for (const auto& [blocks, rows, first_row] : items)
    cost +=
        {static_cast<double>(blocks.elements()), bytes_of(blocks) + 16.0 * static_cast<double>(blocks.size(0) * rows)};
  WITAN_LAUNCH(stream, add_blocks_all, cost, sums, items, table);
}

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

// // Costs nothing but reading the counts: there are few rows as a rule, and only the device knows how many.
void zero_last_rows(Stream& stream, const Tensor& y, const Tensor& counts) {
  WITAN_LAUNCH(stream, zero_last_rows, (Cost{0, bytes_of(counts)}), y, counts);
}

void loss_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& targets) {
  WITAN_LAUNCH(stream, loss_weights, (Cost{static_cast<double>(mask.elements()), bytes_of(weights, mask)}), weights,
               mask, targets);
}

void collect(Stream& stream, const Tensor& out, const std::vector<Tensor>& sources) {
  WITAN_LAUNCH(stream, collect, (Cost{0, 2 * bytes_of(out)}), out, sources);
}

}  // namespace witan::kernels
