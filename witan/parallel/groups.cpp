#include "witan/parallel/groups.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/meta.h"
#include "witan/comm/peers/host_identity.h"

namespace witan {
namespace {

// Whether ranks of a group may send each other tokens for experts through peer memory.
bool exchanges_rows(const Layout& layout, const std::string& name) {
  return name == (layout.has_expert_hosts() ? kExpertsOfHost : name_of(Axis::expert));
}

// Experts exchange tokens as planned. All other groups take the same memory with and without peers, so that they use
// peer memory wherever they can: tensor-parallel groups for every call, others for the reductions and gathers of
// recorded steps. Context-parallel groups exchange heads and positions, perhaps while NCCL reduces gradients. Pipeline
// stages send and receive through NCCL. Between hosts there is no peer memory.
GroupOptions options_of(const Layout& layout, const std::string& axis, Sums sums, PeerAccess of_experts) {
  if (exchanges_rows(layout, axis))
    return {.sums = sums, .peers = of_experts, .connect_now = of_experts == PeerAccess::none};
  if (axis == kExpertsBetweenHosts) return {.sums = sums, .connect_now = true};
  const bool across_hosts = axis == name_of(Axis::expert);
  if (peers_allowed() != PeersAllowed::all || axis == name_of(Axis::pipeline) || across_hosts) return {.sums = sums};
  if (axis == name_of(Axis::context)) return {.sums = sums, .peers = PeerAccess::moves};
  return {.sums = sums, .peers = PeerAccess::wanted, .peers_in_graphs = axis != name_of(Axis::tensor)};
}

std::unique_ptr<HostGroup> host_group(World& world, int rank) {
  std::vector<int> all_ranks(static_cast<size_t>(world.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  return world.group(rank, all_ranks, "host");
}

}  // namespace

Groups::Groups(const Layout& layout, int rank, std::unique_ptr<Group> host, const Make& make, PeerAccess of_experts)
    : layout_(layout), rank_(rank), of_experts_(of_experts), host_(std::move(host)) {
  for (const Axes& axes : layout.group_axes())
    groups_.emplace_back(axes, make(layout.mesh().ranks(rank, axes), describe(axes)));
  embedding_ = make(layout.embedding_ranks(rank), "embedding");
  if (!layout.has_expert_hosts()) return;
  of_host_ = make(layout.expert_ranks_of_host(rank), kExpertsOfHost);
  between_hosts_ = make(layout.expert_ranks_between_hosts(rank), kExpertsBetweenHosts);
}

Group& Groups::over(const Axes& axes) const {
  const Axes wanted = layout_.mesh().effective(axes);
  const auto found = std::ranges::find(groups_, wanted, &std::pair<Axes, std::unique_ptr<Group>>::first);
  if (found == groups_.end())
    throw Error(ExitCode::internal, cat("this layout has no group for axis ", describe(wanted)));
  return *found->second;
}

ModelAxes Groups::model_axes(const ParallelConfig& config) const {
  ModelAxes axes(of(Axis::expert));
  if (layout_.has_expert_hosts()) axes.expert_hosts = {between_hosts_.get(), of_host_.get()};
  axes.expert_tensor = &of(Axis::expert_tensor);
  axes.tensor = &of(Axis::tensor);
  axes.context = &of(Axis::context);
  axes.context_exchange = config.context_exchange();
  axes.sequence_parallel = config.sequence_parallel;
  axes.values_later = layout_.shards_values();
  axes.loss_parallel = config.loss_parallel;
  return axes;
}

std::vector<Group*> Groups::all() const {
  std::vector<Group*> all;
  for (const auto& [axes, group] : groups_) all.push_back(group.get());
  if (embedding_->size() > 1) all.push_back(embedding_.get());
  for (Group* group : {of_host_.get(), between_hosts_.get()})
    if (group != nullptr) all.push_back(group);
  return all;
}

Groups make_groups(World& world, const Layout& layout, int rank) {
  return {layout, rank, host_group(world, rank), [&](const std::vector<int>& ranks, const std::string& axis) {
            return std::unique_ptr<Group>(world.group(rank, ranks, axis));
          }};
}

Groups make_groups(World& world, const Layout& layout, int rank, Stream& stream, Sums sums, PeerAccess peers) {
  if (!stream.is_cuda()) return make_groups(world, layout, rank);
  auto host = host_group(world, rank);
  const auto watch = cuda::watch(stream, *host);
  return {layout, rank, std::move(host),
          [&](const std::vector<int>& ranks, const std::string& axis) {
            return cuda::make_group(world.group(rank, ranks, axis), stream, watch,
                                    options_of(layout, axis, sums, peers));
          },
          peers};
}

Groups make_meta_groups(const Layout& layout, int rank, PeerAccess peers, PeerAccess tensor_peers,
                        PeerAccess context_peers) {
  const auto end = [&](const std::vector<int>& ranks, const std::string& axis) -> std::unique_ptr<Group> {
    const auto here = std::ranges::find(ranks, rank) - ranks.begin();
    return std::make_unique<MetaGroup>(static_cast<int>(ranks.size()), static_cast<int>(here), axis,
                                       exchanges_rows(layout, axis)     ? peers
                                       : axis == name_of(Axis::tensor)  ? tensor_peers
                                       : axis == name_of(Axis::context) ? context_peers
                                                                        : PeerAccess::none);
  };
  return {layout, rank, std::make_unique<MetaGroup>(layout.mesh().world_size(), rank, "host"), end, peers};
}

}  // namespace witan
