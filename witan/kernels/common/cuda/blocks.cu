#include "witan/kernels/common/blocks.h"
#include "witan/kernels/common/cuda/copy.cuh"

namespace witan::kernels::cuda {
namespace {

// Function objects that map a unit of y to its source in x; `row` units make a block of I elements.
template <class Index>
struct Swapped {  // y [N, A, I], x [A, N, I]
  Index row, A, N;
  __device__ int64_t operator()(Index i) const {
    const Index block = i / row, n = block / A, a = block - n * A;
    return (static_cast<int64_t>(a) * N + n) * row + (i - block * row);
  }
};
template <class Index>
struct Taken {  // y [A, I], x [A, N, I]
  Index row, N, part;
  __device__ int64_t operator()(Index i) const {
    const Index a = i / row;
    return (static_cast<int64_t>(a) * N + part) * row + (i - a * row);
  }
};
template <class Index>
struct Placed {  // y [A, N, I], x [A, I]
  Index row, N, part;
  __device__ int64_t operator()(Index i) const {
    const Index block = i / row, a = block / N;
    if (block - a * N != part) return -1;
    return static_cast<int64_t>(a) * row + (i - block * row);
  }
};

constexpr int kThreads = 256;

// Every thread block sums the counts by itself.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    zero_last_rows_kernel(Unit* y, const int64_t* counts, int64_t groups, int64_t units, int64_t row) {
  __shared__ int64_t shared[kThreads / 32];
  int64_t kept = 0;
  for (int64_t i = threadIdx.x; i < groups; i += kThreads) kept += counts[i];
  kept = block_sum(kept, shared);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = kept * row + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < units; i += stride)
    y[i] = {};
}

}  // namespace

void swap_blocks(Stream& stream, const Tensor& y, const Tensor& x) {
  assert(y.shape() == (Shape{x.size(1), x.size(0), x.size(2)}) && y.dtype() == x.dtype());
  copy_rows(stream, y, x, x.size(2) * size_of(x.dtype()), [&]<class Index>(int64_t row) {
    return Swapped<Index>{static_cast<Index>(row), static_cast<Index>(x.size(0)), static_cast<Index>(x.size(1))};
  });
}

void take_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  assert(y.shape() == (Shape{x.size(0), x.size(2)}) && y.dtype() == x.dtype() && part >= 0 && part < x.size(1));
  copy_rows(stream, y, x, x.size(2) * size_of(x.dtype()), [&]<class Index>(int64_t row) {
    return Taken<Index>{static_cast<Index>(row), static_cast<Index>(x.size(1)), static_cast<Index>(part)};
  });
}

void place_part(Stream& stream, const Tensor& y, const Tensor& x, int64_t part) {
  assert(x.shape() == (Shape{y.size(0), y.size(2)}) && y.dtype() == x.dtype() && part >= 0 && part < y.size(1));
  copy_rows(stream, y, x, y.size(2) * size_of(y.dtype()), [&]<class Index>(int64_t row) {
    return Placed<Index>{static_cast<Index>(row), static_cast<Index>(y.size(1)), static_cast<Index>(part)};
  });
}

void copy_columns(Stream& stream, const Tensor& y, const Tensor& x, const Columns& columns) {
  const int64_t element = size_of(x.dtype());
  assert(y.dtype() == x.dtype() && y.size(0) == x.size(0) && columns.count >= 0);
  assert(columns.y_first >= 0 && columns.y_first + columns.count <= y.size(1));
  assert(columns.x_first >= 0 && columns.x_first + columns.count <= x.size(1));
  if (x.size(0) == 0 || columns.count == 0) return;
  witan::cuda::check(cudaMemcpy2DAsync(y.raw() + columns.y_first * element, static_cast<size_t>(y.size(1) * element),
                                       x.raw() + columns.x_first * element, static_cast<size_t>(x.size(1) * element),
                                       static_cast<size_t>(columns.count * element), static_cast<size_t>(x.size(0)),
                                       cudaMemcpyDeviceToDevice, native(stream)),
                     "copying columns");
}

void zero_last_rows(Stream& stream, const Tensor& y, const Tensor& counts) {
  if (y.bytes() == 0) return;
  with_copy_unit(y, y, y.size(1) * size_of(y.dtype()), [&]<class Unit>(int64_t row) {
    const int64_t units = y.size(0) * row;
    const unsigned blocks = blocks_for(stream, (units + kThreads - 1) / kThreads);
    zero_last_rows_kernel<<<blocks, kThreads, 0, native(stream)>>>(ptr<Unit>(y), ptr<const int64_t>(counts),
                                                                   counts.elements(), units, row);
  });
}

}  // namespace witan::kernels::cuda
