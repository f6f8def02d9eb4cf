#include "witan/comm/mesh.h"

#include <algorithm>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr int64_t kMostMeshRanks = 1 << 24;

}  // namespace

const Mesh::View Mesh::kDense = {Axis::pipeline, Axis::replicate, Axis::shard, Axis::context, Axis::tensor};
const Mesh::View Mesh::kExpert = {Axis::pipeline, Axis::expert_replicate, Axis::expert_shard, Axis::expert,
                                  Axis::expert_tensor};

std::string_view name_of(Axis axis) {
  static constexpr std::array<std::string_view, kAxes> kNames = {
      "replicate", "shard",         "context",          "tensor",      "pipeline",
      "expert",    "expert_tensor", "expert_replicate", "expert_shard"};
  return kNames[static_cast<size_t>(axis)];
}

std::string describe(const Axes& axes) {
  std::string text;
  for (const Axis axis : axes) text += cat(text.empty() ? "" : " x ", axis);
  return text.empty() ? "none" : text;
}

Mesh::Mesh(const MeshSizes& sizes) {
  const auto set = [&](Axis axis, int size) { sizes_[static_cast<size_t>(axis)] = size; };
  set(Axis::pipeline, sizes.pipeline);
  set(Axis::replicate, sizes.replicate);
  set(Axis::shard, sizes.shard);
  set(Axis::context, sizes.context);
  set(Axis::tensor, sizes.tensor);
  set(Axis::expert_replicate, sizes.expert_replicate);
  set(Axis::expert_shard, sizes.expert_shard);
  set(Axis::expert, sizes.expert);
  set(Axis::expert_tensor, sizes.expert_tensor);

  const auto ranks_of = [&](const View& view) {
    int64_t product = 1;
    for (const Axis axis : view) {
      require<ConfigError>(size(axis) >= 1, "mesh: axis ", axis, " has size ", size(axis), "; at least 1 is needed");
      product *= size(axis);
      require<ConfigError>(product <= kMostMeshRanks, "mesh: axis ", axis, " = ", size(axis), " makes more than ",
                           kMostMeshRanks, " ranks");
    }
    return static_cast<int>(product);
  };
  const int dense = ranks_of(kDense), expert = ranks_of(kExpert);
  require<ConfigError>(
      dense == expert,
      "mesh: the dense and the expert view must have equally many ranks per pipeline stage, but replicate ",
      sizes.replicate, " x shard ", sizes.shard, " x context ", sizes.context, " x tensor ", sizes.tensor, " = ",
      dense / sizes.pipeline, " and expert_replicate ", sizes.expert_replicate, " x expert_shard ", sizes.expert_shard,
      " x expert ", sizes.expert, " x expert_tensor ", sizes.expert_tensor, " = ", expert / sizes.pipeline);
  world_size_ = dense;
}

bool Mesh::contains(const View& view, Axis axis) {
  return std::find(view.begin(), view.end(), axis) != view.end();
}

int Mesh::stride(const View& view, Axis axis) const {
  int stride = 1;
  for (size_t i = view.size(); view[--i] != axis;) stride *= size(view[i]);
  return stride;
}

void Mesh::check_rank(int rank) const {
  require<ConfigError>(rank >= 0 && rank < world_size_, "mesh: no rank ", rank, " in a world of ", world_size_);
}

int Mesh::coordinate(int rank, Axis axis) const {
  check_rank(rank);
  return rank / stride(contains(kDense, axis) ? kDense : kExpert, axis) % size(axis);
}

const Mesh::View& Mesh::view_of(const Axes& axes) {
  const auto all_in = [&](const View& view) {
    return std::ranges::all_of(axes, [&](Axis axis) { return contains(view, axis); });
  };
  require<ConfigError>(all_in(kDense) || all_in(kExpert),
                       "mesh: a group runs along axes of one view; these mix dense and expert axes");
  return all_in(kDense) ? kDense : kExpert;
}

Axes Mesh::effective(const Axes& axes) const {
  Axes effective;
  for (const Axis axis : view_of(axes))
    if (size(axis) > 1 && std::ranges::find(axes, axis) != axes.end()) effective.push_back(axis);
  return effective;
}

std::vector<int> Mesh::ranks(int rank, const Axes& axes) const {
  check_rank(rank);
  const View& view = view_of(axes);
  std::vector<int> group = {rank};
  for (const Axis axis : view) {  // outermost first, so that the innermost ends up fastest
    if (std::ranges::find(axes, axis) == axes.end()) continue;
    const int step = stride(view, axis), here = coordinate(rank, axis);
    std::vector<int> wider;
    for (const int start : group)
      for (int i = 0; i < size(axis); ++i) wider.push_back(start + (i - here) * step);
    group = std::move(wider);
  }
  return group;
}

}  // namespace witan
