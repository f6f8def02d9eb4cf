#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The factors are read on the device, since the host does not know them.
template <class T>
struct Scaled {
  const T* w;
  __device__ Acc<T> factor() const { return w ? convert<Acc<T>>(*w) : Acc<T>(1); }
  __device__ T operator()(T x) const { return convert<T>(factor() * convert<Acc<T>>(x)); }
};

template <class T>
struct SumOfScaled {
  Scaled<T> a, b;
  __device__ T operator()(T x, T y) const {
    return convert<T>(a.factor() * convert<Acc<T>>(x) + b.factor() * convert<Acc<T>>(y));
  }
};

template <class T>
T* optional_ptr(const Tensor& tensor) {
  return tensor.defined() ? ptr<T>(tensor) : nullptr;
}

// dx = w dy and, per block of kSumBlock elements, partials[b] = sum dy x: each thread's in order, then over the
// threads. N elements per thread at a time.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    scaled_backward_kernel(T* dx, double* partials, const T* dy, const T* x, Scaled<T> w, int64_t elements) {
  using A = Acc<T>;
  __shared__ A shared[kThreads / 32];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSumBlock;
  const A factor = w.factor();
  A sum = 0;
#pragma unroll
  for (int k = 0; k < kSumBlock / (kThreads * N); ++k) {
    const int64_t i = begin + (k * kThreads + threadIdx.x) * N;
    if (i >= elements) continue;
    Pack<T, N> g = load_pack<T, N>(dy + i);
    const Pack<T, N> in = load_pack<T, N>(x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A slope = convert<A>(g.at[j]);
      sum += slope * convert<A>(in.at[j]);
      g.at[j] = convert<T>(factor * slope);
    }
    if (dx) store_pack<T, N>(dx + i, g);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class W>
__global__ void __launch_bounds__(kThreads)
    scaled_weight_kernel(W* dw, bool accumulate, const double* partials, int64_t blocks) {
  __shared__ double shared[kThreads / 32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += partials[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  const double before = accumulate ? static_cast<double>(convert<Acc<W>>(*dw)) : 0;
  *dw = convert<W>(static_cast<Acc<W>>(before + sum));
}

}  // namespace

void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb) {
  dispatch_device(y.dtype(), [&]<class T>() {
    const Scaled<T> left{optional_ptr<const T>(wa)}, right{optional_ptr<const T>(wb)};
    if (b.defined())
      map<T, T, T>(stream, y, a, b, SumOfScaled<T>{left, right});
    else
      map<T, T>(stream, y, a, left);
  });
}

void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w) {
  const int64_t n = dy.elements(), blocks = partials.elements();
  double* const partial = ptr<double>(partials);
  dispatch_device(dy.dtype(), [&]<class T>() {
    constexpr int N = kPack<T>;
    T* const out = optional_ptr<T>(dx);
    const T *const g = ptr<const T>(dy), *const in = ptr<const T>(x);
    const Scaled<T> factor{optional_ptr<const T>(w)};
    const bool wide = n % N == 0 && packs<T>(g, N, N) && packs<T>(in, N, N) && (!out || packs<T>(out, N, N));
    if (blocks == 0) return;
    if (wide)
      scaled_backward_kernel<N>
          <<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(out, partial, g, in, factor, n);
    else
      scaled_backward_kernel<1>
          <<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(out, partial, g, in, factor, n);
  });
  dispatch_device(dw.dtype(), [&]<class W>() {
    scaled_weight_kernel<<<1, kThreads, 0, native(stream)>>>(ptr<W>(dw), write == Write::accumulate, partial, blocks);
  });
}

}  // namespace witan::kernels::cuda
