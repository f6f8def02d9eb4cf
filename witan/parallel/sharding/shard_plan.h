// Decides which gradients share a bucket and which rank updates what. These are pure functions of the parameters and
// the layout, the same on all ranks. Where tensor-parallel ranks shard a parameter unevenly, the decisions are made for
// the largest shard: every rank uses the same boundaries as far as it has elements.
//
// With a distributed optimizer (ZeRO stage 1: Rajbhandari et al., 2020) the ranks of the shard and context axes, or of
// expert_shard for experts, hold the same parameters (Layout::sharding_axes), and each updates a shard of every bucket.
// Shards are as even as possible with boundaries at the chunks in which the gradient norm is summed
// (kernels/optimizer/optimizer.h), so that its bits do not depend on them. Parameters that are sharded by whole
// matrices (ShardingPolicy) have buckets of their own, whose shards are those matrices. Without a distributed optimizer
// every rank updates all that it holds: gradients are identical on data-parallel ranks, and so are the updates.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/optimizer.h"
#include "witan/optim/param_groups.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/layout.h"

namespace witan {

// Decides how the ranks that share an optimizer's work shard each parameter: by elements or by whole matrices.
//
// In a parameter group that is sharded by matrices (optim/param_groups.h) one rank owns each matrix. A matrix is a
// parameter of any shape, or one expert of a stack; adjacent matrices that kernels use as one have the same owner.
// Matrices that tensor-parallel ranks shard stay sharded: the same owner index has the shards of a matrix on all of
// these ranks. Owners are balanced by the update cost that the optimizers give, longest first (Graham, 1969). A tied
// embedding comes before all others, so that the first and the last stage of a pipeline, which both hold it, find the
// same owner.
class ShardingPolicy {
 public:
  ShardingPolicy() = default;  // shards everything by elements
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

// Megatron-LM's rule: going from the last parameter to the first, a bucket closes once it holds `bucket_elements` or
// more. Each bucket is the indices of its parameters in that order.
std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements);

// The units of the model (model/unit.h) that these parameters belong to, each as the indices of its parameters.
std::vector<std::vector<size_t>> plan_units(const std::vector<Parameter*>& parameters);

struct BucketPlan {
  static constexpr int64_t kElements = 40'000'000;  // Megatron-LM's default

  // Indices in the model, in buffer order: the model's order or, if sharded by matrices, ordered by owner and then as
  // in the model.
  std::vector<size_t> parameters;
  bool experts = false;  // a bucket has only experts or none, all from one chunk of layers
  Axes axes = {};        // axes over which all of its gradients are reduced
  bool tied = false;     // only the tied embedding, with a separate head gradient (Layout::separates_head_gradient)
  bool frozen = false;   // all of its parameters are frozen or none: frozen ones have no gradients, and only their
                         // values are sharded
  std::vector<int64_t> begins;  // [ranks + 1]: rank r owns elements [begins[r], begins[r + 1]) of the buffer
  std::vector<int64_t> most;    // the same for a buffer of the largest tensor-parallel shards

  size_t first() const;  // the smallest index of its parameters
};
// The buckets in the order of their reduction, the last parameters first: backward finishes a bucket when it passes the
// bucket's first parameter. If gradients are sharded, the parameters of one family in a unit are one bucket of any
// size. A stack of experts that is sharded by matrices is a bucket by itself.
std::vector<BucketPlan> plan_gradients(const std::vector<Parameter*>& parameters, const Layout& layout,
                                       int64_t bucket_elements = BucketPlan::kElements,
                                       const ShardingPolicy& policy = {});

class ShardPlan {
 public:
  // Elements [first, first + elements) of the flat local part of a parameter.
  struct Range {
    int64_t first = 0, elements = 0;
  };

  // Parameters must outlive it.
  ShardPlan(const std::vector<Parameter*>& parameters, const Layout& layout, int rank,
            int64_t bucket_elements = BucketPlan::kElements, const ShardingPolicy& policy = {});

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int sharding_ranks(bool experts) const { return experts ? expert_ranks_ : dense_ranks_; }
  // The shard of rank `owner`, its index along the parameter's Layout::sharding_axes.
  Range range(size_t parameter, int owner) const { return ranges_[parameter][static_cast<size_t>(owner)]; }
  // The range of the largest among the shards that tensor-parallel ranks hold.
  Range most_of_range(size_t parameter, int owner) const { return most_[parameter][static_cast<size_t>(owner)]; }
  // The shards that this rank updates, in the order of the model, without empty ones and frozen parameters. Given
  // groups, matrices that tensor-parallel ranks shard get the group of the ranks that hold their other shards.
  std::vector<ParameterShard> local_shards(const Groups* groups = nullptr) const;

 private:
  int sharding_rank(bool experts) const { return experts ? expert_rank_ : dense_rank_; }

  std::vector<Parameter*> parameters_;
  int dense_ranks_, dense_rank_, expert_ranks_, expert_rank_;
  std::vector<std::vector<Range>> ranges_, most_;  // by parameter and owner
};

// All parameters as shards of a single rank: for training loops without a layout.
std::vector<ParameterShard> unsharded(const std::vector<Parameter*>& parameters);

}  // namespace witan
