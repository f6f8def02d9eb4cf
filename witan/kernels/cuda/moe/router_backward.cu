#include <cassert>
#include <limits>
#include <type_traits>

#include "witan/kernels/cuda/moe/router.cuh"
#include "witan/kernels/router.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class A>
struct RouteBackward {
  A* dlogits;                         // [T, E]
  const A *dweights, *dbalance, *dz;  // [T, K], [1], [1], or null
  const A *weights, *probs, *lse;     // [T, K], [T, E], [T]
  const int32_t* ids;                 // [T, K]
  const int64_t* counts;              // [B, E]
  int64_t tokens;                     // of this part
  int64_t tokens_of_all;              // that the losses are of
  int64_t loads;                      // B E
  uint32_t length;                    // of the part's tokens, of each of the B sequences
  int experts, chosen;
  Scores scores;
};

// Adds the value of each choice, of which lane l holds l, l + 32, to its expert's.
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

template <class A, int kPer>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(RouteBackward<A> route) {
  constexpr int kSlots = kMostChosen / 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= route.tokens) return;
  const int lane = threadIdx.x % 32, E = route.experts, K = route.chosen;
  const auto tokens = static_cast<A>(route.tokens_of_all);
  const A balance_scale = route.dbalance ? *route.dbalance * A(route.loads) / (tokens * tokens * A(K)) : A(0);
  const A z_scale = route.dz ? *route.dz * 2 * route.lse[token] / tokens : A(0);
  const int64_t* counts = route.counts + static_cast<int64_t>(static_cast<uint32_t>(token) / route.length) * E;
  A p[kPer], d[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int e = lane + 32 * j;
    p[j] = e < E ? route.probs[token * E + e] : A(0);
    d[j] = e < E ? balance_scale * A(counts[e]) : A(0);
  }
  int32_t ids[kSlots];
  A weights[kSlots], dweights[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const int64_t at = token * K + lane + 32 * s;
    const bool real = lane + 32 * s < K && route.dweights;
    ids[s] = real ? route.ids[at] : -1;
    weights[s] = real ? route.weights[at] : A(0);
    dweights[s] = real ? route.dweights[at] : A(0);
  }
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

}  // namespace

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     Scores scores, int parts) {
  const int64_t T = dlogits.size(0), E = dlogits.size(1), K = out.ids.size(1);
  if (T == 0) return;
  assert(T <= std::numeric_limits<uint32_t>::max());
  const int64_t loads = out.counts.elements();
  const auto blocks = static_cast<unsigned>((T + kWarps - 1) / kWarps);
  dispatch_device(dlogits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, __nv_bfloat16>) {
      const RouteBackward<A> route{.dlogits = ptr<A>(dlogits),
                                   .dweights = ptr<A>(gradients.weights),
                                   .dbalance = ptr<A>(gradients.balance),
                                   .dz = ptr<A>(gradients.z),
                                   .weights = ptr<A>(out.weights),
                                   .probs = ptr<A>(out.probs),
                                   .lse = ptr<A>(out.lse),
                                   .ids = ptr<int32_t>(out.ids),
                                   .counts = ptr<int64_t>(out.counts),
                                   .tokens = T,
                                   .tokens_of_all = T * parts,
                                   .loads = loads,
                                   .length = static_cast<uint32_t>(T / (loads / E)),
                                   .experts = static_cast<int>(E),
                                   .chosen = static_cast<int>(K),
                                   .scores = scores};
      dispatch_experts(
          E, K, [&]<int kPer>() { route_backward_kernel<A, kPer><<<blocks, kThreads, 0, native(stream)>>>(route); });
    }
  });
}

}  // namespace witan::kernels::cuda
