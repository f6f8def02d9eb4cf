// Places every parameter on the ranks: a pure function of the configuration and the world size, the same on all ranks.
#pragma once

#include <utility>
#include <vector>

#include "witan/comm/mesh.h"
#include "witan/comm/placement.h"
#include "witan/nn/buffer.h"
#include "witan/nn/parameter.h"
#include "witan/parallel/config.h"

namespace witan {

class Layout {
 public:
  // Throws ConfigError as config.validate() does.
  Layout(const ParallelConfig& config, int world, int64_t num_experts);

  const Mesh& mesh() const { return mesh_; }
  int world_size() const { return mesh_.world_size(); }

  Axes world_axes() const;  // all axes, which together enumerate the ranks
  Axes token_axes() const;  // along which ranks process different tokens, of different samples or of the same one
  Axes data_axes() const;   // along which ranks process different samples
  int data_ranks() const;   // data-parallel size: along replicate and shard
  int data_rank(int rank) const;
  Axes loss_reporting_axes() const;  // along which the ranks of loss_reporting_ranks() differ
  // The ranks that report their losses: the first of each tensor-parallel group, whose ranks all compute the same
  // losses.
  std::vector<int> loss_reporting_ranks() const;
  // The axes over which the optimizer state of experts, or of all other parameters, is sharded. They include the
  // context axis, whose ranks hold the same parameters. sharding_ranks(): their number of ranks; sharding_rank(): a
  // rank's index among them.
  Axes sharding_axes(bool experts) const;
  int sharding_ranks(bool experts) const;
  int sharding_rank(bool experts, int rank) const;
  // Whether reduced gradients, or values, are sharded over these ranks too, so that each keeps only its own shard.
  bool shards_gradients(bool experts) const { return sharding_ >= Sharding::gradients && sharding_ranks(experts) > 1; }
  bool shards_values(bool experts) const { return sharding_ >= Sharding::parameters && sharding_ranks(experts) > 1; }
  bool shards_values() const { return shards_values(false) || shards_values(true); }
  Sharding sharding() const { return sharding_; }
  // The ranks that hold the same tied embedding, including this one: those of the first and the last pipeline stage. On
  // any other stage only the rank itself.
  std::vector<int> embedding_ranks(int rank) const;
  // If tokens for experts travel by hosts (moe/dispatchers/host_dispatch.h): the ranks of this rank's expert axis on the same host,
  // and those at the same position on every host. Otherwise the whole axis, and the rank alone.
  std::vector<int> expert_ranks_of_host(int rank) const;
  std::vector<int> expert_ranks_between_hosts(int rank) const;
  bool has_expert_hosts() const { return ranks_of_expert_host_ > 0; }
  // Whether the head's gradient of a tied embedding stays separate until both gradients are reduced over all
  // micro-batches and ranks. Pipeline stages require it, and it makes deterministic sums the same in every layout.
  bool separates_head_gradient() const { return separates_head_gradient_; }
  // All sets of axes over which ranks communicate, reduced by Mesh::effective, each once and including the empty set.
  std::vector<Axes> group_axes() const;

  // One placement for each axis of the parameter's view of the mesh that this layout uses, outermost first.
  using Placements = std::vector<std::pair<Axis, Placement>>;
  Placements placements(const ParameterSpec& spec) const;
  Placements placements(const BufferSpec& spec) const;
  // The axes over which the parameter's gradient must be reduced, because each rank along them has one summand.
  Axes gradient_axes(const ParameterSpec& spec) const;
  // The axes over which a summed buffer's local shares are summed.
  Axes share_axes(const BufferSpec& spec) const;
  // Whether the rank is the first that holds its part of the parameter; with `but`, the first among ranks with the same
  // coordinates on these axes.
  bool holds_first(const ParameterSpec& spec, int rank, const Axes& but = {}) const;
  bool holds_first(const BufferSpec& spec, int rank) const;
  // The part of a parameter that a rank holds.
  ParameterSpec::Part part(const ParameterSpec& spec, int rank) const;

 private:
  Axes partial_axes(const Placements& placements) const;
  bool holds_first(const Placements& placements, int rank, const Axes& but) const;

  Mesh mesh_;
  int ranks_of_expert_host_;  // 0: tokens do not travel by hosts
  bool separates_head_gradient_;
  Sharding sharding_;
};

// The complete copies of the model in a layout, as a ring. Ranks at the same position in different copies hold the same
// values and compute the same bits from the same micro-batches.
class ReplicaRing {
 public:
  // A copy consists of the fewest data-parallel ranks that together have all experts. The layout must outlive this.
  explicit ReplicaRing(const Layout& layout);

  int replicas() const { return replicas_; }
  // The rank at the position of `rank` in the copy `steps` further along the ring; negative steps go back.
  int rank_after(int rank, int steps) const;

 private:
  const Layout& layout_;
  int stage_ranks_, copy_ranks_, replicas_;  // ranks of a pipeline stage, and those of one copy within it
};

}  // namespace witan
