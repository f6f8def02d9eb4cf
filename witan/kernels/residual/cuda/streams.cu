// A block has one token. Its threads have channels, of which they read all streams at once.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/residual/streams.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// sums[line, k] = the block's sum of values[line, k], for k < n and line < lines; values have lines of kMost numbers.
template <int kMost, int kCount, class A>
__device__ __forceinline__ void store_sums(A* sums, const A (&values)[kCount], int n, int lines) {
  __shared__ A shared[kWarps][kCount];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const A sum = warp_sum(values[i]);
    if (lane == 0) shared[warp][i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kCount; i += kThreads) {
    const int line = i / kMost, k = i % kMost;
    A sum = 0;
#pragma unroll
    for (int of = 0; of < kWarps; ++of) sum += shared[of][i];
    if (k < n && line < lines) sums[line * n + k] = sum;
  }
}

template <int kMost, int N, class T>
__global__ void __launch_bounds__(kThreads) collapse_kernel(T* y, const T* x, const Acc<T>* pre, int n, int64_t D) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x;
  A weights[kMost];
#pragma unroll
  for (int k = 0; k < kMost; ++k) weights[k] = k < n ? (pre ? pre[t * n + k] : A(1)) : A(0);
  for (int64_t d = threadIdx.x * N; d < D; d += kThreads * N) {
    A sums[N] = {};
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k >= n) break;
      const Pack<T, N> in = load_pack<T, N>(x + (t * n + k) * D + d);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += weights[k] * convert<A>(in.at[j]);
    }
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = convert<T>(sums[j]);
    store_pack<T, N>(y + t * D + d, out);
  }
}

template <int kMost, int N, class T>
__global__ void __launch_bounds__(kThreads)
    collapse_backward_kernel(T* dx, Acc<T>* dpre, const T* dy, const T* x, const Acc<T>* pre, int n, int64_t D) {
  using A = Acc<T>;
  const int64_t t = blockIdx.x;
  A dots[kMost] = {};
  for (int64_t d = threadIdx.x * N; d < D; d += kThreads * N) {
    const Pack<T, N> g = load_pack<T, N>(dy + t * D + d);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k >= n) break;
      const int64_t at = (t * n + k) * D + d;
      const Pack<T, N> in = load_pack<T, N>(x + at);
#pragma unroll
      for (int j = 0; j < N; ++j) dots[k] += convert<A>(g.at[j]) * convert<A>(in.at[j]);
      if (dx == nullptr) continue;
      Pack<T, N> out;
#pragma unroll
      for (int j = 0; j < N; ++j) out.at[j] = convert<T>(pre[t * n + k] * convert<A>(g.at[j]));
      store_pack<T, N>(dx + at, out);
    }
  }
  store_sums<kMost>(dpre + t * n, dots, n, 1);
}

template <int kMost, int N, class T>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(T* out, const T* x, const T* y, const Acc<T>* mix, int n, int64_t D) {
  using A = Acc<T>;
  __shared__ A weights[kMost * (kMost + 1)];
  const int64_t t = blockIdx.x;
  for (int i = threadIdx.x; i < n * (n + 1); i += kThreads) weights[i] = mix ? mix[t * n * (n + 1) + i] : A(1);
  __syncthreads();
  for (int64_t d = threadIdx.x * N; d < D; d += kThreads * N) {
    const Pack<T, N> added = load_pack<T, N>(y + t * D + d);
    Pack<T, N> in[kMost];
#pragma unroll
    for (int j = 0; j < kMost; ++j)
      if (x && j < n) in[j] = load_pack<T, N>(x + (t * n + j) * D + d);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k >= n) break;
      Pack<T, N> to;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        A sum = weights[k] * convert<A>(added.at[i]);
        if (x)
#pragma unroll
          for (int j = 0; j < kMost; ++j)
            if (j < n) sum += weights[n + j * n + k] * convert<A>(in[j].at[i]);
        to.at[i] = convert<T>(sum);
      }
      store_pack<T, N>(out + (t * n + k) * D + d, to);
    }
  }
}

