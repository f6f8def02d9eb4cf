// Forward: one kernel routes tokens and writes partial sums over fixed runs of tokens, and a second adds those up,
// unless there is only one run. Backward: one kernel, with a warp per token.
#include <cassert>
#include <limits>
#include <type_traits>

#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/cuda/choice.cuh"
#include "witan/kernels/moe/cuda/router.cuh"
#include "witan/kernels/moe/router.h"

namespace witan::kernels::cuda {
namespace {

template <class A>
struct Route {
  const A* logits;              // [T, E]
  int32_t* ids;                 // [T, K]
  A *weights, *probs, *lse;     // [T, K], [T, E], [T]
  const int32_t* sequence_ids;  // [T], or null
  int64_t tokens, per_block;
  int experts, chosen;
  Scores scores;
  bool divides;  // from Scoring
  A scaling;
};

// Sums over each block's tokens. Blocks depend only on shapes, so that adding their sums in order is reproducible.
template <class A>
struct Partial {
  double* squares;  // [B] sum of lse^2
  double* entropy;  // [B] sum of the tokens' entropies
  A* mass;          // [B, E] sum of probs
  int32_t* counts;  // [B, E]
  double* balance;  // [blocks of the second kernel] their sums over experts
  unsigned* done;   // the number of those blocks that have finished
};

// The results over all tokens.
template <class A>
struct RouteTotals {
  int64_t* counts;           // [E]
  A *balance, *z, *entropy;  // [1]

  __device__ __forceinline__ void set_losses(double balanced, double squares, double entropies, int64_t tokens,
                                             int experts, int chosen) const {
    const double count = tokens > 0 ? static_cast<double>(tokens) : 1.0;
    *balance = static_cast<A>(balanced * experts / (count * count * chosen));
    *z = static_cast<A>(squares / count);
    *entropy = static_cast<A>(entropies / count);
  }
};

template <int kPer>
inline constexpr int kRouteWarps = kPer <= 4   ? 16
                                   : kPer <= 8 ? 8
                                               : 4;  // their masses fit in 32 KiB of shared memory

// Writes a token's outputs, adds its probs to `mass` and the lane's part of its entropy to `entropy`; returns its lse.
template <class A, int kPer, Scores kScores>
__device__ __forceinline__ A route_token(const Route<A>& route, int64_t token, A (&mass)[kPer], double& entropy,
                                         int32_t* counts) {
  constexpr bool kEach = scores_each_alone(kScores);
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  A scores[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    scores[j] = lane + 32 * j < E ? route.logits[token * E + lane + 32 * j] : -std::numeric_limits<A>::infinity();
  A score_sum = 0;
  if constexpr (kEach) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) score_sum += lane + 32 * j < E ? score_each<kScores>(scores[j]) : A(0);
    score_sum = warp_sum(score_sum) + A(kNoScores);
  }
  Candidates<A, kPer> candidates(scores, E);
  const A most = score_of(candidates.largest());
  A sum = 0, logarithms = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const A shifted = scores[j] - most, p = kEach ? score_each<kScores>(scores[j]) / score_sum : A(0);
    scores[j] = lane + 32 * j < E ? exp(shifted) : A(0);
    sum += scores[j];
    if constexpr (kEach) {
      scores[j] = lane + 32 * j < E ? p : A(0);
      if (scores[j] != 0) logarithms += p * log(p);
    } else if (scores[j] != 0) {
      logarithms += scores[j] * shifted;
    }
  }
  sum = warp_sum(sum);
  const A inverse = 1 / sum;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const A p = kEach ? scores[j] : scores[j] * inverse;
    mass[j] += p;
    if (lane + 32 * j < E) route.probs[token * E + lane + 32 * j] = p;
  }

  constexpr int kSlots = kMostChosen / 32;  // lane l holds choices l and l + 32
  A chosen[kSlots];
  int32_t ids[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) chosen[s] = -std::numeric_limits<A>::infinity();
  for (int k = 0; k < K; ++k) {
    A score;
    const int expert = candidates.take(score);
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      if (k == lane + 32 * s) {
        chosen[s] = score;
        ids[s] = expert;
      }
    if (lane == 0) atomicAdd(counts + expert, 1);
  }
  A shift = most, scale = inverse;
  if (route.scores == Scores::softmax_of_chosen) {
    shift = warp_max(max(chosen[0], chosen[1]));
    A total = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) total += lane + 32 * s < K ? exp(chosen[s] - shift) : A(0);
    scale = 1 / warp_sum(total);
  } else if constexpr (kEach) {
    scale = each_scale<kScores>(chosen, K, route.divides);
  }
  scale *= route.scaling;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int k = lane + 32 * s;
    if (k >= K) continue;
    route.ids[token * K + k] = ids[s];
    route.weights[token * K + k] = (kEach ? score_each<kScores>(chosen[s]) : exp(chosen[s] - shift)) * scale;
  }
  const A log_sum = log(sum), lse = most + log_sum;
  entropy += static_cast<double>(kEach ? -logarithms : (lane == 0 ? log_sum : A(0)) - logarithms * inverse);
  if (lane == 0) route.lse[token] = lse;
  return lse;
}

