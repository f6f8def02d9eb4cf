#include "witan/kernels/common/block_sums.h"

#include <algorithm>

#include "witan/base/threads/threads.h"

namespace witan::kernels::cpu {

// Runs one task per row of blocks.
void block_square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  const int64_t N = x.size(1), K = x.size(2);
  const SummedBlocks blocks = SummedBlocks::of(N, K);
  dispatch_floating(x.dtype(), [&]<class T>() {
    stream.pool().run(x.size(0) * blocks.down, [&](int64_t task) {
      const int64_t first = task % blocks.down * kSummedRows, last = std::min(first + kSummedRows, N);
      const T* in = x.data<T>() + task / blocks.down * x.stride(0);
      double* out = sums.data<double>() + 2 * task * blocks.across;
      std::fill_n(out, 2 * blocks.across, 0.0);
      for (int64_t n = first; n < last; ++n)
        for (int64_t column = 0; column < K; column += kSummedColumns) {
          const T* row = in + n * x.stride(1) + column;
          const int64_t count = std::min(kSummedColumns, K - column);
          double squares = 0;
          int64_t zeros = 0;
#pragma omp simd reduction(+ : squares, zeros)
          for (int64_t i = 0; i < count; ++i) {
            const auto value = static_cast<double>(row[i]);
            squares += value * value;
            zeros += value == 0;
          }
          double* block = out + 2 * (column / kSummedColumns);
          block[0] += squares;
          block[1] += static_cast<double>(zeros);
        }
    });
  });
}

void add_blocks_all(Stream&, const Tensor& sums, std::span<const AddBlocksItem> items, const Tensor&) {
  for (const auto& [blocks, rows, first_row] : items)
    for (int64_t i = 0; i < blocks.size(0) * rows; ++i) {
      const int64_t each = blocks.size(1), run = i % rows;
      const double* in = blocks.data<double>() + 2 * (i / rows * each);
      double squares = 0, zeros = 0;
      for (int64_t b = each * run / rows; b < each * (run + 1) / rows; ++b) {
        squares += in[2 * b];
        zeros += in[2 * b + 1];
      }
      double* out = sums.data<double>() + 2 * (first_row + i);
      out[0] = squares;
      out[1] = zeros;
    }
}

}  // namespace witan::kernels::cpu
