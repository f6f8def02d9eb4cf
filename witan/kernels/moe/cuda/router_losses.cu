// The router's losses if the micro-batch's tokens are divided among ranks, or its sequences are balanced separately:
// the sums of a part, and the losses from the sums of all parts.
#include <type_traits>

#include "witan/kernels/moe/cuda/router.cuh"
#include "witan/kernels/moe/router.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kWarps = 32;

// Each block sums 32 experts of a sequence, one per lane, with its warps taking the tokens in turn. The last block sums
// lse^2, and turns the tokens' mean entropy back into a sum.
template <class A>
__global__ void __launch_bounds__(kWarps * 32)
    sums_kernel(A* sums, const A* probs, const A* lse, const A* entropy, int64_t tokens, int sequences, int experts) {
  __shared__ double partial[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = (experts + 31) / 32;
  const int sequence = static_cast<int>(blockIdx.x) / blocks, e = static_cast<int>(blockIdx.x) % blocks * 32 + lane;
  const bool squares = sequence == sequences;
  double sum = 0;
  if (squares) {
    for (int64_t t = threadIdx.x; t < tokens; t += kWarps * 32) {
      const auto value = static_cast<double>(lse[t]);
      sum += value * value;
    }
  } else if (e < experts) {
    const int64_t length = tokens / sequences, first = sequence * length;
    for (int64_t t = first + warp; t < first + length; t += kWarps) sum += static_cast<double>(probs[t * experts + e]);
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += partial[w][lane];
  if (squares) {
    sum = warp_sum(sum);
    if (lane != 0) return;
    A* token_sums = sums + static_cast<int64_t>(sequences) * experts;
    token_sums[0] = static_cast<A>(sum);
    token_sums[1] = static_cast<A>(static_cast<double>(tokens) * static_cast<double>(*entropy));
  } else if (e < experts) {
    sums[static_cast<int64_t>(sequence) * experts + e] = static_cast<A>(sum);
  }
}

// A thread's share of sum_b 1 / n_b^2 sum_e sums[b,e] counts[b,e], where sequence b of B has n_b tokens.
template <class A>
__device__ double balance_of_padded(const A* sums, const int64_t* counts, int64_t sequences, int experts, int chosen) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  double balance = 0;
  for (int64_t b = warp; b < sequences; b += kWarps) {
    double sum = 0, assignments = 0;
    for (int64_t i = b * experts + lane; i < (b + 1) * experts; i += 32) {
      const auto count = static_cast<double>(counts[i]);
      sum += static_cast<double>(sums[i]) * count;
      assignments += count;
    }
    sum = warp_sum(sum);
    const double tokens = warp_sum(assignments) / chosen;
    if (lane == 0 && tokens > 0) balance += sum / (tokens * tokens);
  }
  return balance;
}

// `counted` [1]: the number of tokens, or null if it is `tokens`. `loads`: the experts, times the number of sequences
// if they are balanced separately.
template <class A>
__global__ void __launch_bounds__(kWarps * 32)
    losses_kernel(A* balance, A* z, A* entropy, const A* sums, const int64_t* counts, const int64_t* counted,
                  int64_t tokens, int64_t loads, int experts, int chosen) {
  __shared__ double of_warps[kWarps];
  double sum = 0;
  if (counted) {
    sum = balance_of_padded(sums, counts, loads / experts, experts, chosen);
  } else {
    for (int64_t i = threadIdx.x; i < loads; i += kWarps * 32)
      sum += static_cast<double>(sums[i]) * static_cast<double>(counts[i]);
  }
  sum = block_sum(sum, of_warps);
  if (threadIdx.x != 0) return;
  if (counted) tokens = *counted;
  const double all = tokens > 0 ? static_cast<double>(tokens) : 1.0;
  *balance = static_cast<A>(counted ? sum * experts * experts / (static_cast<double>(loads) * chosen)
                                    : sum * static_cast<double>(loads) / (all * all * chosen));
  *z = static_cast<A>(static_cast<double>(sums[loads]) / all);
  *entropy = static_cast<A>(static_cast<double>(sums[loads + 1]) / all);
}

}  // namespace

void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part) {
  const int64_t T = part.probs.size(0), E = part.probs.size(1), B = (sums.elements() - kTokenSums) / E;
  dispatch_accumulator(sums.dtype(), [&]<class A>() {
    sums_kernel<<<static_cast<unsigned>((E + 31) / 32 * B + 1), kWarps * 32, 0, native(stream)>>>(
        ptr<A>(sums), ptr<const A>(part.probs), ptr<const A>(part.lse), ptr<const A>(part.entropy), T,
        static_cast<int>(B), static_cast<int>(E));
  });
}

void router_losses(Stream& stream, const RouterOutputs& out, const RouterTotals& totals) {
  dispatch_accumulator(totals.sums.dtype(), [&]<class A>() {
    losses_kernel<<<1, kWarps * 32, 0, native(stream)>>>(
        ptr<A>(out.balance), ptr<A>(out.z), ptr<A>(out.entropy), ptr<const A>(totals.sums),
        ptr<const int64_t>(totals.counts), ptr<const int64_t>(out.tokens), totals.tokens, totals.counts.elements(),
        static_cast<int>(out.counts.elements()), static_cast<int>(totals.topk));
  });
}

}  // namespace witan::kernels::cuda