// Writes the outputs of a padding row, with a warp.
template <class A>
__device__ __forceinline__ void route_padding(const Route<A>& route, int64_t row) {
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  for (int e = lane; e < E; e += 32) route.probs[row * E + e] = 0;
  for (int k = lane; k < K; k += 32) {
    route.ids[row * K + k] = -1;
    route.weights[row * K + k] = 0;
  }
  if (lane == 0) route.lse[row] = 0;
}

template <class A, int kPer, Scores kScores>
__global__ void __launch_bounds__(kRouteWarps<kPer> * 32)
    route_kernel(Route<A> route, Partial<A> partial, RouteTotals<A> totals) {
  constexpr int kWarps = kRouteWarps<kPer>, kThreads = kWarps * 32;
  __shared__ A masses[kWarps][kPer * 32];
  __shared__ int32_t counts[kPer * 32];
  __shared__ double squares[kWarps], entropies[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = route.experts;
  let_next_begin();
  for (int e = threadIdx.x; e < E; e += kThreads) counts[e] = 0;
  wait_for_earlier();
  __syncthreads();

  A mass[kPer] = {};
  double square = 0, entropy = 0;
  const int64_t first = blockIdx.x * route.per_block, end = min(first + route.per_block, route.tokens);
  for (int64_t token = first + warp; token < end; token += kWarps) {
    if (is_padding(route.sequence_ids, token)) {
      route_padding(route, token);
      continue;
    }
    const auto lse = static_cast<double>(route_token<A, kPer, kScores>(route, token, mass, entropy, counts));
    square += lse * lse;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) masses[warp][lane + 32 * j] = mass[j];
  entropy = warp_sum(entropy);
  if (lane == 0) {
    squares[warp] = square;
    entropies[warp] = entropy;
  }
  __syncthreads();

  const int64_t row = static_cast<int64_t>(blockIdx.x) * E;
  for (int e = threadIdx.x; e < E; e += kThreads) {
    A sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += masses[w][e];
    if (gridDim.x == 1) {
      masses[0][e] = sum;
      totals.counts[e] = counts[e];
      continue;
    }
    partial.mass[row + e] = sum;
    partial.counts[row + e] = counts[e];
  }
  double sum = 0, sum_of_entropies = 0;
  if (threadIdx.x == 0)
    for (int w = 0; w < kWarps; ++w) {
      sum += squares[w];
      sum_of_entropies += entropies[w];
    }
  if (gridDim.x == 1) {
    __syncthreads();
    if (warp != 0) return;
    double balanced = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int e = lane + 32 * j;
      balanced += warp_sum(e < E ? static_cast<double>(masses[0][e]) * counts[e] : 0.0);
    }
    if (lane == 0) totals.set_losses(balanced, sum, sum_of_entropies, route.tokens, E, route.chosen);
  } else if (threadIdx.x == 0) {
    partial.squares[blockIdx.x] = sum;
    partial.entropy[blockIdx.x] = sum_of_entropies;
    if (blockIdx.x == 0) *partial.done = 0;
  }
}

