// The groups of one rank, an end of each axis of the layout.
#pragma once

#include <functional>
#include <memory>

#include "witan/comm/cuda.h"
#include "witan/comm/group.h"
#include "witan/comm/threads.h"
#include "witan/parallel/layout.h"

namespace witan {

struct Groups {
  Layout layout;
  int rank;                                 // of the world
  std::unique_ptr<Group> replicate;         // all ranks: what is no expert is the same on all of them
  std::unique_ptr<Group> expert;            // ranks that share one set of experts
  std::unique_ptr<Group> expert_replicate;  // ranks that hold the same experts
  std::unique_ptr<Group> host;              // all ranks, for tensors on the CPU, whatever the others are for

  // One of the three axes above; any other is an internal error.
  Group& of(Axis axis) const;
};

// For streams on the CPU.
Groups make_groups(World& world, const Layout& layout, int rank);
// For this stream, which must outlive the groups, as its arena must: on GPUs they are connected by NCCL. All ranks
// together.
Groups make_groups(World& world, const Layout& layout, int rank, Stream& stream, Sums sums = Sums::fast);
// Groups without peers: for planning on the meta device, and for a world of one rank.
// `peers` says whether the run they stand for exchanges experts' rows through peer memory: it allocates otherwise then.
Groups make_meta_groups(const Layout& layout, int rank, PeerAccess peers = PeerAccess::none);

}  // namespace witan
