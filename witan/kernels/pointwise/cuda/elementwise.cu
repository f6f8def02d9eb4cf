#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Y>
struct Cast {
  template <class X>
  __device__ Y operator()(X x) const {
    return convert<Y>(x);
  }
};

template <class Y>
struct Plus {
  template <class X>
  __device__ Y operator()(Y a, X b) const {
    return convert<Y>(convert<Acc<Y>>(a) + convert<Acc<Y>>(b));
  }
};

template <class Y>
struct Times {
  __device__ Y operator()(Y a, Y b) const { return convert<Y>(convert<Acc<Y>>(a) * convert<Acc<Y>>(b)); }
};

struct PlusIntegers {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

template <class Y>
struct Scale {
  Acc<Y> factor;
  template <class X>
  __device__ Y operator()(X x) const {
    return convert<Y>(factor * convert<Acc<Y>>(x));
  }
};

template <class Y>
struct PlusScaled {
  Acc<Y> factor;
  template <class X>
  __device__ Y operator()(Y before, X x) const {
    return convert<Y>(convert<Acc<Y>>(before) + factor * convert<Acc<Y>>(x));
  }
};

// The value that fills a tensor: a constant, or the first element of another tensor.
template <class Y>
struct Constant {
  Y number;
  __device__ Y value() const { return number; }
};
template <class Y, class X>
struct First {
  const X* x;
  __device__ Y value() const { return convert<Y>(*x); }
};

template <int N, class Y, class Source>
__global__ void __launch_bounds__(kThreads) fill_kernel(Y* y, int64_t elements, Source source) {
  Pack<Y, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.at[j] = source.value();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * N;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N; i < elements; i += stride) {
    if (i + N <= elements)
      store_pack<Y, N>(y + i, pack);
    else
      for (int j = 0; i + j < elements; ++j) y[i + j] = pack.at[0];
  }
}

template <class Y, class Source>
void fill_with(Stream& stream, const Tensor& y, Source source) {
  constexpr int N = kPack<Y>;
  const int64_t n = y.elements();
  Y* const out = ptr<Y>(y);
  const int wide = packs<Y>(out, N, N) ? N : 1;
  const unsigned blocks = blocks_for(stream, (n + kThreads * wide - 1) / (kThreads * wide));
  if (n == 0) return;
  if (wide == N)
    fill_kernel<N><<<blocks, kThreads, 0, native(stream)>>>(out, n, source);
  else
    fill_kernel<1><<<blocks, kThreads, 0, native(stream)>>>(out, n, source);
}

// partials[b] = the sum of block b's kSumBlock elements: each thread's in order, then over the threads.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_blocks_kernel(double* partials, const T* x, int64_t elements) {
  __shared__ Acc<T> shared[kThreads / 32];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSumBlock;
  Acc<T> sum = 0;
