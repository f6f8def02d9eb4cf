#include "witan/parallel/replica_ring.h"

#include <numeric>

namespace witan {

// Within a stage, the ranks of a sample and the ranks that have all experts are both consecutive (comm/mesh.h).
ReplicaRing::ReplicaRing(const Layout& layout)
    : layout_(layout), stage_ranks_(layout.world_size() / layout.mesh().size(Axis::pipeline)) {
  const Mesh& mesh = layout.mesh();
  copy_ranks_ = std::lcm(mesh.size(Axis::context) * mesh.size(Axis::tensor),
                         mesh.size(Axis::expert) * mesh.size(Axis::expert_tensor));
  replicas_ = stage_ranks_ / copy_ranks_;
}

int ReplicaRing::rank_after(int rank, int steps) const {
  const int stage = rank / stage_ranks_ * stage_ranks_, place = rank - stage;
  const int forward = (steps % replicas_ + replicas_) % replicas_;
  return stage + (place + forward * copy_ranks_) % stage_ranks_;
}

}  // namespace witan
