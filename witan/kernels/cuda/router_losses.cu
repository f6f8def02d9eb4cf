// The router's losses of a micro-batch whose tokens are divided among ranks: sums of a part, and losses of all sums.
#include <type_traits>

#include "witan/kernels/cuda/router.cuh"
#include "witan/kernels/router.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kWarps = 32;

// A block sums 32 experts, a lane each, its warps taking turns with the tokens; the last block sums lse^2.
template <class A>
__global__ void __launch_bounds__(kWarps * 32)
    sums_kernel(A* sums, const A* probs, const A* lse, int64_t tokens, int experts) {
  __shared__ double partial[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = static_cast<int>(blockIdx.x) * 32 + lane;
  const bool squares = blockIdx.x + 1 == gridDim.x;
  double sum = 0;
  if (squares) {
    for (int64_t t = threadIdx.x; t < tokens; t += kWarps * 32) {
      const auto value = static_cast<double>(lse[t]);
      sum += value * value;
    }
  } else if (e < experts) {
    for (int64_t t = warp; t < tokens; t += kWarps) sum += static_cast<double>(probs[t * experts + e]);
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += partial[w][lane];
  if (squares) {
    sum = warp_sum(sum);
    if (lane == 0) sums[experts] = static_cast<A>(sum);
  } else if (e < experts) {
    sums[e] = static_cast<A>(sum);
  }
}

template <class A>
__global__ void __launch_bounds__(32)
    losses_kernel(A* balance, A* z, const A* sums, const int64_t* counts, int64_t tokens, int experts, int chosen) {
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += 32)
    sum += static_cast<double>(sums[e]) * static_cast<double>(counts[e]);
  sum = warp_sum(sum);
  if (threadIdx.x != 0) return;
  const double all = tokens > 0 ? static_cast<double>(tokens) : 1.0;
  *balance = static_cast<A>(sum * experts / (all * all * chosen));
  *z = static_cast<A>(static_cast<double>(sums[experts]) / all);
}

}  // namespace

void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part) {
  const int64_t T = part.probs.size(0), E = part.probs.size(1);
  dispatch_device(sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, __nv_bfloat16>)
      sums_kernel<<<static_cast<unsigned>((E + 31) / 32 + 1), kWarps * 32, 0, native(stream)>>>(
          ptr<A>(sums), ptr<const A>(part.probs), ptr<const A>(part.lse), T, static_cast<int>(E));
  });
}

void router_losses(Stream& stream, const Tensor& balance, const Tensor& z, const RouterTotals& totals) {
  dispatch_device(totals.sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, __nv_bfloat16>)
      losses_kernel<<<1, 32, 0, native(stream)>>>(
          ptr<A>(balance), ptr<A>(z), ptr<const A>(totals.sums), ptr<const int64_t>(totals.counts), totals.tokens,
          static_cast<int>(totals.counts.elements()), static_cast<int>(totals.topk));
  });
}

}  // namespace witan::kernels::cuda