constexpr int kFinishWarps = 32;

// Each block adds up the partial sums of 32 experts; the last block to finish computes the losses.
template <class A>
__global__ void __launch_bounds__(kFinishWarps * 32)
    finish_kernel(RouteTotals<A> totals, Partial<A> partial, int blocks, int64_t tokens, int experts, int chosen) {
  __shared__ double masses[kFinishWarps][32];
  __shared__ int64_t assigned[kFinishWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = static_cast<int>(blockIdx.x) * 32 + lane;
  double mass = 0;
  int64_t count = 0;
  let_next_begin();
  wait_for_earlier();
  if (e < experts)
    for (int b = warp; b < blocks; b += kFinishWarps) {
      mass += static_cast<double>(partial.mass[static_cast<int64_t>(b) * experts + e]);
      count += partial.counts[static_cast<int64_t>(b) * experts + e];
    }
  masses[warp][lane] = mass;
  assigned[warp][lane] = count;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kFinishWarps; ++w) {
    mass += masses[w][lane];
    count += assigned[w][lane];
  }
  if (e < experts) totals.counts[e] = count;
  const double sum = warp_sum(mass * static_cast<double>(count));
  unsigned before = 0;
  if (lane == 0) {
    partial.balance[blockIdx.x] = sum;
    __threadfence();
    before = atomicAdd(partial.done, 1u);
  }
  if (__shfl_sync(kAllLanes, before, 0) + 1 != gridDim.x) return;
  __threadfence();
  double squares = 0, entropies = 0, all = 0;
  for (int b = lane; b < blocks; b += 32) {
    squares += partial.squares[b];
    entropies += partial.entropy[b];
  }
  squares = warp_sum(squares);
  entropies = warp_sum(entropies);
  if (lane != 0) return;
  for (unsigned b = 0; b < gridDim.x; ++b) all += __ldcg(partial.balance + b);
  totals.set_losses(all, squares, entropies, tokens, experts, chosen);
}

template <class A, int kPer, Scores kScores>
void route(Stream& stream, const RouterOutputs& out, Route<A> route) {
  constexpr int64_t kMostBlocks = 512, kWarps = kRouteWarps<kPer>;
  route.per_block = std::max<int64_t>((route.tokens + kMostBlocks * kWarps - 1) / (kMostBlocks * kWarps), 1) * kWarps;
  const int64_t blocks = std::max<int64_t>((route.tokens + route.per_block - 1) / route.per_block, 1);
  const int64_t sums = blocks * route.experts, finishers = (route.experts + 31) / 32;
  std::byte* memory = stream.scratch((2 * blocks + finishers + 1) * static_cast<int64_t>(sizeof(double)) +
                                     sums * static_cast<int64_t>(sizeof(A) + sizeof(int32_t)));
  Partial<A> partial;
  partial.squares = reinterpret_cast<double*>(memory);
  partial.entropy = partial.squares + blocks;
  partial.balance = partial.entropy + blocks;
  partial.done = reinterpret_cast<unsigned*>(partial.balance + finishers);
  partial.mass = reinterpret_cast<A*>(partial.balance + finishers + 1);
  partial.counts = reinterpret_cast<int32_t*>(partial.mass + sums);
  const RouteTotals<A> totals{ptr<int64_t>(out.counts), ptr<A>(out.balance), ptr<A>(out.z), ptr<A>(out.entropy)};
  launch_early(stream, route_kernel<A, kPer, kScores>, static_cast<unsigned>(blocks), kWarps * 32, 0, route, partial,
               totals);
  if (blocks > 1)
    launch_early(stream, finish_kernel<A>, static_cast<unsigned>(finishers), kFinishWarps * 32, 0, totals, partial,
                 static_cast<int>(blocks), route.tokens, route.experts, route.chosen);
}

