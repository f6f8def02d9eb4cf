// By what the ranks that share an optimizer's work divide each parameter: by elements, or by whole matrices.
//
// Of a group that is divided by matrices (optim/param_groups.h) each matrix has one owner. A matrix is a parameter of
// any shape, or an expert of a stack; matrices that lie side by side, which kernels use as one, have one owner too.
// Matrices that tensor-parallel ranks shard stay so: the pieces of a matrix have the same owner on all of these ranks.
// Owners are balanced by what the optimizers say that updates cost, longest first (Graham, 1969); a tied embedding
// comes before all others, so that the first and the last stage of a pipeline, which both hold it, find the same owner.
#pragma once

#include <optional>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/param_groups.h"
#include "witan/parallel/layout.h"

namespace witan {

class OwnershipPolicy {
 public:
  OwnershipPolicy() = default;  // everything by elements
  explicit OwnershipPolicy(const OptimizerConfig& config) : groups_(config) {}

  bool by_matrices(const ParameterSpec& spec) const;
  // What updating one of the parameter's matrices costs.
  double cost(const ParameterSpec& spec) const;

 private:
  std::optional<ParamGroups> groups_;
};

// The owner of each matrix of every parameter, a place along Layout::owner_axes: one for a parameter, or one for each
// expert of this rank's in a stack, ascending. Empty of parameters that are divided by elements. A function of the
// global shapes: ranks that hold other pieces of the same matrices find the same owners.
std::vector<std::vector<int>> matrix_owners(const std::vector<Parameter*>& parameters, const Layout& layout,
                                            const OwnershipPolicy& policy);

}  // namespace witan
