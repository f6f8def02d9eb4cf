#include <array>
#include <bit>

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/device_table.h"

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

}  // namespace witan::kernels
