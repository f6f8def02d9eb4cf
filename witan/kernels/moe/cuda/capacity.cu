// Assignments are sorted by expert. A block per expert then finds the threshold weight, eight bits at a time (a radix
// select), and keeps the assignments above it and the first of those equal to it.
#include <type_traits>

#include "witan/kernels/moe/capacity.h"
#include "witan/kernels/moe/cuda/expert_order.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kDigits = 256;

// Maps weights to unsigned integers of the same order. They compare as float32; NaN counts as -1, below all
// probabilities.
__device__ __forceinline__ uint32_t key_of(float weight) {
  const uint32_t bits = __float_as_uint((weight != weight ? -1.0f : weight) + 0.0f);  // -0 equals 0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Threshold {
  uint32_t key;
  int64_t equals;  // how many of the assignments with this key are kept
};

struct DigitAbove {
  uint32_t digit, above;  // the digit, and the number of keys with a larger one
};

// The digit of the wanted-th largest key, found by a warp: each lane looks at a run of digits.
__device__ DigitAbove digit_of(const uint32_t* counts, int64_t wanted) {
  constexpr int kRun = kDigits / 32;
  const int lane = threadIdx.x % 32, top = kDigits - 1 - lane * kRun;
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kRun; ++i) mine += counts[top - i];
  uint32_t through = mine;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const uint32_t left = __shfl_up_sync(0xffffffffu, through, apart);
    if (lane >= apart) through += left;
  }
  const int owner = __ffs(__ballot_sync(0xffffffffu, through >= wanted)) - 1;
  DigitAbove found{static_cast<uint32_t>(top), through - mine};
  if (lane == owner)
    while (found.above + counts[found.digit] < wanted) found.above += counts[found.digit--];
  return {__shfl_sync(0xffffffffu, found.digit, owner), __shfl_sync(0xffffffffu, found.above, owner)};
}

// The `most`-th largest of n > most >= 1 keys key(0) … key(n - 1).
template <class KeyAt>
__device__ Threshold find_threshold(int64_t n, int64_t most, const KeyAt& key) {
  __shared__ uint32_t counts[kDigits];
  __shared__ DigitAbove chosen;
  Threshold found{0, most};
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) counts[i] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t k = key(i);
      if ((k & known) == found.key) atomicAdd(counts + (k >> shift & (kDigits - 1)), 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const DigitAbove one = digit_of(counts, found.equals);
      if (threadIdx.x == 0) chosen = one;
    }
    __syncthreads();
    found.key |= chosen.digit << shift;
    found.equals -= chosen.above;
    __syncthreads();
  }
  return found;
}

struct Limit {
  int32_t* kept_ids;      // [T K]
  int64_t* kept_counts;   // [E]
  const int64_t* order;   // [T K] by expert, then number
  const int64_t* counts;  // [E]
  int64_t per_expert;
  DropPolicy policy;
  const int64_t* tokens;  // [1], or null: from Capacity, as are the next two
  int64_t topk;
  double factor;
};

template <class A>
__global__ void __launch_bounds__(kThreads) limit_kernel(Limit limit, const A* weights) {
  __shared__ int64_t sums[kWarps];
  __shared__ int equals_of[kWarps];
  const int e = static_cast<int>(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int64_t begin = 0;
  for (int i = threadIdx.x; i < e; i += kThreads) begin += limit.counts[i];
  begin = block_sum(begin, sums);
  int64_t per_expert = limit.per_expert;
  if (limit.tokens) per_expert = min(per_expert, even_capacity(*limit.tokens, limit.topk, gridDim.x, limit.factor));
  const int64_t n = limit.counts[e], most = min(n, per_expert);
  if (threadIdx.x == 0) limit.kept_counts[e] = most;
  const int64_t* mine = limit.order + begin;
  if (limit.policy == DropPolicy::position || most == n || most == 0) {
    for (int64_t i = threadIdx.x; i < n; i += kThreads) limit.kept_ids[mine[i]] = i < most ? e : -1;
    return;
  }
  const auto key = [&](int64_t i) { return key_of(static_cast<float>(weights[mine[i]])); };
  const Threshold threshold = find_threshold(n, most, key);
  int64_t equals = 0;  // with the threshold's key, before this round
  for (int64_t first = 0; first < n; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const uint32_t k = i < n ? key(i) : 0;
    const bool equal = i < n && k == threshold.key;
    const unsigned in_warp = __ballot_sync(0xffffffffu, equal);
    if (lane == 0) equals_of[warp] = __popc(in_warp);
    __syncthreads();
    int64_t before = equals + __popc(in_warp & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp ? equals_of[w] : 0;
      equals += equals_of[w];
    }
    __syncthreads();
    if (i < n) limit.kept_ids[mine[i]] = k > threshold.key || (equal && before < threshold.equals) ? e : -1;
  }
}

}  // namespace

void limit_to_capacity(Stream& stream, const Assignments& kept, const Tensor& order, const Assignments& all,
                       const Tensor& weights, const Capacity& capacity) {
  const int64_t E = all.counts.elements();
  order_by_expert(stream, {.ids = ptr<int32_t>(all.ids),
                           .counts = ptr<int64_t>(all.counts),
                           .slot = nullptr,
                           .source = ptr<int64_t>(order),
                           .assignments = all.ids.elements(),
                           .rows = order.elements(),
                           .experts = static_cast<int>(E)});
  const Limit limit{.kept_ids = ptr<int32_t>(kept.ids),
                    .kept_counts = ptr<int64_t>(kept.counts),
                    .order = ptr<int64_t>(order),
                    .counts = ptr<int64_t>(all.counts),
                    .per_expert = capacity.per_expert,
                    .policy = capacity.policy,
                    .tokens = ptr<const int64_t>(capacity.tokens),
                    .topk = capacity.topk,
                    .factor = capacity.factor};
  dispatch_accumulator(weights.dtype(), [&]<class A>() {
    limit_kernel<<<static_cast<unsigned>(E), kThreads, 0, native(stream)>>>(limit, ptr<A>(weights));
  });
}

}  // namespace witan::kernels::cuda
