#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/table.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kSummingThreads = 256, kSummingWarps = kSummingThreads / 32;

__device__ __forceinline__ int64_t warp_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * kSummingWarps + threadIdx.x / 32;
}
unsigned blocks_of_warps(int64_t warps) {
  return static_cast<unsigned>((warps + kSummingWarps - 1) / kSummingWarps);
}

// Stores the sums over the warp's lanes; called by the whole warp.
__device__ __forceinline__ void put_sums(double2* to, double squares, double zeros) {
  squares = warp_sum(squares);
  zeros = warp_sum(zeros);
  if (threadIdx.x % 32 == 0) *to = make_double2(squares, zeros);
}

template <class T>
struct SummedStack {
  const T* x;
  int64_t expert_stride, row_stride;
  int rows, columns, across, each;  // blocks across a matrix, and in all of it
};

// One warp per block.
template <class T>
__global__ void __launch_bounds__(kSummingThreads)
    block_square_sums_kernel(double2* sums, SummedStack<T> of, int64_t blocks) {
  const int64_t block = warp_of_grid();
  if (block >= blocks) return;
  const int in_matrix = static_cast<int>(block % of.each);
  const int first_row = in_matrix / of.across * static_cast<int>(kSummedRows);
  const int first_column = in_matrix % of.across * static_cast<int>(kSummedColumns);
  const T* const matrix = of.x + block / of.each * of.expert_stride;
  double squares = 0;
  int zeros = 0;
  for (int i = 0; i < kSummedRows && first_row + i < of.rows; ++i)
#pragma unroll
    for (int at = 0; at < kSummedColumns; at += 32) {
      const int column = first_column + at + static_cast<int>(threadIdx.x % 32);
      if (column >= of.columns) continue;
      const auto value = convert<double>(matrix[(first_row + i) * of.row_stride + column]);
      squares += value * value;
      zeros += value == 0;
    }
  put_sums(sums + block, squares, zeros);
}

// One warp per row of the sums.
__global__ void __launch_bounds__(kSummingThreads)
    add_blocks_kernel(double2* sums, const AddBlocksRow* table, int stacks, int64_t rows) {
  const int64_t chunk = warp_of_grid();
  if (chunk >= rows) return;
  const AddBlocksRow row = row_of_chunk(table, stacks, chunk);
  const int64_t of_stack = chunk - row.first_chunk, run = of_stack % row.rows;
  const auto* blocks = reinterpret_cast<const double2*>(row.blocks) + of_stack / row.rows * row.each;
  double squares = 0, zeros = 0;
  const int64_t end = row.each * (run + 1) / row.rows;
  for (int64_t b = row.each * run / row.rows + threadIdx.x % 32; b < end; b += 32) {
    const double2 block = blocks[b];
    squares += block.x;
    zeros += block.y;
  }
  put_sums(sums + row.first_row + of_stack, squares, zeros);
}

}  // namespace

void block_square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  const int64_t blocks = sums.size(0) * sums.size(1);
  if (blocks == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    const SummedStack<T> of{ptr<T>(x),
                            x.stride(0),
                            x.stride(1),
                            static_cast<int>(x.size(1)),
                            static_cast<int>(x.size(2)),
                            static_cast<int>(SummedBlocks::of(x.size(1), x.size(2)).across),
                            static_cast<int>(sums.size(1))};
    block_square_sums_kernel<<<blocks_of_warps(blocks), kSummingThreads, 0, native(stream)>>>(ptr<double2>(sums), of,
                                                                                              blocks);
  });
}

void add_blocks_all(Stream& stream, const Tensor& sums, std::span<const AddBlocksItem> items, const Tensor& table) {
  assert(table.elements() == static_cast<int64_t>(items.size()) * kAddBlocksColumns);
  int64_t rows = 0;
  for (const auto& [blocks, each, first_row] : items) rows += blocks.size(0) * each;
  if (rows == 0) return;
  add_blocks_kernel<<<blocks_of_warps(rows), kSummingThreads, 0, native(stream)>>>(
      ptr<double2>(sums), reinterpret_cast<const AddBlocksRow*>(table.raw()), static_cast<int>(items.size()), rows);
}

}  // namespace witan::kernels::cuda
