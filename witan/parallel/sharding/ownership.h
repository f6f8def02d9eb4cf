// Which gradients share a buffer, and who updates what: pure functions of the parameters and the layout, the same on
// all ranks. Where tensor ranks divide a parameter unevenly, they are decided for the largest part: every rank's parts
// are those, as far as it has elements, and what the ranks have alike is cut alike.
//
// With a distributed optimizer (ZeRO stage 1: Rajbhandari et al., 2020) the ranks of the shard and context axes, for
// experts those of expert_shard, hold the same parameters (Layout::owner_axes), and each updates a part of every
// bucket. Parts are as even as they can be with cuts at the chunks that the gradient norm is summed in
// (kernels/optimizer.h), so that its bits do not depend on them; of parameters that are divided by whole matrices
// (ownership_policy.h) they are those matrices, in buckets of their own. Without one, every rank updates all that it
// holds: gradients are identical on replicas, and so the updates are.
#pragma once

#include <span>
#include <vector>

#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/ownership_policy.h"

namespace witan {

// Megatron-LM's rule: from the last parameter to the first, a bucket closes once it holds `bucket_elements` or more.
// Each bucket is the indices of its parameters, in that order.
std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements);

// The units of the model (model/unit.h) that these parameters belong to, each as the indices of its parameters.
std::vector<std::vector<size_t>> plan_units(const std::vector<Parameter*>& parameters);

struct BucketPlan {
  static constexpr int64_t kElements = 40'000'000;  // Megatron-LM's default

  // Indices in the model, in the order of the buffer: the model's, or where they are divided by matrices that of their
  // owners, and the model's of each.
  std::vector<size_t> parameters;
  bool experts = false;         // whose parameters they are; a bucket has no others, and those of one chunk alone
  Axes axes = {};               // over which they are reduced, all of them
  bool tied = false;            // an embedding alone, whose head's gradient is apart (Layout::sums_heads_apart)
  std::vector<int64_t> begins;  // [owners + 1]: elements [begins[o], begins[o + 1]) of the buffer are owner o's
  std::vector<int64_t> most;    // the same of a buffer of the largest parts

  size_t first() const;  // the least of its parameters
};
// Where gradients are divided, a unit's parameters of one family are a bucket, of any size. A stack of experts that is
// divided by matrices is a bucket by itself.
// In the order of their reduction: backward has finished a bucket when it passes the first parameter, so the latest go
// first.
std::vector<BucketPlan> plan_gradients(const std::vector<Parameter*>& parameters, const Layout& layout,
                                       int64_t bucket_elements = BucketPlan::kElements,
                                       const OwnershipPolicy& policy = {});

class Ownership {
 public:
  // Elements [first, first + elements) of the flat local part of a parameter.
  struct Range {
    int64_t first = 0, elements = 0;
  };

  // Parameters must outlive it.
  Ownership(const std::vector<Parameter*>& parameters, const Layout& layout, int rank,
            int64_t bucket_elements = BucketPlan::kElements, const OwnershipPolicy& policy = {});

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int owners(bool experts) const { return experts ? expert_owners_ : dense_owners_; }
  // Of owner `owner`: a place along the parameter's Layout::owner_axes.
  Range range(size_t parameter, int owner) const { return ranges_[parameter][static_cast<size_t>(owner)]; }
  // The same of the largest of the parts that tensor ranks hold.
  Range most_of_range(size_t parameter, int owner) const { return most_[parameter][static_cast<size_t>(owner)]; }
  // This rank's, in the order of the model; parameters of which it owns nothing are left out. Given groups, matrices
  // that tensor-parallel ranks shard are handed the one over which their other pieces lie.
  std::vector<Owned> owned(const Groups* groups = nullptr) const;

 private:
  int owner_of_rank(bool experts) const { return experts ? expert_owner_ : dense_owner_; }

  std::vector<Parameter*> parameters_;
  int dense_owners_, dense_owner_, expert_owners_, expert_owner_;
  std::vector<std::vector<Range>> ranges_, most_;  // of each parameter, by owner
};

// One rank that owns everything: for loops without a layout.
std::vector<Owned> own_all(const std::vector<Parameter*>& parameters);

}  // namespace witan
