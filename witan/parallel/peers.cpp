#include "witan/parallel/peers.h"

#include <algorithm>
#include <vector>

#include "witan/comm/peers/peer_place.h"
#include "witan/tensor/cuda.h"

namespace witan {

namespace {

PeerAccess peers_along(Axis axis, const ParallelConfig& config, const Layout& layout, int rank) {
  if (!config.on_gpu() || !config.peer_memory) return PeerAccess::none;
  const std::vector<int> ranks = layout.mesh().ranks(rank, axis);
  if (ranks.size() > static_cast<size_t>(PeerMemory::kMostRanks)) return PeerAccess::none;
  if (config.peer_islands.size() == static_cast<size_t>(layout.world_size())) {
    const auto island = [&](int of) { return config.peer_islands[static_cast<size_t>(of)]; };
    return std::ranges::all_of(ranks, [&](int other) { return island(other) == island(rank); }) ? PeerAccess::wanted
                                                                                                : PeerAccess::none;
  }
  if (config.ranks_per_process > 0 || layout.world_size() > cuda::devices()) return PeerAccess::wanted;
  const bool all = std::ranges::all_of(ranks, [&](int from) {
    return std::ranges::all_of(ranks, [&](int to) { return cuda::can_access_peer(from, to); });
  });
  return all ? PeerAccess::wanted : PeerAccess::none;
}

}  // namespace

PeerAccess peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  return peers_along(Axis::expert, config, layout, rank);
}

PeerAccess tensor_peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  return peers_along(Axis::tensor, config, layout, rank);
}

PeerAccess context_peers_of(const ParallelConfig& config, const Layout& layout, int rank) {
  return peers_along(Axis::context, config, layout, rank);
}

void require_peers(const Groups& groups, PeerAccess planned) {
  const Group& expert = groups.of(Axis::expert);
  if (planned == PeerAccess::none || expert.size() == 1) return;
  require<DeviceError>(groups.of(Axis::expert).peers() != nullptr, "axis ", expert.name(),
                       ": its GPUs do not reach each other's memory, though the run was planned with it; set ",
                       kPeersVariable, "=0 for all ranks, so that tokens for experts are exchanged through NCCL");
}

}  // namespace witan
