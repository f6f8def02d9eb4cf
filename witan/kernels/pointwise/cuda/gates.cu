// Gates of rows, with one warp per row, and elementwise gates.
#include "witan/kernels/pointwise/cuda/map.cuh"
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

template <class T>
struct Opened {
  __device__ T operator()(T x, T gate) const { return convert<T>(open_of(convert<Acc<T>>(gate)) * convert<Acc<T>>(x)); }
};

// The gradients of an elementwise gate; a thread has kPack elements if addresses allow.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    sigmoid_gate_backward_kernel(T* dx, T* dgate, const T* dy, const T* x, const T* gate, int64_t elements) {
  using A = Acc<T>;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (i >= elements) return;
  const Pack<T, N> g = load_pack<T, N>(dy + i), in = load_pack<T, N>(x + i), of = load_pack<T, N>(gate + i);
  Pack<T, N> to_x, to_gate;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const A open = open_of(convert<A>(of.at[j])), dout = convert<A>(g.at[j]);
    to_x.at[j] = convert<T>(open * dout);
    to_gate.at[j] = convert<T>(open * (A(1) - open) * dout * convert<A>(in.at[j]));
  }
  store_pack<T, N>(dx + i, to_x);
  store_pack<T, N>(dgate + i, to_gate);
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

void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  dispatch_device(x.dtype(), [&]<class T>() { map<T, T, T>(stream, y, x, gate, Opened<T>()); });
}

void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate) {
  const int64_t n = x.elements();
  if (n == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    constexpr int N = kPack<T>;
    const auto launch = [&]<int kWidth>() {
      const int64_t threads = (n + kWidth - 1) / kWidth;
      sigmoid_gate_backward_kernel<kWidth>
          <<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
              ptr<T>(dx), ptr<T>(dgate), ptr<T>(dy), ptr<T>(x), ptr<T>(gate), n);
    };
    bool wide = n % N == 0;
    for (const Tensor* of : {&dx, &dgate, &dy, &x, &gate}) wide = wide && packs<T>(of->raw(), N, N);
    if (wide)
      launch.template operator()<N>();
    else
      launch.template operator()<1>();
  });
}

}  // namespace witan::kernels::cuda