#pragma unroll
  for (int k = 0; k < kSumBlock / kThreads; ++k) {
    const int64_t i = begin + k * kThreads + threadIdx.x;
    if (i < elements) sum += convert<Acc<T>>(x[i]);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class A>
__global__ void __launch_bounds__(kThreads) sum_partials_kernel(A* y, const double* partials, int64_t blocks) {
  __shared__ double shared[kThreads / 32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += partials[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *y = static_cast<A>(sum);
}

// Calls body.template operator()<Y, X>() with the types of y and x. Float16 is combined only with itself and float32,
// as in a training step: kernels for every pair would take half as long again to compile.
template <class Body>
void dispatch_pair(const Tensor& y, const Tensor& x, const Body& body) {
  dispatch_device(y.dtype(), [&]<class Y>() {
    dispatch_device(x.dtype(), [&]<class X>() {
      constexpr bool kHalfY = std::is_same_v<Y, __half>, kHalfX = std::is_same_v<X, __half>;
      if constexpr (kHalfY == kHalfX || std::is_same_v<Y, float> || std::is_same_v<X, float>)
        body.template operator()<Y, X>();
      else
        throw ShapeError(cat("GPU kernels combine float16 with float32 only, got ", name_of(y.dtype()), " and ",
                             name_of(x.dtype())));
    });
  });
}

template <class T>
struct Clamped {
  rules::Clamp<Acc<T>> rule;
  __device__ T operator()(T x) const { return convert<T>(rule.value(convert<Acc<T>>(x))); }
};

template <class T>
struct WhereWithin {
  rules::Clamp<Acc<T>> rule;
  __device__ T operator()(T dy, T x) const { return rule.passes(convert<Acc<T>>(x)) ? dy : convert<T>(Acc<T>(0)); }
};

template <class T>
struct SoftCap {
  Acc<T> inner, cap;
  __device__ T operator()(T x) const { return convert<T>(cap * tanh(inner * convert<Acc<T>>(x))); }
};

template <class T>
struct SoftCapped {
  rules::SoftCapSlope<Acc<T>> rule;
  __device__ T operator()(T dy, T y) const {
    return convert<T>(rule.gradient(convert<Acc<T>>(y), convert<Acc<T>>(dy)));
  }
};

}  // namespace

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.dtype() == DType::i64) return map<int64_t, int64_t, int64_t>(stream, y, a, b, PlusIntegers());
  dispatch_device(y.dtype(), [&]<class T>() { map<T, T, T>(stream, y, a, b, Plus<T>()); });
}

void product(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  dispatch_device(y.dtype(), [&]<class T>() { map<T, T, T>(stream, y, a, b, Times<T>()); });
}

void accumulate(Stream& stream, const Tensor& to, Write write, const Tensor& from) {
  if (write == Write::overwrite) return cast(stream, to, from);
  dispatch_pair(to, from, [&]<class To, class From>() { map<To, To, From>(stream, to, to, from, Plus<To>()); });
}

void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha) {
  dispatch_pair(y, x, [&]<class Y, class X>() {
    const auto factor = static_cast<Acc<Y>>(alpha);
    if (write == Write::overwrite)
      map<Y, X>(stream, y, x, Scale<Y>{factor});
    else
      map<Y, Y, X>(stream, y, y, x, PlusScaled<Y>{factor});
  });
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_pair(y, x, [&]<class Y, class X>() { map<Y, X>(stream, y, x, Cast<Y>()); });
}

void sum(Stream& stream, const Tensor& y, const Tensor& partials, const Tensor& x) {
  const int64_t blocks = partials.elements();
  dispatch_device(x.dtype(), [&]<class T>() {
    double* const partial = ptr<double>(partials);
    if (blocks > 0)
      sum_blocks_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(partial, ptr<const T>(x),
                                                                                        x.elements());
    sum_partials_kernel<<<1, kThreads, 0, native(stream)>>>(ptr<Acc<T>>(y), partial, blocks);
  });
}

void broadcast(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_pair(y, x, [&]<class Y, class X>() { fill_with<Y>(stream, y, First<Y, X>{ptr<X>(x)}); });
}

void fill(Stream& stream, const Tensor& y, double value) {
  dispatch_device(y.dtype(),
                  [&]<class Y>() { fill_with<Y>(stream, y, Constant<Y>{static_cast<Y>(static_cast<Acc<Y>>(value))}); });
}

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  dispatch_device(x.dtype(), [&]<class T>() { map<T, T>(stream, y, x, Clamped<T>{{static_cast<Acc<T>>(bound)}}); });
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  dispatch_device(x.dtype(),
                  [&]<class T>() { map<T, T, T>(stream, dx, dy, x, WhereWithin<T>{{static_cast<Acc<T>>(bound)}}); });
}

void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap) {
  dispatch_device(x.dtype(), [&]<class T>() {
    map<T, T>(stream, y, x, SoftCap<T>{static_cast<Acc<T>>(scale / cap), static_cast<Acc<T>>(cap)});
  });
}

void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap) {
  dispatch_device(y.dtype(), [&]<class T>() {
    map<T, T, T>(stream, dx, dy, y, SoftCapped<T>{{static_cast<Acc<T>>(scale), static_cast<Acc<T>>(1 / cap)}});
  });
}

}  // namespace witan::kernels::cuda
