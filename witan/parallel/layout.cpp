#include "witan/parallel/layout.h"

#include <algorithm>
#include <numeric>

namespace witan {
namespace {

MeshSizes sizes_of(const ParallelConfig& config, int world, int64_t num_experts) {
  config.validate(world, num_experts);
  MeshSizes sizes;
  sizes.expert = config.expert_ranks(world, num_experts);
  sizes.replicate = world;
  sizes.expert_replicate = world / sizes.expert;
  if (config.use_distributed_optimizer) {
    const auto instances = static_cast<int>(config.num_distributed_optimizer_instances);
    sizes.shard = world / instances;
    sizes.replicate = instances;
    // Fewer where experts have fewer replicas than there are instances.
    const int of_experts = std::gcd(sizes.expert_replicate, instances);
    sizes.expert_shard = sizes.expert_replicate / of_experts;
    sizes.expert_replicate = of_experts;
  }
  return sizes;
}

}  // namespace

Layout::Layout(const ParallelConfig& config, int world, int64_t num_experts)
    : mesh_(sizes_of(config, world, num_experts)) {}

std::vector<std::pair<Axis, Placement>> Layout::placements(const ParameterSpec& spec) const {
  constexpr Placement replicas = Placement::replicate(Placement::Uses::own);  // each works on samples of its own
  if (spec.expert)
    return {{Axis::expert_replicate, replicas}, {Axis::expert_shard, replicas}, {Axis::expert, Placement::shard(0)}};
  return {{Axis::replicate, replicas}, {Axis::shard, replicas}};
}

Axes Layout::world_axes() const {
  return mesh_.effective({Axis::replicate, Axis::shard});
}

Axes Layout::data_axes() const {
  return mesh_.effective({Axis::replicate, Axis::shard});
}

int Layout::data_ranks() const {
  return mesh_.size(Axis::replicate) * mesh_.size(Axis::shard);
}

int Layout::data_rank(int rank) const {
  return mesh_.coordinate(rank, Axis::replicate) * mesh_.size(Axis::shard) + mesh_.coordinate(rank, Axis::shard);
}

std::vector<Axes> Layout::group_axes() const {
  std::vector<Axes> all = {{}};
  for (const Axes& wanted : {world_axes(), Axes{Axis::replicate}, Axes{Axis::shard}, Axes{Axis::expert},
                             Axes{Axis::expert_replicate}, Axes{Axis::expert_shard},
                             Axes{Axis::expert_replicate, Axis::expert_shard}, Axes{Axis::expert_shard, Axis::expert}})
    if (const Axes axes = mesh_.effective(wanted); std::ranges::find(all, axes) == all.end()) all.push_back(axes);
  return all;
}

Axes Layout::gradient_axes(const ParameterSpec& spec) const {
  Axes axes;
  for (const auto& [axis, placement] : placements(spec))
    if (placement.of_gradient() == Placement::partial()) axes.push_back(axis);
  return mesh_.effective(axes);
}

ParameterSpec::Part Layout::part(const ParameterSpec& spec, int rank) const {
  const Axis cut = spec.expert ? Axis::expert_tensor : Axis::tensor;
  return spec.part(mesh_.size(Axis::expert), mesh_.coordinate(rank, Axis::expert), mesh_.size(cut),
                   mesh_.coordinate(rank, cut));
}

}  // namespace witan
