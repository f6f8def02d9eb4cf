// Whether experts' rows, and what layers gather, go straight into the memory of other ranks' GPUs.
#pragma once

#include <string>

#include "witan/comm/peer_memory.h"
#include "witan/parallel/config.h"
#include "witan/parallel/groups.h"

namespace witan {

// What the rank's group of experts will find: GPUs of one host may reach each other's memory, be their ranks threads or
// processes. Those that are not here are taken to; what was tried out (peer_islands) is believed.
PeerAccess peers_of(const ParallelConfig& config, const Layout& layout, int rank);
// The same of tensor-parallel ranks, whose collectives within layers go the same way.
PeerAccess tensor_peers_of(const ParallelConfig& config, const Layout& layout, int rank);
// Of context-parallel ranks, which exchange heads so.
PeerAccess context_peers_of(const ParallelConfig& config, const Layout& layout, int rank);

// Says where hierarchical_expert_parallel_size takes ranks for those of one host that are known to be on several, so
// that rows cross the network more often than they need to; empty: nothing is known to be wrong.
std::string split_expert_host(const ParallelConfig& config, const Layout& layout);

// Throws DeviceError where the groups do without, though the run was planned with it.
void require_peers(const Groups& groups, PeerAccess planned);

}  // namespace witan
