// Decides whether tokens for experts, and what layers gather, are written straight into the memory of other ranks'
// GPUs, or tokens travel through the host's.
#pragma once

#include <string>

#include "witan/comm/peer_memory.h"
#include "witan/parallel/config.h"
#include "witan/parallel/groups.h"

namespace witan {

// The access of the rank's expert group: GPUs of one host can reach each other's memory, whether their ranks are
// threads or processes; where they cannot, they have memory of their host together. GPUs that are not here are assumed
// to reach each other; tested access (peer_islands, host_islands) takes precedence.
PeerAccess peers_of(const ParallelConfig& config, const Layout& layout, int rank);
// Access among tensor-parallel ranks, whose collectives within layers use peer memory.
PeerAccess tensor_peers_of(const ParallelConfig& config, const Layout& layout, int rank);
// Access among context-parallel ranks, which exchange heads through peer memory.
PeerAccess context_peers_of(const ParallelConfig& config, const Layout& layout, int rank);

// A warning if hierarchical_expert_parallel_size treats ranks on different hosts as one host, so that tokens cross the
// network more often than necessary; empty if no problem is known.
std::string split_expert_host(const ParallelConfig& config, const Layout& layout);

// Throws DeviceError if the groups have no peer memory, though the run was planned with it.
void require_peers(const Groups& groups, PeerAccess planned);

}  // namespace witan
