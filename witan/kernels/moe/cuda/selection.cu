// Choices by keys run on a warp per token. Sinkhorn's algorithm runs all iterations in one cooperative kernel.
#include <cooperative_groups.h>

#include <type_traits>

#include "witan/kernels/moe/cuda/choice.cuh"
#include "witan/kernels/moe/cuda/router.cuh"
#include "witan/kernels/moe/selection.h"
#include "witan/kernels/pointwise/cuda/philox.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kSlots = kMostChosen / 32;

// kernels::RandomKeys on the device.
struct Random {
  DropoutDraw draw = {};
  const int32_t* ids = nullptr;
  int64_t length = 0, whole = 0, first = 0, split = 0, second = 0;
  uint64_t site = 0;
  double skew = 0;
  int64_t hot = 0, exponent = 0;  // in units of 2^-16
  bool on = false;

  explicit Random(const RandomKeys& keys)
      : ids(ptr<const int32_t>(keys.ids)),
        site(keys.where.site),
        skew(keys.skew * 0x1p32),
        hot(keys.hot),
        exponent(static_cast<int64_t>(keys.exponent * 0x1p16)),
        on(keys.on()) {
    if (!on) return;
    if (!ids) draw = DropoutDraw(keys.where);
    const DroppedPart& part = keys.where.part;
    length = part.length, whole = part.whole;
    first = part.runs.first, split = part.runs.split, second = part.runs.second;
  }
  __device__ __forceinline__ int64_t number(int64_t token) const {
    if (ids) return ids[token];
    if (length == 0) return token;
    const int64_t row = token / length, at = token - row * length;
    return row * whole + (at < split ? first + at : second + (at - split));
  }
};

template <class A>
struct Select {
  int32_t* ids;                 // [T, K]
  A* weights;                   // [T, K]
  const A *logits, *probs;      // [T, E]
  const int32_t* sequence_ids;  // [T], or null
  const float* narrow_bias;     // [E], or null
  const A* bias;                // [E], or null
  int64_t tokens;
  int experts, chosen, groups, group_topk, group_score_topk;
  Scores keys, scores;
  bool keys_are_scores;  // computed from each logit alone
  bool divides;          // from Scoring
  A scaling;
  Random random;
};

__device__ __forceinline__ uint32_t word(const uint4& words, int w) {
  return w == 0 ? words.x : w == 1 ? words.y : w == 2 ? words.z : words.w;
}

template <class A, int kPer>
__device__ __forceinline__ void draw_keys(A (&keys)[kPer], const Select<A>& how, int64_t token) {
  const int lane = threadIdx.x % 32, E = how.experts;
  DropoutMask words{0, how.random.site, 0, 1};
  if (!how.random.ids) words = how.random.draw.mask();
  const auto first = static_cast<uint64_t>(how.random.number(token)) * static_cast<uint64_t>(1 + (E + 3) / 4);
  const bool skewed = static_cast<double>(words.block(first).x) < how.random.skew;
  const int64_t hot = how.random.hot > 0 ? how.random.hot : how.chosen, exponent = how.random.exponent;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    const uint32_t drawn = word(words.block(first + 1 + e / 4), e % 4) >> 8;
    keys[j] = skewed && e < hot ? A(1 << 25) : exponent > 0 ? A(arrival_key(drawn, e, exponent)) : A(drawn);
  }
}

template <Scores kScores, class A, int kPer>
__device__ __forceinline__ void score_keys(A (&keys)[kPer], const Select<A>& how, int64_t token) {
  const int lane = threadIdx.x % 32, E = how.experts;
  const A* from = (how.keys == Scores::softmax ? how.probs : how.logits) + token * E;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    A key = -std::numeric_limits<A>::infinity();
    if (e < E) {
      key = from[e];
      if constexpr (scores_each_alone(kScores))
        if (how.keys_are_scores) key = score_each<kScores>(key);
      if (how.narrow_bias) key += A(how.narrow_bias[e]);
      if (how.bias) key += how.bias[e];
    }
    keys[j] = key;
  }
}

