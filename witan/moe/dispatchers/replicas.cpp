#include "witan/moe/dispatchers/replicas.h"

#include <algorithm>

#include "witan/comm/peer_memory.h"

namespace witan {

int64_t replica_slots(const MoeConfig& config, int64_t ranks) {
  const int64_t E = config.num_experts, wanted = config.moe_replicated_experts;
  if (ranks == 1) return 0;
  const int64_t told_apart = (PeerMemory::kMostExperts - E) / ranks;
  return std::clamp<int64_t>(std::min(wanted, E - E / ranks), 0, std::max<int64_t>(told_apart, 0));
}

Routing place_replicas(Stream& stream, const Routing& routing, int64_t slots, Group& group, Group* expert_tensor) {
  const int64_t R = group.size(), E = routing.kept.elements(), S = slots;
  const Tensor counts = stream.empty({R, E}, DType::i64);
  group.all_gather(stream, counts, routing.kept.reshape({1, E}));
  if (expert_tensor) expert_tensor->all_reduce(stream, counts);
  Routing placed = routing;
  placed.replicas = {&group, {stream.empty({R, S}, DType::i64), stream.empty({R, E}, DType::i64)}};
  const kernels::ReplicaChoice& choice = placed.replicas.choice;
  kernels::choose_replicas(stream, choice, counts);
  placed.ids = stream.empty_like(routing.ids);
  placed.kept = placed.counts = stream.empty({E + R * S}, DType::i64);
  kernels::place_assignments(stream, {placed.ids, placed.kept}, routing.ids, routing.kept,
                             choice.place.narrow(0, group.rank(), 1).reshape({E}));
  return placed;
}

}  // namespace witan
