// Hot experts computed on several ranks (moe_replicated_experts): in each layer and micro-batch, experts of ranks that
// are sent more rows than others are copied to ranks that are sent fewer, which compute some ranks' assignments to them
// and return the gradients. Every row is multiplied by the weights that it would have met, so that nothing changes but
// where (kernels/moe/expert_replicas.h has the choice, ops/experts/expert_replicas.h the copies).
#pragma once

#include "witan/moe/config.h"
#include "witan/moe/routing.h"

namespace witan {

// The slots of each of `ranks` ranks: as many as asked for, but no more than there are experts of other ranks, or than
// ranks that reach each other's memory can tell apart (PeerMemory::kMostExperts). One rank has none.
int64_t replica_slots(const MoeConfig& config, int64_t ranks);

// The routing with experts' places for experts, chosen from what all ranks of the expert axis have for each expert in
// this very micro-batch; `slots` > 0 on each rank. Ranks that have features of the same experts choose alike, by the
// tokens of them all. A collective of `group`, the expert axis, and of `expert_tensor`, which may be null.
Routing place_replicas(Stream& stream, const Routing& routing, int64_t slots, Group& group, Group* expert_tensor);

}  // namespace witan