// Sets the keys outside the best groups to -inf. Lane l holds the sums of groups l, l + 32, …
template <class A, int kPer>
__device__ __forceinline__ void limit_to_groups(A (&keys)[kPer], const Select<A>& how) {
  const int lane = threadIdx.x % 32, E = how.experts, size = E / how.groups;
  A sums[kPer], group[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) sums[j] = -std::numeric_limits<A>::infinity();
  for (int g = 0; g < how.groups; ++g) {
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      group[j] = (lane + 32 * j) / size == g ? keys[j] : -std::numeric_limits<A>::infinity();
    Candidates<A, kPer> candidates(group, E);
    A sum = 0;
    for (int k = 0; k < how.group_score_topk; ++k) {
      A score;
      candidates.take(score);
      sum += score;
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (g == lane + 32 * j) sums[j] = sum;
  }
  Candidates<A, kPer> candidates(sums, how.groups);
  uint32_t allowed = 0;  // bit j: expert lane + 32 j
  for (int k = 0; k < how.group_topk; ++k) {
    A score;
    const int best = candidates.take(score);
#pragma unroll
    for (int j = 0; j < kPer; ++j) allowed |= static_cast<uint32_t>((lane + 32 * j) / size == best) << j;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (!(allowed >> j & 1)) keys[j] = -std::numeric_limits<A>::infinity();
}

// Writes the weights of the experts that a token chose; lane l holds choices l, l + 32.
template <Scores kScores, class A>
__device__ __forceinline__ void weigh(const Select<A>& how, int64_t token, const int32_t (&experts)[kSlots]) {
  const int lane = threadIdx.x % 32, K = how.chosen;
  const A* from = (how.scores == Scores::softmax ? how.probs : how.logits) + token * how.experts;
  A values[kSlots], total = 0;
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    values[s] = lane + 32 * s < K ? from[experts[s]] : -std::numeric_limits<A>::infinity();
  A scale = how.scaling;
  if constexpr (scores_each_alone(kScores)) {
    scale *= each_scale<kScores>(values, K, how.divides);
#pragma unroll
    for (int s = 0; s < kSlots; ++s) values[s] = score_each<kScores>(values[s]);
  } else if (how.scores == Scores::softmax_of_chosen) {
    const A shift = warp_max(max(values[0], values[1]));
#pragma unroll
    for (int s = 0; s < kSlots; ++s) total += values[s] = lane + 32 * s < K ? exp(values[s] - shift) : A(0);
    scale *= 1 / warp_sum(total);
  }
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    if (lane + 32 * s < K) how.weights[token * K + lane + 32 * s] = values[s] * scale;
}

// Writes the choice of a padding row, with a warp.
template <class A>
__device__ __forceinline__ void choose_none(const Select<A>& how, int64_t token) {
  for (int k = threadIdx.x % 32; k < how.chosen; k += 32) {
    how.ids[token * how.chosen + k] = -1;
    how.weights[token * how.chosen + k] = 0;
  }
}

template <Scores kScores, class A, int kPer>
__global__ void __launch_bounds__(kThreads) select_kernel(Select<A> how) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= how.tokens) return;
  const int lane = threadIdx.x % 32;
  if (is_padding(how.sequence_ids, token)) return choose_none(how, token);
  A keys[kPer];
  if (how.random.on)
    draw_keys(keys, how, token);
  else
    score_keys<kScores>(keys, how, token);
  if (how.groups > 1) limit_to_groups(keys, how);
  Candidates<A, kPer> candidates(keys, how.experts);
  int32_t experts[kSlots] = {};
  for (int k = 0; k < how.chosen; ++k) {
    A score;
    const int expert = candidates.take(score);
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      if (k == lane + 32 * s) experts[s] = expert;
  }
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    if (lane + 32 * s < how.chosen) how.ids[token * how.chosen + lane + 32 * s] = experts[s];
  weigh<kScores>(how, token, experts);
}

// Reads the experts from ids into the same lanes as in select_kernel(), so that the sums have the same bits.
template <Scores kScores, class A>
__global__ void __launch_bounds__(kThreads) weigh_kernel(Select<A> how) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= how.tokens) return;
  if (is_padding(how.sequence_ids, token)) return choose_none(how, token);
  const int lane = threadIdx.x % 32;
  int32_t experts[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    experts[s] = lane + 32 * s < how.chosen ? how.ids[token * how.chosen + lane + 32 * s] : 0;
  weigh<kScores>(how, token, experts);
}

