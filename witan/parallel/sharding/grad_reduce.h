// Reduces gradient buckets over ranks, on a GPU on a side stream during the backward. Reductions are sums, since losses
// already contain the global denominators. If the optimizer is sharded, a rank ends with the sums of its own shard, and
// the rest of its gradients is undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "witan/parallel/sharding/shard_plan.h"
#include "witan/tensor/tensor.h"

namespace witan {

// A gradient bucket: one allocation for gradients that are reduced over the same ranks at the same time.
struct GradBucket {
  std::vector<Parameter*> parameters;  // in buffer order
  size_t first_parameter = 0;          // their smallest index in the model
  Group* group = nullptr;              // all ranks that have summands of its gradients
  Group* shard_group = nullptr;      // those of them that own its shards, each of which gets the sums of its own shard
  Group* replicas = nullptr;         // those of them that own the same shard as this rank
  std::vector<int64_t> begins = {};  // [ranks of shard_group + 1]: elements of the buffer
  Group* embedding = nullptr;        // for a tied embedding: the stages that have summands of its gradient
  bool head_apart = false;  // a tied embedding with the head on this rank, whose gradient is the second of two sources
  int64_t sources = 1;      // number of source ranks whose tokens have separate gradients
  // Undefined while gradients are sharded and none is written:
  Tensor levels = {};       // [levels, sources, elements]: sums of runs of micro-batches; one level if summed in place
  Tensor buffer = {};       // [elements]: the first level, which has the sums at the end of the step
  Tensor shard = {};        // [elements of this rank] if gradients are sharded: the sums at the end of the step
  int chunk = 0;            // chunk of layers of its parameters
  int64_t micro_batch = 0;  // micro-batch whose gradients are being added
  size_t waiting = 0;       // number of parameters whose gradients are not ready yet

  int64_t elements() const { return begins.back(); }
  bool sharded() const { return shard.defined(); }
  // This rank's shard of the buffer: first element, number of elements.
  std::pair<int64_t, int64_t> own_range() const { return part_of(begins, shard_group->rank()); }
};

class GradReduce {
 public:
  // The stream must outlive it.
  GradReduce(Stream& stream, const Groups& groups);

  // The side stream; nullptr: reductions run on the main stream.
  Stream* side() const { return side_.get(); }

  // Reduces the bucket's buffer, and the head's gradient if it is separate.
  void all_reduce(const GradBucket& bucket);

  // Selects what a reduction into a shard adds up.
  struct Into {
    bool tree;   // the gradients are summed over all of the rank's micro-batches; false: over one, and the shard
                 // accumulates them
    bool first;  // first reduction of the step
    bool last;   // last reduction of the step, when replicas of the accumulated shard are summed
  };
  // For sharded gradients: reduces the bucket's gradients into its shard. The full gradients are freed, on a GPU as
  // soon as they are reduced.
  void reduce_into_shard(GradBucket& bucket, Into into);

  // Makes the main stream wait for all reductions, and frees the memory that they held.
  void finish();

 private:
  Stream& stream_for(const GradBucket& bucket);
  void wait_for_side();
  static void reduce(Stream& on, const GradBucket& bucket, const Tensor& buffer);

  Stream& stream_;
  std::unique_ptr<Stream> side_;
  bool side_pending_ = false;  // the side stream has work for which the main stream has not waited
  Tensor in_flight_;           // full gradients that are being reduced on the side stream
};

// Combines the two gradients of a tied embedding, from the embedding and from the head. If they are separate
// (Layout::separates_head_gradient), they are added at the end of a step, when both are reduced over micro-batches and
// ranks, on one rank or on two pipeline stages.
namespace tied_gradients {

// The head's gradient, [elements], if the bucket has both.
Tensor head_buffer(const GradBucket& bucket);

// Adds both gradients in the shard that this rank owns; a call of all stages that have one. Does nothing for buckets of
// other parameters, and if the reduction into shards has already added them.
void sum(Stream& stream, const GradBucket& bucket);

}  // namespace tied_gradients

// Sums in a binary tree over the index of micro-batches in the global batch: the sum of the largest power of two of
// them, plus the rest. A rank's micro-batches are a run of 2^k, as are those of the ranks that share a set of experts,
// and ranks are summed in the same tree (comm/reduce.h). So every layout forms the same sums, to the bit.
//
// Sums of complete runs lie in levels, like the digits of a binary counter: micro-batch i is written above one sum for
// each set bit of i.
namespace grad_tree {

// The level to which the gradients of a rank's micro-batch `index` are written.
int64_t level_of(int64_t index);
// The number of levels that a rank's micro-batches need.
int64_t level_count(int64_t micro_batches);

// levels [L, ...]: adds the level written by micro-batch `index` of `micro_batches` to the one below, and that to the
// next, while both are sums of equally many micro-batches. After the last micro-batch all levels are added: the sum is
// in the first. The meta device, which may skip micro-batches, counts the additions of all but the last at the first.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, int64_t micro_batches);

// sources [S, n]: sums over ranks in a tree into the first source: neighbours, then neighbours' neighbours.
void sum_sources(Stream& stream, const Tensor& sources);

}  // namespace grad_tree

}  // namespace witan
