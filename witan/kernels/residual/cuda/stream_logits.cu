// The projection of whole streams to the logits of their weights: as many columns as a warp has lanes or fewer, of a
// width of thousands. Blocks of tokens share what they read of the projection.
#include "witan/kernels/common/cuda/add_strips.cuh"
#include "witan/kernels/residual/streams.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = kWarps;  // of a block: in the forward, each warp sums the squares of one
constexpr int kColumns = 3;      // that a warp projects at a time
constexpr int kMostLogits = static_cast<int>(kMostStreams * (kMostStreams + 2));

unsigned blocks_of(int64_t items, int each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Acc<T>* logits, Acc<T>* r, const T* x, const Acc<T>* w,
                                                           Acc<T> eps, int64_t tokens, int64_t W, int C) {
  using A = Acc<T>;
  __shared__ A tile[kTokens][kThreads];
  __shared__ A scales[kTokens];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  for (int c = warp * kColumns; c < (C + kWarps * kColumns - 1) / (kWarps * kColumns) * kWarps * kColumns;
       c += kWarps * kColumns) {
    const bool begins = c == warp * kColumns;
    A sums[kColumns][kTokens] = {}, squares = 0;
    for (int64_t chunk = 0; chunk < W; chunk += kThreads) {
      const int64_t i = chunk + threadIdx.x;
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        tile[t][threadIdx.x] = i < W && first + t < tokens ? convert<A>(x[(first + t) * W + i]) : A(0);
      __syncthreads();
      for (int at = lane; at < kThreads; at += 32) {
        if (begins) squares += tile[warp][at] * tile[warp][at];
        A of[kColumns];
#pragma unroll
        for (int k = 0; k < kColumns; ++k) of[k] = c + k < C && chunk + at < W ? w[(c + k) * W + chunk + at] : A(0);
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
#pragma unroll
          for (int k = 0; k < kColumns; ++k) sums[k][t] += of[k] * tile[t][at];
      }
      __syncthreads();
    }
    if (begins) {
      squares = warp_sum(squares);
      if (lane == 0) {
        scales[warp] = A(1) / sqrt(squares / static_cast<A>(W) + eps);
        if (first + warp < tokens) r[first + warp] = scales[warp];
      }
      __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const A sum = warp_sum(sums[k][t]);
        if (lane == 0 && c + k < C && first + t < tokens) logits[(first + t) * C + c + k] = scales[t] * sum;
      }
  }
}

// A thread has one channel of the block's tokens.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_input_kernel(T* dx, const Acc<T>* dlogits, const Acc<T>* logits, const Acc<T>* r, const T* x,
                          const Acc<T>* w, int64_t tokens, int64_t W, int C) {
  using A = Acc<T>;
  __shared__ A gradients[kTokens][kMostLogits];
  __shared__ A scales[kTokens], pulls[kTokens];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens;
  for (int i = threadIdx.x; i < kTokens * C; i += kThreads)
    gradients[i / C][i % C] = first + i / C < tokens ? dlogits[first * C + i] : A(0);
  __syncthreads();
  if (threadIdx.x < kTokens && first + threadIdx.x < tokens) {
    const int64_t t = first + threadIdx.x;
    A dot = 0;
    for (int c = 0; c < C; ++c) dot += gradients[threadIdx.x][c] * logits[t * C + c];
    scales[threadIdx.x] = r[t];
    pulls[threadIdx.x] = dot * r[t] * r[t] / static_cast<A>(W);
  }
  __syncthreads();
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= W) return;
  A sums[kTokens] = {};
  for (int c = 0; c < C; ++c) {
    const A of = w[c * W + i];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] += gradients[t][c] * of;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (first + t >= tokens) break;
    const int64_t at = (first + t) * W + i;
    const A gradient = scales[t] * sums[t] - pulls[t] * convert<A>(x[at]);
    dx[at] = convert<T>(convert<A>(dx[at]) + gradient);
  }
}