constexpr int kBiasThreads = 256;

// Runs as one block. Sums of integers are exact in any order.
__global__ void __launch_bounds__(kBiasThreads)
    update_expert_bias_kernel(float* bias, const int64_t* load, const double* step, int experts, float rate) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kBiasThreads) atomicAdd(&total, static_cast<unsigned long long>(load[e]));
  __syncthreads();
  if (step[step_value::skip] != 0) return;
  for (int e = threadIdx.x; e < experts; e += kBiasThreads) {
    const int64_t missing = static_cast<int64_t>(total) - experts * load[e];  // E (mean - load), exactly
    bias[e] += static_cast<float>((missing > 0) - (missing < 0)) * rate;
  }
}

__global__ void __launch_bounds__(kBiasThreads)
    count_tokens_kernel(int64_t* tokens, const int64_t* counts, int64_t loads, int64_t topk) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < loads; i += kBiasThreads)
    atomicAdd(&total, static_cast<unsigned long long>(counts[i]));
  __syncthreads();
  if (threadIdx.x == 0) *tokens = static_cast<int64_t>(total) / topk;
}

constexpr int kBackwardThreads = 256, kBackwardWarps = kBackwardThreads / 32;

template <class A>
struct RouteBackward {
  A* dlogits;                         // [T, E]
  const A *dweights, *dbalance, *dz;  // [T, K], [1], [1], or null
  const A* dprobs;                    // [E], or null
  const A *weights, *probs, *lse;     // [T, K], [T, E], [T]
  const A* logits;                    // [T, E], or null
  const int32_t* ids;                 // [T, K]
  const int64_t* counts;              // [B, E]
  int64_t tokens;                     // of this part
  int64_t tokens_of_all;              // over which the losses are means, if there is no padding
  const int64_t* counted;             // [1]: the same number if there is padding, or null
  int64_t loads;                      // B E
  uint32_t length;                    // the part's tokens in each of the B sequences
  int experts, chosen;
  Scores scores;
  bool divides;  // from Scoring
  A scaling;
};

// Adds each choice's value to that of its expert; lane l holds choices l, l + 32.
template <class A, int kPer, int kSlots>
__device__ __forceinline__ void add_chosen(A (&d)[kPer], const int32_t (&ids)[kSlots], const A (&values)[kSlots],
                                           int chosen) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    for (int k = 0; k < min(chosen - 32 * s, 32); ++k) {
      const int id = __shfl_sync(kAllLanes, ids[s], k);
      const A value = __shfl_sync(kAllLanes, values[s], k);
#pragma unroll
      for (int j = 0; j < kPer; ++j)
        if (id == lane + 32 * j) d[j] += value;
    }
}

// The two functions below finish a token's backward; d is the gradient of the losses with respect to its probs.
template <class A, int kPer, int kSlots>
__device__ __forceinline__ void softmax_backward(const RouteBackward<A>& route, int64_t token, const A (&p)[kPer],
                                                 A (&d)[kPer], const int32_t (&ids)[kSlots], const A (&weights)[kSlots],
                                                 A (&dweights)[kSlots], A z_scale) {
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  if (route.scores == Scores::softmax) add_chosen(d, ids, dweights, K);
  A mean = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) mean += p[j] * d[j];
  mean = warp_sum(mean);
