// The whole copies of a model that a layout has, as a ring: ranks that stand at the same place in different copies hold
// the same values and, given the same micro-batches, compute the same bits.
#pragma once

#include "witan/parallel/layout.h"

namespace witan {

class ReplicaRing {
 public:
  // A copy has as few data-parallel ranks as have all experts among them. The layout must outlive it.
  explicit ReplicaRing(const Layout& layout);

  int replicas() const { return replicas_; }
  // The rank at the place of `rank` in the copy that is so many further on in the ring; back for a negative number.
  int rank_after(int rank, int steps) const;

 private:
  const Layout& layout_;
  int stage_ranks_, copy_ranks_, replicas_;  // of a stage of the pipeline: its ranks, those of one copy
};

}  // namespace witan