// A thread has one channel, and sums kGroup columns at a time over a part of the tokens.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_weight_kernel(Acc<T>* parts, const Acc<T>* dlogits, const Acc<T>* r, const T* x, int64_t tokens, int64_t W,
                           int C) {
  using A = Acc<T>;
  constexpr int kGroup = 24, kStep = 32;
  __shared__ A factors[kStep][kGroup];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t each = (tokens + kStreamParts - 1) / kStreamParts, begin = blockIdx.y * each,
                end = min(begin + each, tokens);
  for (int c = 0; c < C; c += kGroup) {
    A sums[kGroup] = {};
    for (int64_t t = begin; t < end; t += kStep) {
      __syncthreads();
      for (int at = threadIdx.x; at < kStep * kGroup; at += kThreads) {
        const int64_t token = t + at / kGroup;
        const int column = c + at % kGroup;
        factors[at / kGroup][at % kGroup] = token < end && column < C ? dlogits[token * C + column] * r[token] : A(0);
      }
      __syncthreads();
      for (int s = 0; s < kStep && t + s < end; ++s) {
        const A in = i < W ? convert<A>(x[(t + s) * W + i]) : A(0);
#pragma unroll
        for (int k = 0; k < kGroup; ++k) sums[k] += factors[s][k] * in;
      }
    }
    if (i >= W) continue;
#pragma unroll
    for (int k = 0; k < kGroup; ++k)
      if (c + k < C) parts[(blockIdx.y * C + c + k) * W + i] = sums[k];
  }
}

}  // namespace

void stream_logits_forward(Stream& stream, const Tensor& logits, const Tensor& r, const Tensor& x, const Tensor& w,
                           double eps) {
  const auto [tokens, W] = x.shape().as_rows();
  if (tokens == 0) return;
  dispatch_device(x.dtype(), [&, tokens = tokens, W = W]<class T>() {
    using A = Acc<T>;
    forward_kernel<T><<<blocks_of(tokens, kTokens), kThreads, 0, native(stream)>>>(
        ptr<A>(logits), ptr<A>(r), ptr<const T>(x), ptr<const A>(w), static_cast<A>(eps), tokens, W,
        static_cast<int>(w.size(0)));
  });
}

void stream_logits_backward_input(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& r, const Tensor& x, const Tensor& w) {
  const auto [tokens, W] = x.shape().as_rows();
  if (tokens == 0) return;
  dispatch_device(x.dtype(), [&, tokens = tokens, W = W]<class T>() {
    using A = Acc<T>;
    const dim3 grid(blocks_of(tokens, kTokens), blocks_of(W, kThreads));
    backward_input_kernel<T><<<grid, kThreads, 0, native(stream)>>>(
        ptr<T>(dx), ptr<const A>(dlogits), ptr<const A>(logits), ptr<const A>(r), ptr<const T>(x), ptr<const A>(w),
        tokens, W, static_cast<int>(w.size(0)));
  });
}

void stream_logits_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& parts,
                                   const Tensor& dlogits, const Tensor& r, const Tensor& x) {
  const auto [tokens, W] = x.shape().as_rows();
  const int64_t C = dlogits.shape().last();
  dispatch_device(x.dtype(), [&, tokens = tokens, W = W]<class T>() {
    using A = Acc<T>;
    const dim3 grid(blocks_of(W, kThreads), kStreamParts);
    backward_weight_kernel<T><<<grid, kThreads, 0, native(stream)>>>(
        ptr<A>(parts), ptr<const A>(dlogits), ptr<const A>(r), ptr<const T>(x), tokens, W, static_cast<int>(C));
    dispatch_device(dw.dtype(), [&]<class G>() {
      add_strips_kernel<<<blocks_of(C * W, 32), 32 * kStripWarps, 0, native(stream)>>>(
          ptr<G>(dw), write == Write::accumulate, static_cast<const A*>(ptr<A>(parts)), kStreamParts, C * W);
    });
  });
}

}  // namespace witan::kernels::cuda
