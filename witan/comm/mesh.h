// Maps ranks to coordinates of the mesh and back: pure arithmetic, without processes, threads or communication.
//
// There are two views of the ranks, both with the pipeline stage outermost and the last axis varying fastest:
//   dense view    (pipeline, replicate, shard, context, tensor)                      everything but experts
//   expert view   (pipeline, expert_replicate, expert_shard, expert, expert_tensor)  experts
// so that one axis of a view may cut across several of the other. Immutable; safe to share between threads.
#pragma once

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

enum class Axis : uint8_t {
  replicate,         // same parameters, other samples: gradients are all-reduced
  shard,             // the same, with parameters or optimizer state sharded (FSDP, ZeRO)
  context,           // one sequence sharded
  tensor,            // one matrix sharded
  pipeline,          // layers in stages
  expert,            // other experts on each rank
  expert_tensor,     // one expert's matrices sharded
  expert_replicate,  // same experts, other samples
  expert_shard,      // the same, with experts' parameters or optimizer state sharded
};
inline constexpr int kAxes = 9;

std::string_view name_of(Axis axis);
inline std::ostream& operator<<(std::ostream& out, Axis axis) {
  return out << name_of(axis);
}

using Axes = std::vector<Axis>;          // of one view
std::string describe(const Axes& axes);  // "replicate x shard"; of no axis "none"

// Ranks along each axis. The products of both views must agree.
struct MeshSizes {
  int pipeline = 1;
  int replicate = 1, shard = 1, context = 1, tensor = 1;
  int expert_replicate = 1, expert_shard = 1, expert = 1, expert_tensor = 1;
};

class Mesh {
 public:
  // Throws ConfigError when a size is below 1, the views differ in their number of ranks, or there are too many ranks.
  explicit Mesh(const MeshSizes& sizes);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // 0 <= rank < world_size(), or ConfigError.
  int coordinate(int rank, Axis axis) const;

  // The ranks that share all other coordinates of the axis's view with `rank`, in the order of their coordinate.
  std::vector<int> ranks(int rank, Axis axis) const { return ranks(rank, Axes{axis}); }
  // The ranks along several axes of one view, flattened in the order of the view, its innermost axis fastest, whatever
  // the order of `axes`. No axis: the rank alone. Throws ConfigError for axes of different views.
  std::vector<int> ranks(int rank, const Axes& axes) const;
  // The axes with more than one rank, in the order of their view. Throws ConfigError for axes of different views.
  Axes effective(const Axes& axes) const;

 private:
  static constexpr int kAxesPerView = 5;
  using View = std::array<Axis, kAxesPerView>;  // outermost first
  static const View kDense, kExpert;

  static bool contains(const View& view, Axis axis);
  static const View& view_of(const Axes& axes);
  int stride(const View& view, Axis axis) const;
  void check_rank(int rank) const;

  std::array<int, kAxes> sizes_{};
  int world_size_ = 1;
};

}  // namespace witan
