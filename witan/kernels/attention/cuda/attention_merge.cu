#include "witan/kernels/attention/attention.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A warp for each row of y [B, S, H]; N elements at a time, 1 or those of 16 bytes of the accumulator.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Acc<T>* y, Acc<T>* lse, const T* y_part, const Acc<T>* lse_part, int64_t rows, int S, int H, int hd) {
  using A = Acc<T>;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t sequence = row / H / S, at = (sequence * H + row % H) * S + row / H % S;
  const A sum = lse[at], part = lse_part[at];
  if (part == -static_cast<A>(INFINITY)) return;
  const A top = sum > part ? sum : part, joined = top + log(exp(sum - top) + exp(part - top));
  const A keep = exp(sum - joined), take = exp(part - joined);
  for (int d = lane * N; d < hd; d += 32 * N) {
    auto to = load_pack<A, N>(y + row * hd + d);
    const auto from = load_pack<T, N>(y_part + row * hd + d);
#pragma unroll
    for (int e = 0; e < N; ++e) to.at[e] = keep * to.at[e] + take * convert<A>(from.at[e]);
    store_pack(y + row * hd + d, to);
  }
  __syncwarp();  // all lanes have read the row's lse
  if (lane == 0) lse[at] = joined;
}

}  // namespace

void attention_merge(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& y_part, const Tensor& lse_part) {
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3), rows = y.size(0) * S * H;
  if (rows == 0) return;
  dispatch_device(y_part.dtype(), [&]<class T>() {
    using A = Acc<T>;
    constexpr int N = kPack<A>;
    const bool packed = packs<A>(y.raw(), hd, N) && packs<T>(y_part.raw(), hd, N);
    const auto kernel = packed ? merge_kernel<T, N> : merge_kernel<T, 1>;
    kernel<<<static_cast<unsigned>((rows * 32 + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<A>(y), ptr<A>(lse), ptr<T>(y_part), ptr<A>(lse_part), rows, static_cast<int>(S), static_cast<int>(H),
        static_cast<int>(hd));
  });
}

}  // namespace witan::kernels::cuda
