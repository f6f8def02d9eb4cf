// Convolutions of four taps, the size that models use. A thread has a pack of neighbouring channels of a strip of
// tokens, and keeps their last inputs in registers: each input is read once, and the backward is one pass.
#pragma once

#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {

inline constexpr int kPackTaps = 4, kPackThreads = 128;
template <class T>
inline constexpr int kConvolutionPack = sizeof(T) == 8 ? 2 : 4;  // channels

// Tokens of all rows, of which `stride` elements lie between neighbours.
template <class T>
struct PackRows {
  T* at;
  int64_t stride;
};

template <class T>
struct PackConvolution {
  PackRows<const T> x;
  const T* w;          // [C, 4]
  const T* bias;       // [C], or null: 0
  bool silu;           // whether the activation follows
  const int32_t* ids;  // of all rows' tokens; null: each row is one document
  int64_t tokens, S, C, strip;
};

// The activation of a sum u, or u itself, with its slope.
template <class A>
__device__ __forceinline__ ValueAndSlope<A> activated(A u, bool silu) {
  return silu ? Silu::at(u) : ValueAndSlope<A>{u, A(1)};
}

// The taps of a pack's channels, and what they see of the tokens up to the current one.
template <class T>
class PackWindow {
 public:
  using A = Acc<T>;
  static constexpr int N = kConvolutionPack<T>;

  // Before token `first`, whose channels are [c, c + N).
  __device__ PackWindow(const PackConvolution<T>& in, int64_t first, int64_t c)
      : in_(in), c_(c), position_(first % in.S) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const auto row = load_pack<T, kPackTaps>(in.w + (c + n) * kPackTaps);
#pragma unroll
      for (int j = 0; j < kPackTaps; ++j) w[n][j] = convert<A>(row.at[j]);
      bias[n] = in.bias == nullptr ? A(0) : convert<A>(in.bias[c + n]);
    }
    bool own = !begins(first);
#pragma unroll
    for (int back = 1; back < kPackTaps; ++back) {
      set(kPackTaps - back, first - back, own);
      --position_;
      own = own && !begins(first - back);
    }
    position_ += kPackTaps - 1;
  }
  // Moves on to token t, the next one. Returns whether it begins a document.
  __device__ bool advance(int64_t t) {
    const bool begins_here = begins(t);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int j = 0; j + 1 < kPackTaps; ++j) x[n][j] = begins_here ? A(0) : x[n][j + 1];
    set(kPackTaps - 1, t, true);
    if (++position_ == in_.S) position_ = 0;
    return begins_here;
  }
  __device__ A sum(int n) const {
    A u = bias[n];
#pragma unroll
    for (int j = 0; j < kPackTaps; ++j) u += w[n][j] * x[n][j];
    return u;
  }

  A w[N][kPackTaps], x[N][kPackTaps], bias[N];

 private:
  // Whether token t, at position_, begins a document. It is never called for tokens before the first.
  __device__ bool begins(int64_t t) const {
    return position_ <= 0 || (in_.ids != nullptr && in_.ids[t] != in_.ids[t - 1]);
  }
  __device__ void set(int j, int64_t t, bool wanted) {
    Pack<T, N> pack = {};
    if (wanted) pack = load_pack<T, N>(in_.x.at + t * in_.x.stride + c_);
#pragma unroll
    for (int n = 0; n < N; ++n) x[n][j] = wanted ? convert<A>(pack.at[n]) : A(0);
  }

  const PackConvolution<T>& in_;
  int64_t c_, position_;
};

template <class T>
__global__ void __launch_bounds__(kPackThreads)
    short_convolution_pack_forward_kernel(PackRows<T> y, PackConvolution<T> in) {
  constexpr int N = kConvolutionPack<T>;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x) * N, first = blockIdx.y * in.strip;
  if (c >= in.C) return;
  const int64_t end = first + in.strip < in.tokens ? first + in.strip : in.tokens;
  PackWindow<T> window(in, first, c);
#pragma unroll 4
  for (int64_t t = first; t < end; ++t) {
    window.advance(t);
    Pack<T, N> out;
#pragma unroll
    for (int n = 0; n < N; ++n) out.at[n] = convert<T>(activated(window.sum(n), in.silu).value);
    store_pack(y.at + t * y.stride + c, out);
  }
}

// dx of a strip's tokens, where it is wanted, and partials[strip, c, j], the strip's terms of dw. Tokens up to three
// behind the strip are seen once more: dx[s] needs du of tokens s to s + 3.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    short_convolution_pack_backward_kernel(PackRows<T> dx, Acc<T>* partials, PackRows<const T> dy,
                                           PackConvolution<T> in) {
  using A = Acc<T>;
  constexpr int N = kConvolutionPack<T>;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x) * N, first = blockIdx.y * in.strip;
  if (c >= in.C) return;
  const int64_t end = first + in.strip < in.tokens ? first + in.strip : in.tokens;
  PackWindow<T> window(in, first, c);
  A du[N][kPackTaps] = {}, dw[N][kPackTaps] = {};  // du of tokens t - 3 to t
  unsigned begun = 0;                              // bit k: token t - k begins a document
  for (int64_t t = first; t < end + kPackTaps - 1; ++t) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int j = 0; j + 1 < kPackTaps; ++j) du[n][j] = du[n][j + 1];
    begun <<= 1;
    Pack<T, N> gradient = {};
    if (t < in.tokens) {
      begun |= window.advance(t) ? 1u : 0u;
      gradient = load_pack<T, N>(dy.at + t * dy.stride + c);
    } else {
      begun |= 1u;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const A now = convert<A>(gradient.at[n]) * activated(window.sum(n), in.silu).slope;
      du[n][kPackTaps - 1] = now;
#pragma unroll
      for (int j = 0; j < kPackTaps; ++j)
        if (t < end) dw[n][j] += now * window.x[n][j];
    }
    const int64_t s = t - (kPackTaps - 1);
    if (dx.at == nullptr || s < first) continue;
    Pack<T, N> out;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      A sum = 0;
#pragma unroll
      for (int k = 0; k < kPackTaps; ++k)  // token s + k, if none of s + 1 to s + k begins a document
        if (k == 0 || (begun >> (kPackTaps - 1 - k) & ((1u << k) - 1)) == 0)
          sum += window.w[n][kPackTaps - 1 - k] * du[n][k];
      out.at[n] = convert<T>(sum);
    }
    store_pack(dx.at + s * dx.stride + c, out);
  }
  if (partials == nullptr) return;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int j = 0; j < kPackTaps; ++j)
      partials[(static_cast<int64_t>(blockIdx.y) * in.C + c + n) * kPackTaps + j] = dw[n][j];
}

}  // namespace witan::kernels::cuda
