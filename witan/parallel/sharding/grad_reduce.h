// Reduces gradient buckets over ranks, on a GPU on a side stream during the backward. Reductions are sums;
// losses carry the global denominators already. Where the optimizer is sharded, a rank ends with the sums of its own
// shard, and the rest of its gradients is undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "witan/parallel/sharding/grad_reduce.h"
#include "witan/parallel/sharding/shard_plan.h"
#include "witan/tensor/tensor.h"

namespace witan {

struct GradBucket {
  std::vector<Parameter*> parameters;  // in the order of the buffer
  size_t first_parameter = 0;          // the least index in the model of any of them
  Group* group = nullptr;              // all ranks that find summands of its gradients; of which,
  Group* shard_group = nullptr;        // where several own shards of it, these do, and get the sums of their own alone,
  Group* replicas = nullptr;           // and these own the same shard
  std::vector<int64_t> begins = {};    // [ranks of shard_group + 1]: elements of the buffer
  Group* embedding = nullptr;          // of a tied embedding: the stages that find summands of its gradient
  bool head_apart = false;             // it is the head here too, whose gradient is the second of two sources
  int64_t sources = 1;                 // ranks whose rows its gradients are apart by
  // Undefined where gradients are sharded and none is written:
  Tensor levels = {};       // [levels, sources, sum of elements]: sums of runs of micro-batches; in place: one level
  Tensor buffer = {};       // [sum of elements]: the first of them, which the step ends with
  Tensor shard = {};        // [elements of this rank], where gradients are sharded: what the step ends with
  int chunk = 0;            // of layers, that its parameters belong to
  int64_t micro_batch = 0;  // whose gradients are added now
  size_t waiting = 0;       // parameters that are not ready yet

  int64_t elements() const { return begins.back(); }
  bool sharded() const { return shard.defined(); }
  // This rank's shard in the buffer: first element, elements.
  std::pair<int64_t, int64_t> own_range() const { return part_of(begins, shard_group->rank()); }
};

class GradReduce {
 public:
  // The stream must outlive it.
  GradReduce(Stream& stream, const Groups& groups);

  // The stream of its own; null: reductions are on the main stream.
  Stream* side() const { return side_.get(); }

  // Of the bucket's buffer, and of the head's gradient where it is apart.
  void all_reduce(const GradBucket& bucket);

  // What a reduction into a shard sums.
  struct Into {
    bool tree;   // a step's sum over this rank's micro-batches; else one micro-batch's, which the shard adds up
    bool first;  // of the step
    bool last;   // of the step: replicas of what was added up are summed, once
  };
  // Of sharded gradients: sums the bucket's into its shard. The whole is no more, on a device as soon as it is reduced.
  void reduce_into_shard(GradBucket& bucket, Into into);

  // What is queued on the main stream from now on follows all reductions; what they held in memory is given back.
  void finish();

 private:
  Stream& stream_for(const GradBucket& bucket);
  void wait_for_side();
  static void reduce(Stream& on, const GradBucket& bucket, const Tensor& buffer);

  Stream& stream_;
  std::unique_ptr<Stream> side_;
  bool side_pending_ = false;  // it has work that the main stream has not waited for
  Tensor in_flight_;           // whole gradients that are being reduced there
};

namespace tied_gradients {

// The head's, where both are in the bucket: [sum of elements].
Tensor head_buffer(const GradBucket& bucket);

// Sums both, of the shard that this rank owns; a call of the stages that have one. Nothing happens for a bucket that is
// no tied embedding's, or whose reduction into shards has summed them.
void sum(Stream& stream, const GradBucket& bucket);

}  // namespace tied_gradients

namespace grad_tree {

// Where the gradients of micro-batch `index` of a rank are written.
int64_t level_of(int64_t index);
// Levels that a rank's micro-batches need.
int64_t level_count(int64_t micro_batches);

// levels [L, ..]: adds the level that micro-batch `index` of `micro_batches` wrote to the one below, and that to the
// next, as far as both are sums of equally many micro-batches. After the last one, all that are left: the sum is in the
// first. The meta device, which may leave micro-batches out, counts the additions after all but the last at the first.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, int64_t micro_batches);

// sources [S, n]: the tree over ranks, into the first: neighbours, then neighbours' neighbours.
void sum_sources(Stream& stream, const Tensor& sources);

}  // namespace grad_tree

}  // namespace witan
