// The communicators of one rank, one for each set of axes along which the layout communicates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "witan/comm/cuda.h"
#include "witan/comm/group.h"
#include "witan/comm/threads/threads.h"
#include "witan/nn/axes.h"
#include "witan/parallel/layout.h"

namespace witan {

// Names of groups that do not belong to a set of axes.
inline constexpr const char* kExpertsOfHost = "experts of host";
inline constexpr const char* kExpertsBetweenHosts = "experts between hosts";

class Groups {
 public:
  // make(ranks, name) creates this rank's end of a group.
  using Make = std::function<std::unique_ptr<Group>(const std::vector<int>& ranks, const std::string& name)>;
  Groups(const Layout& layout, int rank, std::unique_ptr<Group> host, const Make& make,
         PeerAccess of_experts = PeerAccess::none);

  const Layout& layout() const { return layout_; }
  int rank() const { return rank_; }  // in the world

  // The ranks along these axes of one view, flattened; axes with one rank make no difference. Only the sets in
  // Layout::group_axes() exist; any other is an internal error.
  Group& over(const Axes& axes) const;
  Group& of(Axis axis) const { return over({axis}); }
  Group& world() const { return over(layout_.world_axes()); }  // all ranks
  // The first and the last stage of this rank's pipeline, which hold a tied embedding; on any other stage the rank
  // alone.
  Group& embedding() const { return *embedding_; }
  // If tokens for experts travel by hosts (moe/dispatchers/host_dispatch.h): the ranks of the expert axis on this host,
  // and those at the same position on every host. Otherwise the whole axis, and the rank alone.
  Group& experts_of_host() const { return of_host_ ? *of_host_ : of(Axis::expert); }
  Group& experts_between_hosts() const { return between_hosts_ ? *between_hosts_ : over({}); }
  PeerAccess experts_access() const { return of_experts_; }  // wanted for experts_of_host()
  Group& host() const { return *host_; }  // all ranks, for CPU tensors regardless of the run's device
  ModelAxes model_axes(const ParallelConfig& config) const;
  std::vector<Group*> all() const;  // all groups except host()

 private:
  Layout layout_;
  int rank_;
  PeerAccess of_experts_;
  std::unique_ptr<Group> host_;
  std::vector<std::pair<Axes, std::unique_ptr<Group>>> groups_;
  std::unique_ptr<Group> embedding_;
  std::unique_ptr<Group> of_host_, between_hosts_;  // nullptr: tokens do not travel by hosts
};

// For streams on the CPU.
Groups make_groups(World& world, const Layout& layout, int rank);
// For this stream, which must outlive the groups, as must its arena. On GPUs groups are connected by NCCL. Those of
// experts use the memory of peers or of the host as `peers` says, and all others except pipelines that of peers if it
// is available. Called by all ranks together.
Groups make_groups(World& world, const Layout& layout, int rank, Stream& stream, Sums sums = Sums::fast,
                   PeerAccess peers = PeerAccess::wanted);
// Groups for planning on the meta device, and for a world of one rank. `peers`: how the planned run exchanges tokens
// for experts, which changes its allocations. `tensor_peers`, `context_peers`: whether the ranks along these axes reach
// each other's memory, which changes only the calls that they make.
Groups make_meta_groups(const Layout& layout, int rank, PeerAccess peers = PeerAccess::none,
                        PeerAccess tensor_peers = PeerAccess::none, PeerAccess context_peers = PeerAccess::none);

}  // namespace witan
