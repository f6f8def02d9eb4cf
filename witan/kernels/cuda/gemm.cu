#include "witan/kernels/cuda/common.cuh"
#include "witan/kernels/cuda/cublaslt.h"
#include "witan/kernels/cuda/plain_gemm.h"
#include "witan/kernels/gemm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// y[t, :] = row for every gridDim.y-th t. A thread holds kN elements of the row.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads) repeat_kernel(T* y, const T* row, int64_t rows, int64_t columns) {
  const int64_t n = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (n >= columns) return;
  const Pack<T, kN> pack = load_pack<T, kN>(row + n);
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) store_pack(y + t * columns + n, pack);
}

template <class T, int kN>
void repeat(Stream& stream, const Tensor& y, const Tensor& row) {
  const int64_t across = (y.size(1) + kThreads * kN - 1) / (kThreads * kN);
  const int64_t down = std::min<int64_t>(y.size(0), (blocks_for(stream, INT64_MAX) + across - 1) / across);
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  repeat_kernel<T, kN><<<grid, kThreads, 0, native(stream)>>>(ptr<T>(y), ptr<T>(row), y.size(0), y.size(1));
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b) {
  if (c.elements() == 0) return;
  const bool has_terms = a.elements() > 0;
  if (!has_terms && write == Write::accumulate) return;
  if (has_terms && gemm_by_cublaslt(stream, c, write, a, transpose_a, b, transpose_b)) return;
  plain_gemm(stream, c, write, a, transpose_a, b, transpose_b);
}

void repeat_row(Stream& stream, const Tensor& y, const Tensor& row) {
  if (y.elements() == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    if (packs<T>(y.raw(), y.size(1)) && packs<T>(row.raw(), y.size(1)))
      repeat<T, kPack<T>>(stream, y, row);
    else
      repeat<T, 1>(stream, y, row);
  });
}

}  // namespace witan::kernels::cuda
