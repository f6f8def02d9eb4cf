// Where every parameter lives: a pure function of the configuration and the size of the world, the same on all ranks.
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

  Axes world_axes() const;  // that divide all ranks
  Axes token_axes() const;  // along which ranks have tokens of their own: of other samples, or of the same
  int data_ranks() const;   // with samples of their own: along replicate and shard
  int data_rank(int rank) const;
  Axes loss_reporting_axes() const;  // along which the ranks of telling_ranks() differ
  // Of the ranks that find the same losses, those of a tensor axis, the first: what the others say is not counted.
  std::vector<int> telling_ranks() const;
  // Along which ranks divide the optimizer's work on the same parameters, of experts or of all others: ranks that
  // divide a sequence hold the same parameters too. How many those are, and which one this is.
  Axes owner_axes(bool experts) const;
  int owners(bool experts) const;
  int owner(bool experts, int rank) const;
  // Whether they divide the sums of gradients, or the values, too, and each keeps its own part alone.
  bool divides_gradients(bool experts) const { return sharding_ >= Sharding::gradients && owners(experts) > 1; }
  bool divides_values(bool experts) const { return sharding_ >= Sharding::parameters && owners(experts) > 1; }
  bool divides_values() const { return divides_values(false) || divides_values(true); }
  Sharding sharding() const { return sharding_; }
  // Those that hold a tied embedding with this one, and it: the first and the last stage's; of any other stage it
  // alone.
  std::vector<int> embedding_ranks(int rank) const;
  // The head's gradient of a tied embedding is kept apart from the embedding's until both are sums over all
  // micro-batches and ranks: stages of a pipeline have to, and deterministic sums are the same in every layout.
  bool sums_heads_apart() const { return heads_apart_; }
  // Every set of axes along which ranks communicate: Mesh::effective, each once, and that of no axis.
  std::vector<Axes> group_axes() const;

  // One placement for each axis of the parameter's view of the mesh that this layout uses, outermost first.
  using Placements = std::vector<std::pair<Axis, Placement>>;
  Placements placements(const ParameterSpec& spec) const;
  Placements placements(const BufferSpec& spec) const;
  // The axes on which each rank finds a summand of the parameter's gradient: over which it must be reduced.
  Axes gradient_axes(const ParameterSpec& spec) const;
  // The axes on which each rank has a share of its own of a summed buffer: over which shares are summed.
  Axes share_axes(const BufferSpec& spec) const;
  // Whether the rank is the first of those that hold the same part of the parameter; `but`: of those that share its
  // coordinate on that axis.
  bool holds_first(const ParameterSpec& spec, int rank, const Axes& but = {}) const;
  bool holds_first(const BufferSpec& spec, int rank) const;
  // What a rank holds of a parameter.
  ParameterSpec::Part part(const ParameterSpec& spec, int rank) const;

 private:
  Axes partial_axes(const Placements& placements) const;
  bool holds_first(const Placements& placements, int rank, const Axes& but) const;

  Mesh mesh_;
  bool heads_apart_;
  Sharding sharding_;
};

}  // namespace witan