constexpr int kMostSinkhornBlocks = 64;  // all of them can be resident at once on any current GPU

template <class A>
struct Sinkhorn {
  A* bias;                      // [E]
  const A* logits;              // [T, E]
  const int32_t* sequence_ids;  // [T], or null
  double* sums;                 // [2][blocks][E] sums over blocks' tokens; iterations alternate between the halves
  int64_t tokens, per_block, iterations;
  double tolerance;
  int experts;
};

// Every block holds the factors of all experts, and computes the next ones from all blocks' sums in the same order. So
// each iteration needs one barrier of the grid, and all blocks stop at the same iteration.
template <class A, int kPer>
__global__ void __launch_bounds__(kThreads) sinkhorn_kernel(Sinkhorn<A> how) {
  __shared__ double factors[kPer * 32], of_block[kPer * 32], of_warps[kWarps];
  __shared__ double change;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = how.experts;
  for (int e = threadIdx.x; e < E; e += kThreads) factors[e] = 1;
  __syncthreads();
  // Every block counts all tokens; the counts are exact integers.
  int64_t real = how.tokens;
  if (how.sequence_ids) {
    double found = 0;
    for (int64_t t = threadIdx.x; t < how.tokens; t += kThreads) found += how.sequence_ids[t] >= 0;
    real = static_cast<int64_t>(block_sum(found, of_warps));
  }
  const int64_t iterations = real == 0 ? 0 : how.iterations;
  const int64_t first = blockIdx.x * how.per_block, end = min(first + how.per_block, how.tokens);
  for (int64_t i = 0; i < iterations; ++i) {
    A mass[kPer] = {};
    for (int64_t token = first + warp; token < end; token += kWarps) {
      if (is_padding(how.sequence_ids, token)) continue;
      A c[kPer], most = -std::numeric_limits<A>::infinity(), sum = 0;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        c[j] = lane + 32 * j < E ? how.logits[token * E + lane + 32 * j] : -std::numeric_limits<A>::infinity();
        most = max(most, c[j]);
      }
      most = warp_max(most);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        c[j] = lane + 32 * j < E ? exp(c[j] - most) : A(0);
        if (lane + 32 * j < E) sum += static_cast<A>(factors[lane + 32 * j]) * c[j];
      }
      const A u = 1 / (static_cast<A>(real) * (warp_sum(sum) + A(kSinkhornEpsilon)));
#pragma unroll
      for (int j = 0; j < kPer; ++j) mass[j] += u * c[j];
    }
    for (int w = 0; w < kWarps; ++w) {  // in order, so that the sum is reproducible
#pragma unroll
      for (int j = 0; warp == w && j < kPer; ++j)
        of_block[lane + 32 * j] = (w > 0 ? of_block[lane + 32 * j] : 0.0) + static_cast<double>(mass[j]);
      __syncthreads();
    }
    double* const half = how.sums + (i % 2) * gridDim.x * E;
    for (int e = threadIdx.x; e < E; e += kThreads) half[static_cast<int64_t>(blockIdx.x) * E + e] = of_block[e];
    cooperative_groups::this_grid().sync();
    double changed = 0;
    for (int e = threadIdx.x; e < E; e += kThreads) {
      double sum = 0;
      for (unsigned b = 0; b < gridDim.x; ++b) sum += __ldcg(half + static_cast<int64_t>(b) * E + e);
      const double next = 1 / (E * (sum + kSinkhornEpsilon));
      changed += abs(next - factors[e]) / E;
      factors[e] = next;
    }
    changed = block_sum(changed, of_warps);
    if (threadIdx.x == 0) change = changed;
    __syncthreads();
    if (change <= how.tolerance) break;
    __syncthreads();
  }
  if (blockIdx.x != 0) return;
  for (int e = threadIdx.x; e < E; e += kThreads) how.bias[e] = static_cast<A>(log(factors[e]));
}

}  // namespace