#pragma unroll
  for (int j = 0; j < kPer; ++j) d[j] = p[j] * (d[j] - mean + z_scale);
  if (route.scores == Scores::softmax_of_chosen) {
    A mean_chosen = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) mean_chosen += weights[s] * dweights[s];
    mean_chosen = warp_sum(mean_chosen);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) dweights[s] = weights[s] * (dweights[s] - mean_chosen);
    add_chosen(d, ids, dweights, K);
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (lane + 32 * j < E) route.dlogits[token * E + lane + 32 * j] = d[j];
}

template <Scores kScores, class A, int kPer, int kSlots>
__device__ __forceinline__ void each_backward(const RouteBackward<A>& route, int64_t token, A (&d)[kPer],
                                              const int32_t (&ids)[kSlots], const A (&weights)[kSlots],
                                              A (&dweights)[kSlots], A z_scale) {
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  A logits[kPer], s[kPer], sum = 0, mean = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    logits[j] = e < E ? route.logits[token * E + e] : -std::numeric_limits<A>::infinity();
    sum += s[j] = e < E ? score_each<kScores>(logits[j]) : A(0);
  }
  sum = warp_sum(sum) + A(kNoScores);
#pragma unroll
  for (int j = 0; j < kPer; ++j) mean += s[j] / sum * d[j];
  mean = warp_sum(mean);
#pragma unroll
  for (int j = 0; j < kPer; ++j) d[j] = (d[j] - mean) / sum;
  if (route.divides && route.dweights) {
    A mean_chosen = 0, chosen[kSlots];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      mean_chosen += weights[i] * dweights[i];
      chosen[i] = ids[i] >= 0 ? route.logits[token * E + ids[i]] : A(0);
    }
    mean_chosen = warp_sum(mean_chosen);
    const A scale = each_scale<kScores>(chosen, K, true);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) dweights[i] = (dweights[i] - mean_chosen) * scale;
  }
  add_chosen(d, ids, dweights, K);
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (lane + 32 * j < E)
      route.dlogits[token * E + lane + 32 * j] =
          d[j] * slope_each<kScores>(logits[j], s[j]) + z_scale * exp(logits[j] - route.lse[token]);
}

template <class A, int kPer, Scores kScores>
__global__ void __launch_bounds__(kBackwardThreads) route_backward_kernel(RouteBackward<A> route) {
  constexpr bool kEach = scores_each_alone(kScores);
  constexpr int kSlots = kMostChosen / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kBackwardWarps + threadIdx.x / 32;
  if (token >= route.tokens) return;
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  if (route.counted && route.ids[token * K] < 0) {  // padding
    for (int e = lane; e < E; e += 32) route.dlogits[token * E + e] = 0;
    return;
  }
  const auto tokens = static_cast<A>(route.counted ? *route.counted : route.tokens_of_all);
  A balance_scale = route.dbalance ? *route.dbalance * A(route.loads) / (tokens * tokens * A(K)) : A(0);
  const A z_scale = route.dz ? *route.dz * 2 * route.lse[token] / tokens : A(0);
  const int64_t* counts = route.counts + static_cast<int64_t>(static_cast<uint32_t>(token) / route.length) * E;
  if (route.counted && route.dbalance) {  // divided by the tokens of the row's own sequence
    A own = 0;
    for (int e = lane; e < E; e += 32) own += A(counts[e]);
    own = warp_sum(own) / A(K);
    balance_scale = own > 0 ? *route.dbalance * A(E) * A(E) / (A(route.loads) * own * own * A(K)) : A(0);
  }
  [[maybe_unused]] A p[kPer];
  A d[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    if constexpr (!kEach) p[j] = e < E ? route.probs[token * E + e] : A(0);
    d[j] = e < E ? balance_scale * A(counts[e]) : A(0);
    if (e < E && route.dprobs) d[j] += route.dprobs[e];
  }
  int32_t ids[kSlots];
  A weights[kSlots], dweights[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int64_t at = token * K + lane + 32 * s;
    const bool real = lane + 32 * s < K && route.dweights;
    ids[s] = real ? route.ids[at] : -1;
    weights[s] = real ? route.weights[at] / route.scaling : A(0);
    dweights[s] = real ? route.dweights[at] * route.scaling : A(0);
  }
  if constexpr (kEach)
    each_backward<kScores>(route, token, d, ids, weights, dweights, z_scale);
  else
    softmax_backward(route, token, p, d, ids, weights, dweights, z_scale);
}

}  // namespace

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const int64_t E = logits.size(1), K = out.ids.size(1);
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    dispatch_experts(E, K, [&]<int kPer>() {
      const Route<A> of_tokens{.logits = ptr<A>(logits),
                               .ids = ptr<int32_t>(out.ids),
                               .weights = ptr<A>(out.weights),
                               .probs = ptr<A>(out.probs),
                               .lse = ptr<A>(out.lse),
                               .sequence_ids = ptr<const int32_t>(out.sequence_ids),
                               .tokens = logits.size(0),
                               .per_block = 0,
                               .experts = static_cast<int>(E),
                               .chosen = static_cast<int>(K),
                               .scores = scoring.scores,
                               .divides = scoring.divides(K),
                               .scaling = static_cast<A>(scoring.scaling)};
      dispatch_scores(scoring.scores, [&]<Scores kScores>() { route<A, kPer, kScores>(stream, out, of_tokens); });
    });
  });
}

