// A warp has a row.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / 32;

__device__ __forceinline__ float open_of(float gate) {
  return 1.0f / (1.0f + expf(-gate));
}
__device__ __forceinline__ double open_of(double gate) {
  return 1 / (1 + exp(-gate));
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    row_gate_forward_kernel(T* y, const T* x, const T* gate, int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (t >= rows) return;
  const A open = open_of(convert<A>(gate[t]));
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    Pack<T, N> value = load_pack<T, N>(x + t * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) value.at[j] = convert<T>(open * convert<A>(value.at[j]));
    store_pack<T, N>(y + t * D + d, value);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    row_gate_backward_kernel(T* dx, T* dgate, const T* dy, const T* x, const T* gate, int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (t >= rows) return;
  const A open = open_of(convert<A>(gate[t]));
  A dot = 0;
  for (int64_t d = static_cast<int64_t>(threadIdx.x % 32) * N; d < D; d += 32 * N) {
    Pack<T, N> g = load_pack<T, N>(dy + t * D + d);
    const Pack<T, N> in = load_pack<T, N>(x + t * D + d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A slope = convert<A>(g.at[j]);
      dot += slope * convert<A>(in.at[j]);
      g.at[j] = convert<T>(open * slope);
    }
    store_pack<T, N>(dx + t * D + d, g);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % 32 == 0) dgate[t] = convert<T>(open * (A(1) - open) * dot);
}

// Calls body.template operator()<T, N>(blocks) for rows of D elements at these addresses.
template <class Body, class... Tensors>
void with_packs(DType dtype, int64_t rows, int64_t D, const Body& body, const Tensors&... tensors) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kRows - 1) / kRows);
  dispatch_device(dtype, [&]<class T>() {
    if ((packs<T>(ptr<T>(tensors), D) && ...))
      body.template operator()<T, kPack<T>>(blocks);
    else
      body.template operator()<T, 1>(blocks);
  });
}

}  // namespace

void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  const auto [rows, D] = x.shape().as_rows();
  with_packs(
      x.dtype(), rows, D,
      [&, T_ = rows, D = D]<class T, int N>(unsigned blocks) {
        row_gate_forward_kernel<N>
            <<<blocks, kThreads, 0, native(stream)>>>(ptr<T>(y), ptr<const T>(x), ptr<const T>(gate), T_, D);
      },
      y, x);
}

void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate) {
  const auto [rows, D] = x.shape().as_rows();
  with_packs(
      x.dtype(), rows, D,
      [&, T_ = rows, D = D]<class T, int N>(unsigned blocks) {
        row_gate_backward_kernel<N><<<blocks, kThreads, 0, native(stream)>>>(
            ptr<T>(dx), ptr<T>(dgate), ptr<const T>(dy), ptr<const T>(x), ptr<const T>(gate), T_, D);
      },
      dx, dy, x);
}

}  // namespace witan::kernels::cuda
