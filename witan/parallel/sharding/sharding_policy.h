// Decides how the ranks that share an optimizer's work shard each parameter: by elements, or by whole matrices.
//
// In a group that is sharded by matrices (optim/param_groups.h) one rank owns each matrix. A matrix is a parameter of
// any shape, or one expert of a stack; matrices that lie side by side, which kernels use as one, have one owner too.
// Matrices that tensor-parallel ranks shard stay sharded: the same owner index has the shards of a matrix on all of
// these ranks. Owners are balanced by the cost that the optimizers give for an update, longest first (Graham, 1969). A
// tied embedding comes before all others, so that the first and the last stage of a pipeline, which both hold it, find
// the same owner.
#pragma once

#include <optional>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/param_groups.h"
#include "witan/parallel/layout.h"

namespace witan {

class ShardingPolicy {
 public:
  ShardingPolicy() = default;  // everything by elements
  explicit ShardingPolicy(const OptimizerConfig& config) : groups_(config) {}

  bool by_matrices(const ParameterSpec& spec) const;
  // The cost of updating one of the parameter's matrices.
  double cost(const ParameterSpec& spec) const;

 private:
  std::optional<ParamGroups> groups_;
};

// The rank that owns each matrix of every parameter, as an index along Layout::sharding_axes: one entry for a
// parameter, or one for each of this rank's experts in a stack, ascending; empty for parameters that are sharded by
// elements. It depends only on global shapes: ranks that hold other shards of the same matrices find the same owners.
std::vector<std::vector<int>> matrix_owners(const std::vector<Parameter*>& parameters, const Layout& layout,
                                            const ShardingPolicy& policy);

}  // namespace witan