void count_tokens(Stream& stream, const Tensor& tokens, const Tensor& counts, int64_t topk) {
  count_tokens_kernel<<<1, kBiasThreads, 0, native(stream)>>>(ptr<int64_t>(tokens), ptr<const int64_t>(counts),
                                                              counts.elements(), topk);
}

void update_expert_bias(Stream& stream, const Tensor& bias, const Tensor& load, const Tensor& step, double rate) {
  update_expert_bias_kernel<<<1, kBiasThreads, 0, native(stream)>>>(
      ptr<float>(bias), ptr<const int64_t>(load), ptr<const double>(step), static_cast<int>(bias.elements()),
      static_cast<float>(rate));
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     const Scoring& scoring, int parts) {
  const int64_t T = dlogits.size(0), E = dlogits.size(1), K = out.ids.size(1);
  if (T == 0) return;
  assert(T <= std::numeric_limits<uint32_t>::max());
  const int64_t loads = out.counts.elements();
  const auto blocks = static_cast<unsigned>((T + kBackwardWarps - 1) / kBackwardWarps);
  dispatch_accumulator(dlogits.dtype(), [&]<class A>() {
    const RouteBackward<A> route{.dlogits = ptr<A>(dlogits),
                                 .dweights = ptr<A>(gradients.weights),
                                 .dbalance = ptr<A>(gradients.balance),
                                 .dz = ptr<A>(gradients.z),
                                 .dprobs = ptr<A>(gradients.probs),
                                 .weights = ptr<A>(out.weights),
                                 .probs = ptr<A>(out.probs),
                                 .lse = ptr<A>(out.lse),
                                 .logits = ptr<A>(out.logits),
                                 .ids = ptr<int32_t>(out.ids),
                                 .counts = ptr<int64_t>(out.counts),
                                 .tokens = T,
                                 .tokens_of_all = T * parts,
                                 .counted = ptr<const int64_t>(out.tokens),
                                 .loads = loads,
                                 .length = static_cast<uint32_t>(T / (loads / E)),
                                 .experts = static_cast<int>(E),
                                 .chosen = static_cast<int>(K),
                                 .scores = scoring.scores,
                                 .divides = scoring.divides(K),
                                 .scaling = static_cast<A>(scoring.scaling)};
    dispatch_experts(E, K, [&]<int kPer>() {
      dispatch_scores(scoring.scores, [&]<Scores kScores>() {
        route_backward_kernel<A, kPer, kScores><<<blocks, kBackwardThreads, 0, native(stream)>>>(route);
      });
    });
  });
}

}  // namespace witan::kernels::cuda
