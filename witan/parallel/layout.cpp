#include "witan/parallel/layout.h"

#include <algorithm>
#include <numeric>

namespace witan {
namespace {

MeshSizes sizes_of(const ParallelConfig& config, int world, int64_t num_experts) {
  config.validate(world, num_experts);
  MeshSizes sizes;
  sizes.tensor = static_cast<int>(config.tensor_model_parallel_size);
  sizes.context = static_cast<int>(config.context_parallel_size);
  sizes.pipeline = static_cast<int>(config.pipeline_model_parallel_size);
  sizes.expert = config.expert_ranks(world, num_experts);
  sizes.expert_tensor = config.expert_tensor_ranks(num_experts);
  sizes.replicate = world / static_cast<int>(config.model_ranks());
  sizes.expert_replicate = world / (sizes.pipeline * sizes.expert * sizes.expert_tensor);
  if (config.sharding() != Sharding::none) {
    const auto instances = static_cast<int>(config.num_distributed_optimizer_instances);
    sizes.shard = sizes.replicate / instances;
    sizes.replicate = instances;
    // There are fewer if experts have fewer replicas than there are instances.
    const int of_experts = std::gcd(sizes.expert_replicate, instances);
    sizes.expert_shard = sizes.expert_replicate / of_experts;
    sizes.expert_replicate = of_experts;
  }
  return sizes;
}

}  // namespace

Layout::Layout(const ParallelConfig& config, int world, int64_t num_experts)
    : mesh_(sizes_of(config, world, num_experts)),
      ranks_of_expert_host_(config.hierarchical_expert_ranks(world, num_experts)),
      separates_head_gradient_(config.sums_in_tree(num_experts) || config.pipeline_model_parallel_size > 1),
      sharding_(config.sharding()) {}

namespace {

constexpr Placement replicas = Placement::replicate(Placement::Uses::own);  // each has different samples

}  // namespace

Layout::Placements Layout::placements(const BufferSpec& spec) const {
  return {{Axis::replicate, replicas},
          {Axis::shard, replicas},
          {Axis::context, replicas},
          {Axis::tensor, Placement::replicate(spec.uses)}};
}

Layout::Placements Layout::placements(const ParameterSpec& spec) const {
  const Placement of_tensor =
      spec.tensor_split.any() ? Placement::shard(spec.tensor_split.dim) : Placement::replicate(spec.uses);
  if (spec.expert)
    return {{Axis::expert_replicate, replicas},
            {Axis::expert_shard, replicas},
            {Axis::expert, Placement::shard(0)},
            {Axis::expert_tensor, of_tensor}};
  return {{Axis::replicate, replicas}, {Axis::shard, replicas}, {Axis::context, replicas}, {Axis::tensor, of_tensor}};
}

Axes Layout::world_axes() const {
  return mesh_.effective({Axis::pipeline, Axis::replicate, Axis::shard, Axis::context, Axis::tensor});
}

Axes Layout::token_axes() const {
  return mesh_.effective({Axis::replicate, Axis::shard, Axis::context});
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

Axes Layout::sharding_axes(bool experts) const {
  if (sharding_ == Sharding::none) return {};
  return mesh_.effective(experts ? Axes{Axis::expert_shard} : Axes{Axis::shard, Axis::context});
}

int Layout::sharding_ranks(bool experts) const {
  int owners = 1;
  for (const Axis axis : sharding_axes(experts)) owners *= mesh_.size(axis);
  return owners;
}

int Layout::sharding_rank(bool experts, int rank) const {
  int owner = 0;
  for (const Axis axis : sharding_axes(experts)) owner = owner * mesh_.size(axis) + mesh_.coordinate(rank, axis);
  return owner;
}

Axes Layout::loss_reporting_axes() const {
  return mesh_.effective({Axis::pipeline, Axis::replicate, Axis::shard, Axis::context});
}

std::vector<int> Layout::loss_reporting_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size(); ++rank)
    if (mesh_.coordinate(rank, Axis::tensor) == 0) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Layout::embedding_ranks(int rank) const {
  const std::vector<int> stages = mesh_.ranks(rank, Axis::pipeline);
  if (stages.size() == 1 || (rank != stages.front() && rank != stages.back())) return {rank};
  return {stages.front(), stages.back()};
}

std::vector<int> Layout::expert_ranks_of_host(int rank) const {
  const std::vector<int> all = mesh_.ranks(rank, Axis::expert);
  if (!has_expert_hosts()) return all;
  const auto first = all.begin() + mesh_.coordinate(rank, Axis::expert) / ranks_of_expert_host_ * ranks_of_expert_host_;
  return {first, first + ranks_of_expert_host_};
}

std::vector<int> Layout::expert_ranks_between_hosts(int rank) const {
  if (!has_expert_hosts()) return {rank};
  const std::vector<int> all = mesh_.ranks(rank, Axis::expert);
  const auto ranks = static_cast<size_t>(ranks_of_expert_host_);
  std::vector<int> between;
  for (size_t at = static_cast<size_t>(mesh_.coordinate(rank, Axis::expert)) % ranks; at < all.size(); at += ranks)
    between.push_back(all[at]);
  return between;
}

std::vector<Axes> Layout::group_axes() const {
  std::vector<Axes> all = {{}};
  Axes parts_of_owners = sharding_axes(false);
  parts_of_owners.push_back(Axis::tensor);
  const std::vector<Axes> wanted_axes = {world_axes(),
                                         {Axis::replicate},
                                         {Axis::shard},
                                         {Axis::context},
                                         {Axis::tensor},
                                         {Axis::pipeline},
                                         {Axis::replicate, Axis::tensor},
                                         token_axes(),
                                         data_axes(),
                                         loss_reporting_axes(),
                                         {Axis::replicate, Axis::shard, Axis::context, Axis::tensor},
                                         sharding_axes(false),
                                         parts_of_owners,
                                         {Axis::expert},
                                         {Axis::expert_tensor},
                                         {Axis::expert_replicate},
                                         {Axis::expert_shard},
                                         {Axis::expert_replicate, Axis::expert_shard},
                                         {Axis::expert_shard, Axis::expert, Axis::expert_tensor}};
  for (const Axes& wanted : wanted_axes)
    if (const Axes axes = mesh_.effective(wanted); std::ranges::find(all, axes) == all.end()) all.push_back(axes);
  return all;
}

Axes Layout::gradient_axes(const ParameterSpec& spec) const {
  return partial_axes(placements(spec));
}

// A rank's summand is placed like the gradient of the tensor that it is added to.
Axes Layout::share_axes(const BufferSpec& spec) const {
  return partial_axes(placements(spec));
}

Axes Layout::partial_axes(const Placements& placements) const {
  Axes axes;
  for (const auto& [axis, placement] : placements)
    if (placement.of_gradient() == Placement::partial()) axes.push_back(axis);
  return mesh_.effective(axes);
}

bool Layout::holds_first(const ParameterSpec& spec, int rank, const Axes& but) const {
  return holds_first(placements(spec), rank, but);
}

bool Layout::holds_first(const BufferSpec& spec, int rank) const {
  return holds_first(placements(spec), rank, {});
}

bool Layout::holds_first(const Placements& placements, int rank, const Axes& but) const {
  return std::ranges::all_of(placements, [&](const auto& placed) {
    const auto& [axis, placement] = placed;
    return placement.kind != Placement::Kind::replicate || std::ranges::find(but, axis) != but.end() ||
           mesh_.coordinate(rank, axis) == 0;
  });
}

ParameterSpec::Part Layout::part(const ParameterSpec& spec, int rank) const {
  const Axis tensor = spec.expert ? Axis::expert_tensor : Axis::tensor;
  return spec.part(mesh_.size(Axis::expert), mesh_.coordinate(rank, Axis::expert), mesh_.size(tensor),
                   mesh_.coordinate(rank, tensor));
}

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
