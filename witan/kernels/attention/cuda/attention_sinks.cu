// Each row of y [B, S, H] is processed by a warp.
#include <cmath>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/common/cuda/add_strips.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sinks_forward_kernel(T* y, Acc<T>* lse, const T* sinks, int64_t rows, int S, int H, int hd) {
  using A = Acc<T>;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t at = (row / H / S * H + row % H) * S + row / H % S;
  const A sum = lse[at], sink = convert<A>(sinks[row % H]);
  const A top = sum > sink ? sum : sink, joined = top + log(exp(sum - top) + exp(sink - top));
  const A keep = exp(sum - joined);
  for (int d = lane * N; d < hd; d += 32 * N) {
    auto to = load_pack<T, N>(y + row * hd + d);
#pragma unroll
    for (int e = 0; e < N; ++e) to.at[e] = convert<T>(keep * convert<A>(to.at[e]));
    store_pack(y + row * hd + d, to);
  }
  __syncwarp();  // all lanes have read the row's lse
  if (lane == 0) lse[at] = joined;
}

// strips[strip, h] = - sum over the strip's rows of exp(sink - lse) dy . y;  one block per strip and head
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sinks_backward_kernel(Acc<T>* strips, const T* dy, const T* y, const Acc<T>* lse, const T* sinks, int64_t tokens,
                          int S, int H, int hd) {
  using A = Acc<T>;
  __shared__ A shared[kWarps];
  const int h = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const A sink = convert<A>(sinks[h]);
  A total = 0;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + warp; t < tokens; t += int64_t{gridDim.x} * kWarps) {
    const int64_t row = (t * H + h) * hd;
    A dot = 0;
    for (int d = lane * N; d < hd; d += 32 * N) {
      const auto a = load_pack<T, N>(dy + row + d), b = load_pack<T, N>(y + row + d);
#pragma unroll
      for (int e = 0; e < N; ++e) dot += convert<A>(a.at[e]) * convert<A>(b.at[e]);
    }
    total -= exp(sink - lse[(t / S * H + h) * S + t % S]) * warp_sum(dot);
  }
  if (lane == 0) shared[warp] = total;
  __syncthreads();
  if (threadIdx.x > 0) return;
  A sum = 0;
  for (const A part : shared) sum += part;
  strips[static_cast<int64_t>(blockIdx.x) * H + h] = sum;
}

}  // namespace

void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks) {
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3), rows = y.size(0) * S * H;
  if (rows == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    const auto kernel = packs<T>(ptr<T>(y), hd) ? sinks_forward_kernel<T, kPack<T>> : sinks_forward_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<Acc<T>>(lse), ptr<T>(sinks), rows, static_cast<int>(S), static_cast<int>(H),
        static_cast<int>(hd));
  });
}

void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks) {
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3), tokens = y.size(0) * S;
  constexpr int64_t kMostStrips = 64;  // per head, on every device: the order of summation depends on their number
  dispatch_device(y.dtype(), [&]<class T>() {
    const Strips<Acc<T>> to(stream, std::min(kMostStrips, (tokens + kWarps - 1) / kWarps), H);
    const bool packed = packs<T>(ptr<T>(y), hd) && packs<T>(ptr<T>(dy), hd);
    const auto kernel = packed ? sinks_backward_kernel<T, kPack<T>> : sinks_backward_kernel<T, 1>;
    if (to.count > 0)
      kernel<<<dim3(static_cast<unsigned>(to.count), static_cast<unsigned>(H)), kThreads, 0, native(stream)>>>(
          to.strips, ptr<T>(dy), ptr<T>(y), ptr<Acc<T>>(lse), ptr<T>(sinks), tokens, static_cast<int>(S),
          static_cast<int>(H), static_cast<int>(hd));
    add_strips(stream, dsinks, write, to);
  });
}

}  // namespace witan::kernels::cuda
