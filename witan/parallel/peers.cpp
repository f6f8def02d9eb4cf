#include "witan/parallel/peers.h"

#include <algorithm>
#include <vector>

#include "witan/comm/peers/host_identity.h"
#include "witan/tensor/cuda.h"

namespace witan {

namespace {

// Whether the ranks have the same number in `islands`, which a run has one of for each rank.
bool together(const std::vector<int>& ranks, const std::vector<int>& islands, int rank) {
  const auto island = [&](int of) { return islands[static_cast<size_t>(of)]; };
  return std::ranges::all_of(ranks, [&](int other) { return island(other) == island(rank); });
}

PeerAccess peers_among(const std::vector<int>& ranks, const ParallelConfig& config, const Layout& layout, int rank) {
  if (!config.on_gpu() || !config.peer_memory || config.through_host) return PeerAccess::none;
  if (ranks.size() > static_cast<size_t>(PeerMemory::kMostRanks)) return PeerAccess::none;
  if (config.peer_islands.size() == static_cast<size_t>(layout.world_size()))
    return together(ranks, config.peer_islands, rank) ? PeerAccess::wanted : PeerAccess::none;
  if (config.ranks_per_process > 0 || layout.world_size() > cuda::devices()) return PeerAccess::wanted;
  const bool all = std::ranges::all_of(ranks, [&](int from) {
    return std::ranges::all_of(ranks, [&](int to) { return cuda::can_access_peer(from, to); });
  });
  return all ? PeerAccess::wanted : PeerAccess::none;
}

// Threads of a process do. Processes are assumed to only where nothing else is allowed and nobody has tried.
bool share_host_memory(const std::vector<int>& ranks, const ParallelConfig& config, const Layout& layout, int rank) {
  if (!config.on_gpu() || !config.peer_memory || ranks.size() > static_cast<size_t>(PeerMemory::kMostRanks))
    return false;
  if (config.host_islands.size() == static_cast<size_t>(layout.world_size()))
    return together(ranks, config.host_islands, rank);
  return config.through_host || config.ranks_per_process == 0;
}

}  // namespace

// Rows that go to each host once travel between hosts with a bounded capacity, which the ranks of a host then have too.
PeerAccess peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  const std::vector<int> ranks = layout.expert_ranks_of_host(rank);
  const PeerAccess peers = peers_among(ranks, config, layout, rank);
  if (peers != PeerAccess::none || ranks.size() == 1 || layout.has_expert_hosts()) return peers;
  return share_host_memory(ranks, config, layout, rank) ? PeerAccess::host : PeerAccess::none;
}

PeerAccess tensor_peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  return peers_among(layout.mesh().ranks(rank, Axis::tensor), config, layout, rank);
}

PeerAccess context_peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  return peers_among(layout.mesh().ranks(rank, Axis::context), config, layout, rank);
}

std::string split_expert_host(const ParallelConfig& config, const Layout& layout) {
  const std::vector<int>& islands = config.peer_islands;
  if (!layout.has_expert_hosts() || islands.size() != static_cast<size_t>(layout.world_size())) return "";
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const int other : layout.expert_ranks_of_host(rank)) {
      if (islands[static_cast<size_t>(other)] == islands[static_cast<size_t>(rank)]) continue;
      return cat("hierarchical_expert_parallel_size = ", config.hierarchical_expert_parallel_size, " takes ranks ",
                 rank, " and ", other,
                 " for those of one host, but their GPUs do not reach each other's memory: set it to the number of "
                 "expert-parallel ranks of a host");
    }
  }
  return "";
}

void require_peers(const Groups& groups, PeerAccess planned) {
  Group& experts = groups.experts_of_host();
  if (planned == PeerAccess::none || planned == PeerAccess::host || experts.size() == 1) return;
  require<DeviceError>(experts.peers() != nullptr, "axis ", experts.name(),
                       ": its GPUs do not reach each other's memory, though the run was planned with it; set ",
                       kPeersVariable, "=0 for all ranks, so that tokens for experts are exchanged through NCCL");
}

}  // namespace witan
