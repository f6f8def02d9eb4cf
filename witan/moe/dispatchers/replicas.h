// Hot experts are computed on several ranks (moe_replicated_experts): in each layer and micro-batch, experts of ranks
// that receive more rows than others are copied to ranks that receive fewer. These compute some ranks' assignments to
// the experts and return the gradients. Every row is multiplied by the same weights as without replicas, on another
// rank (kernels/moe/expert_replicas.h makes the choice, ops/experts/expert_replicas.h the copies).
#pragma once

#include "witan/moe/config.h"
#include "witan/moe/routing.h"

namespace witan {

// The slots of each of `ranks` ranks: as many as configured, but no more than other ranks have experts, or than ranks
// that reach each other's memory can address (PeerMemory::kMostExperts). A single rank has none.
int64_t replica_slots(const MoeConfig& config, int64_t ranks);

// Returns the routing with places instead of experts, chosen by all ranks' assignments of this micro-batch to each
// expert; `slots` > 0 on each rank. Ranks that share the features of experts choose alike, by all their tokens. A
// collective of `group`, the expert axis, and of `expert_tensor`, which may be null.
Routing place_replicas(Stream& stream, const Routing& routing, int64_t slots, Group& group, Group* expert_tensor);

}  // namespace witan