template <int kMost, int N, class T>
__global__ void __launch_bounds__(kThreads)
    expand_backward_kernel(T* dx, T* dy, Acc<T>* dmix, const T* dout, const T* x, const T* y, const Acc<T>* mix, int n,
                           int64_t D) {
  using A = Acc<T>;
  __shared__ A weights[kMost * (kMost + 1)];
  const int64_t t = blockIdx.x;
  const int count = n * (n + 1);
  for (int i = threadIdx.x; i < count; i += kThreads) weights[i] = mix[t * count + i];
  __syncthreads();
  A dots[kMost * (kMost + 1)] = {};  // in lines of kMost: the writing weights, then the matrix
  for (int64_t d = threadIdx.x * N; d < D; d += kThreads * N) {
    Pack<T, N> g[kMost];
#pragma unroll
    for (int k = 0; k < kMost; ++k)
      if (k < n) g[k] = load_pack<T, N>(dout + (t * n + k) * D + d);
    const Pack<T, N> added = load_pack<T, N>(y + t * D + d);
    Pack<T, N> to;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      A sum = 0;
#pragma unroll
      for (int k = 0; k < kMost; ++k)
        if (k < n) {
          sum += weights[k] * convert<A>(g[k].at[i]);
          dots[k] += convert<A>(g[k].at[i]) * convert<A>(added.at[i]);
        }
      to.at[i] = convert<T>(sum);
    }
    store_pack<T, N>(dy + t * D + d, to);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j >= n) break;
      const int64_t at = (t * n + j) * D + d;
      const Pack<T, N> in = load_pack<T, N>(x + at);
      Pack<T, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        A sum = 0;
#pragma unroll
        for (int k = 0; k < kMost; ++k)
          if (k < n) {
            sum += weights[n + j * n + k] * convert<A>(g[k].at[i]);
            dots[kMost * (j + 1) + k] += convert<A>(g[k].at[i]) * convert<A>(in.at[i]);
          }
        out.at[i] = convert<T>(sum);
      }
      if (dx) store_pack<T, N>(dx + at, out);
    }
  }
  store_sums<kMost>(dmix + t * count, dots, n, n + 1);
}

// Calls run(most streams, elements of a pack) with constants that fit n streams of D channels at these addresses.
template <class T, class Run, class... Tensors>
void with_shape(int64_t n, int64_t D, const Run& run, const Tensors&... tensors) {
  constexpr int N = kPack<T>;
  const bool wide = ((!tensors.defined() || packs<T>(ptr<const T>(tensors), D)) && ...);
  const auto width = [&](auto most) {
    if (wide)
      run(most, std::integral_constant<int, N>());
    else
      run(most, std::integral_constant<int, 1>());
  };
  if (n <= 4)
    width(std::integral_constant<int, 4>());
  else
    width(std::integral_constant<int, static_cast<int>(kMostStreams)>());
}

struct Sizes {
  int64_t tokens, D;
  int n;

  Sizes(const Tensor& streams, const Tensor& of_one)
      : tokens(of_one.shape().as_rows().first),
        D(of_one.shape().last()),
        n(static_cast<int>(streams.shape().last() / D)) {}
};

}  // namespace

void collapse_streams(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& pre) {
  const Sizes size(x, y);
  if (size.tokens == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    const auto run = [&](auto most, auto pack) {
      collapse_kernel<most(), pack(), T><<<static_cast<unsigned>(size.tokens), kThreads, 0, native(stream)>>>(
          ptr<T>(y), ptr<const T>(x), ptr<const Acc<T>>(pre), size.n, size.D);
    };
    with_shape<T>(size.n, size.D, run, y, x);
  });
}

void collapse_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dpre, const Tensor& dy, const Tensor& x,
                               const Tensor& pre) {
  const Sizes size(x, dy);
  if (size.tokens == 0) return;
  dispatch_device(x.dtype(), [&]<class T>() {
    const auto run = [&](auto most, auto pack) {
      collapse_backward_kernel<most(), pack(), T><<<static_cast<unsigned>(size.tokens), kThreads, 0, native(stream)>>>(
          ptr<T>(dx), ptr<Acc<T>>(dpre), ptr<const T>(dy), ptr<const T>(x), ptr<const Acc<T>>(pre), size.n, size.D);
    };
    with_shape<T>(size.n, size.D, run, dx, dy, x);
  });
}

void expand_streams(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& mix) {
  const Sizes size(out, y);
  if (size.tokens == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    const auto run = [&](auto most, auto pack) {
      expand_kernel<most(), pack(), T><<<static_cast<unsigned>(size.tokens), kThreads, 0, native(stream)>>>(
          ptr<T>(out), ptr<const T>(x), ptr<const T>(y), ptr<const Acc<T>>(mix), size.n, size.D);
    };
    with_shape<T>(size.n, size.D, run, out, x, y);
  });
}

void expand_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& dmix, const Tensor& dout,
                             const Tensor& x, const Tensor& y, const Tensor& mix) {
  const Sizes size(dout, y);
  if (size.tokens == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    const auto run = [&](auto most, auto pack) {
      expand_backward_kernel<most(), pack(), T><<<static_cast<unsigned>(size.tokens), kThreads, 0, native(stream)>>>(
          ptr<T>(dx), ptr<T>(dy), ptr<Acc<T>>(dmix), ptr<const T>(dout), ptr<const T>(x), ptr<const T>(y),
          ptr<const Acc<T>>(mix), size.n, size.D);
    };
    with_shape<T>(size.n, size.D, run, dx, dy, dout, x, y);
  });
}

}  // namespace witan::kernels::cuda
