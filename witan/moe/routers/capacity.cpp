#include "witan/moe/routers/capacity.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "witan/comm/context.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/moe/routers/router.h"

namespace witan {

std::vector<RouterStatistic> declare_capacity_statistics(const MoeConfig& config) {
  if (config.moe_expert_capacity_factor == 0 || config.experts_choose()) return {};
  const auto dropped = [config](std::span<const double> counts) {
    const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
    const auto tokens = static_cast<int64_t>(all) / config.moe_router_topk;
    const auto capacity = static_cast<double>(config.expert_capacity(tokens));
    double beyond = 0;
    for (const double count : counts) beyond += std::max(count - capacity, 0.0);
    return all > 0 ? beyond / all : 0;
  };
  using Derived = RouterStatistic::Derived;
  return {{.name = kDroppedShare, .derived = Derived{kExpertCounts, Derived::From::micro_batch, dropped}}};
}

kernels::Capacity capacity_of(const MoeConfig& config, int64_t rows, Tensor tokens) {
  const auto policy = config.moe_token_drop_policy == "probs" ? DropPolicy::probs : DropPolicy::position;
  return {config.expert_capacity(rows), policy, config.capacity_factor(), config.moe_router_topk, std::move(tokens)};
}

namespace ops {
namespace {

// x [A N, K], seen as [A, N, K] -> [N A, K]
Tensor swapped(Stream& stream, const Tensor& x, int64_t A) {
  const int64_t N = x.size(0) / A, K = x.size(1);
  const Tensor y = stream.empty({N, A, K}, x.dtype(), MemoryTag::workspace);
  kernels::swap_blocks(stream, y, x.reshape({A, N, K}));
  return y.reshape({N * A, K});
}

// weights [T, K]
kernels::Assignments limited(Stream& stream, const kernels::Assignments& all, const Tensor& weights,
                             const kernels::Capacity& capacity) {
  kernels::Assignments kept{stream.empty_like(all.ids), stream.empty_like(all.counts)};
  if (capacity.tokens.defined()) stream.copy(kept.ids, all.ids);  // padding's stay -1
  const Tensor order = stream.empty({all.ids.elements()}, DType::i64, MemoryTag::workspace);
  kernels::limit_to_capacity(stream, kept, order, all, weights, capacity);
  return kept;
}

// Limits B sequences [B S, K] in the order of Megatron-LM's stream [S, B, D]: the first token of each sequence, then
// the second of each.
kernels::Assignments limited_by_position(Stream& stream, const kernels::Assignments& all, const Tensor& weights,
                                         const kernels::Capacity& capacity, int64_t B) {
  const int64_t T = all.ids.size(0);
  if (B == 1 || T == B) return limited(stream, all, weights, capacity);
  const auto [ids, counts] =
      limited(stream, {swapped(stream, all.ids, B), all.counts}, swapped(stream, weights, B), capacity);
  kernels::Assignments kept{stream.empty_like(all.ids), counts};
  kernels::swap_blocks(stream, kept.ids.reshape({B, T / B, all.ids.size(1)}), ids.reshape({T / B, B, all.ids.size(1)}));
  return kept;
}

}  // namespace

Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity, Group* parts,
                          int64_t sequences) {
  const int64_t T = routing.ids.size(0), K = routing.ids.size(1), ranks = parts ? parts->size() : 1;
  if (capacity.per_expert >= T * ranks) return routing;  // a token visits an expert at most once
  const Tensor& weights = routing.weights.value();
  routing.capacity = capacity.per_expert;
  if (ranks == 1) {
    const auto [ids, counts] = limited_by_position(stream, {routing.ids, routing.kept}, weights, capacity, sequences);
    routing.ids = ids;
    routing.kept = counts;
    return routing;
  }
  const auto whole = [&](const Tensor& part) {
    return gather_positions(stream, part.reshape({sequences, T / sequences, K}), *parts).reshape({T * ranks, K});
  };
  const kernels::Assignments all{whole(routing.ids), routing.counts};
  const Tensor kept = limited_by_position(stream, all, whole(weights), capacity, sequences).ids;
  routing.ids = own_positions(stream, kept.reshape({sequences, T * ranks / sequences, K}), *parts).reshape({T, K});
  routing.kept = stream.empty_like(routing.counts);
  kernels::count_assignments(stream, routing.kept, routing.ids);
  return routing;
}

}  // namespace ops
}  // namespace witan
