#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// d = alpha d + beta c
template <class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(T* d, const T* c, int64_t elements, Acc<T> alpha, Acc<T> beta) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) {
    const Acc<T> product = alpha * convert<Acc<T>>(d[i]);
    d[i] = convert<T>(c ? product + beta * convert<Acc<T>>(c[i]) : product);
  }
}

// d += value I, for each matrix [m, m] of d.
template <class T>
__global__ void __launch_bounds__(kThreads) identity_kernel(T* d, int64_t rows, int64_t m, Acc<T> value) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; r < rows; r += stride)
    d[r * m + r % m] = convert<T>(convert<Acc<T>>(d[r * m + r % m]) + value);
}

// Used without cuBLASLt, or if it has no algorithm. Products are rounded before they are scaled.
void one_by_one(Stream& stream, const Tensor& d, const BatchedProduct& p) {
  for (int64_t i = 0; i < d.size(0); ++i)
    plain_gemm(stream, d.select(0, i), Write::overwrite, p.a.select(0, i), p.transpose_a, p.b.select(0, i),
               p.transpose_b);
  if (p.alpha == 1 && !p.c.defined()) return;
  dispatch_device(d.dtype(), [&]<class T>() {
    using A = Acc<T>;
    combine_kernel<T><<<blocks_for(stream, (d.elements() + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<T>(d), ptr<T>(p.c), d.elements(), static_cast<A>(p.alpha), static_cast<A>(p.beta));
  });
}

}  // namespace

void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& p) {
  if (d.elements() == 0) return;
  if (p.a.elements() == 0 || !batched_gemm_by_cublaslt(stream, d, p)) one_by_one(stream, d, p);
  if (p.identity == 0) return;
  const int64_t rows = d.size(0) * d.size(1);
  dispatch_device(d.dtype(), [&]<class T>() {
    identity_kernel<T><<<blocks_for(stream, (rows + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<T>(d), rows, d.size(1), static_cast<Acc<T>>(p.identity));
  });
}

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b) {
  if (c.elements() == 0) return;
  const bool has_terms = a.elements() > 0;
  if (!has_terms && write == Write::accumulate) return;
  if (few_rows_gemm(stream, c, write, a, transpose_a, b, transpose_b, {})) return;
  if (has_terms && gemm_by_cublaslt(stream, c, write, a, transpose_a, b, transpose_b)) return;
  plain_gemm(stream, c, write, a, transpose_a, b, transpose_b);
}

void gemm_with_bias(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias) {
  if (c.elements() == 0) return;
  if (few_rows_gemm(stream, c, Write::overwrite, a, transpose_a, b, transpose_b, bias)) return;
  if (a.elements() > 0 && gemm_with_bias_by_cublaslt(stream, c, a, transpose_a, b, transpose_b, bias)) return;
  cuda::repeat_row(stream, c, bias);
  cuda::gemm(stream, c, Write::accumulate, a, transpose_a, b, transpose_b);
}

}  // namespace witan::kernels::cuda
