#include "witan/parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace witan {
namespace {

MeshSizes sizes_of(const ParallelConfig& config, int world, int64_t num_experts) {
  config.validate(world, num_experts);
  MeshSizes sizes;
  sizes.replicate = world;
  sizes.expert = config.expert_ranks(world, num_experts);
  sizes.expert_replicate = world / sizes.expert;
  return sizes;
}

}  // namespace

Layout::Layout(const ParallelConfig& config, int world, int64_t num_experts)
    : mesh_(sizes_of(config, world, num_experts)) {}

std::vector<std::pair<Axis, Placement>> Layout::placements(const ParameterSpec& spec) const {
  constexpr Placement replicas = Placement::replicate(Placement::Uses::own);  // each works on samples of its own
  if (spec.expert) return {{Axis::expert_replicate, replicas}, {Axis::expert, Placement::shard(0)}};
  return {{Axis::replicate, replicas}};
}

Axes Layout::world_axes() const {
  return mesh_.effective({Axis::replicate});
}

Axes Layout::data_axes() const {
  return mesh_.effective({Axis::replicate});
}

int Layout::data_ranks() const {
  return mesh_.size(Axis::replicate);
}

int Layout::data_rank(int rank) const {
  return mesh_.coordinate(rank, Axis::replicate);
}

std::vector<Axes> Layout::group_axes() const {
  std::vector<Axes> all = {{}};
  for (const Axes& axes : {world_axes(), mesh_.effective({Axis::expert}), mesh_.effective({Axis::expert_replicate})})
    if (std::ranges::find(all, axes) == all.end()) all.push_back(axes);
  return all;
}

Axes Layout::gradient_axes(const ParameterSpec& spec) const {
  Axes axes;
  for (const auto& [axis, placement] : placements(spec))
    if (placement.of_gradient() == Placement::partial()) axes.push_back(axis);
  return axes;
}

std::pair<int64_t, int64_t> Layout::rows(const ParameterSpec& spec, int rank) const {
  int64_t first = 0, count = spec.shape[0];
  for (const auto& [axis, placement] : placements(spec)) {
    if (placement.kind != Placement::Kind::shard) continue;
    count /= mesh_.size(axis);
    first += count * mesh_.coordinate(rank, axis);
  }
  return {first, count};
}

std::string Layout::describe(std::span<const ParameterSpec> parameters) const {
  std::string text =
      fmt::format("{} ranks: replicate {}; of experts: expert_replicate {} x expert {}\n", world_size(),
                  mesh_.size(Axis::replicate), mesh_.size(Axis::expert_replicate), mesh_.size(Axis::expert));
  for (const ParameterSpec& spec : parameters) {
    std::string where;
    for (const auto& [axis, placement] : placements(spec))
      where += cat(where.empty() ? "" : ", ", axis, " ", placement);
    text += fmt::format("{:<48} {:<20} {}\n", spec.name, cat(spec.shape), where);
  }
  return text;
}

}  // namespace witan