namespace {

template <class A>
Select<A> select_of(const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection) {
  const Tensor& bias = selection.bias;
  const bool narrow = bias.defined() && bias.dtype() == DType::f32;
  const int64_t K = out.ids.size(1);
  return {.ids = ptr<int32_t>(out.ids),
          .weights = ptr<A>(out.weights),
          .logits = ptr<const A>(logits),
          .probs = ptr<const A>(out.probs),
          .sequence_ids = ptr<const int32_t>(out.sequence_ids),
          .narrow_bias = narrow ? ptr<const float>(bias) : nullptr,
          .bias = narrow ? nullptr : ptr<const A>(bias),
          .tokens = logits.size(0),
          .experts = static_cast<int>(logits.size(1)),
          .chosen = static_cast<int>(K),
          .groups = static_cast<int>(selection.groups),
          .group_topk = static_cast<int>(selection.group_topk),
          .group_score_topk = static_cast<int>(selection.group_score_topk),
          .keys = selection.keys,
          .scores = scoring.scores,
          .keys_are_scores = scores_each_alone(selection.keys),
          .divides = scoring.divides(K),
          .scaling = static_cast<A>(scoring.scaling),
          .random = Random(selection.random)};
}

unsigned blocks_of(int64_t tokens) {
  return static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
}

__global__ void __launch_bounds__(kThreads)
    look_up_kernel(int32_t* out, const float* table, const int32_t* tokens, int64_t count, int K) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = static_cast<int32_t>(table[static_cast<int64_t>(tokens[i / K]) * K + i % K]);
}

}  // namespace

void select_experts(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection) {
  const int64_t T = logits.size(0), E = logits.size(1), K = out.ids.size(1);
  if (T == 0) return;
  assert(!scores_each_alone(selection.keys) || selection.keys == scoring.scores);
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    const Select<A> how = select_of<A>(out, logits, scoring, selection);
    dispatch_experts(E, K, [&]<int kPer>() {
      dispatch_scores(scoring.scores, [&]<Scores kScores>() {
        select_kernel<kScores, A, kPer><<<blocks_of(T), kThreads, 0, native(stream)>>>(how);
      });
    });
  });
}

void look_up_experts(Stream& stream, const Tensor& out, const Tensor& table, const Tensor& tokens) {
  const int64_t count = out.elements();
  if (count == 0) return;
  look_up_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(out), ptr<const float>(table), ptr<const int32_t>(tokens), count, static_cast<int>(out.size(1)));
}

void weigh_chosen(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const int64_t T = logits.size(0);
  if (T == 0) return;
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    const Select<A> how = select_of<A>(out, logits, scoring, {});
    dispatch_scores(scoring.scores, [&]<Scores kScores>() {
      weigh_kernel<kScores, A><<<blocks_of(T), kThreads, 0, native(stream)>>>(how);
    });
  });
}

void sinkhorn_bias(Stream& stream, const Tensor& bias, const Tensor& logits, int64_t iterations, double tolerance,
                   const Tensor& sequence_ids) {
  const int64_t T = logits.size(0), E = logits.size(1);
  const int64_t blocks = std::clamp<int64_t>((T + kWarps - 1) / kWarps, 1, kMostSinkhornBlocks);
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    dispatch_experts(E, 1, [&]<int kPer>() {
      Sinkhorn<A> how{
          .bias = ptr<A>(bias),
          .logits = ptr<const A>(logits),
          .sequence_ids = ptr<const int32_t>(sequence_ids),
          .sums = reinterpret_cast<double*>(stream.scratch(2 * blocks * E * static_cast<int64_t>(sizeof(double)))),
          .tokens = T,
          .per_block = (T + blocks - 1) / blocks,
          .iterations = iterations,
          .tolerance = tolerance,
          .experts = static_cast<int>(E)};
      void* arguments[] = {&how};
      const auto kernel = reinterpret_cast<const void*>(sinkhorn_kernel<A, kPer>);
      // The stream checks for launch errors, as it does after every kernel.
      (void)cudaLaunchCooperativeKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), arguments, 0,
                                        native(stream));
    });
  });
}

}  // namespace witan::kernels::cuda
