// Gradient buckets of a model: where gradients are written, and when they are reduced.
//
// Gradients of parameters that are reduced over the same ranks, of experts or of all others, lie in buckets
// (shard_plan.h), each one allocation, so that one collective serves many parameters. Buckets take parameters in
// reverse order, as backward finishes them, and are reduced (grad_reduce.h) in one order that is fixed by the
// parameters alone: every rank makes the same calls, whatever its backward does first.
//
// Where a pipeline stage has several chunks of layers, a bucket has parameters of one of them. Chunks come to their
// backwards one at a time; each reduces its own buckets, in their order.
//
// Where gradients are sharded (ZeRO stage 2), a bucket is a unit of the model (model/unit.h), of which a rank holds its
// own shard only. The full bucket exists from the first gradient that a backward writes to the last one, when it is
// reduced into the shard: after every micro-batch, so that shards accumulate them, or in a tree only after the last
// one, since a tree sums a rank's micro-batches before ranks and holds the full bucket until then.
//
// A gradient that is complete once a product has written it, because no other rank has a summand of it, keeps sums of
// its blocks (kernels/common/block_sums.h), which the product makes while it has the numbers: the norm reads these
// instead. Not in a tree, whose sums of micro-batches no product sees, and which promises the norm's bits in every
// layout.
//
// Micro-batches are summed in place (Summation::in_place), or in a binary tree (Summation::tree, grad_tree.h), which
// costs a buffer for each level of the rank's own tree; experts then have a separate gradient for each rank that rows
// came from. A tied embedding is a bucket by itself where its two gradients are separate (tied_gradients.h).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "witan/parallel/sharding/grad_reduce.h"

namespace witan {

enum class Summation : uint8_t { in_place, tree };

struct GradientOptions {
  DType dtype = DType::f32;  // of gradients: float32, or float64 for float64 values
  Summation summation = Summation::in_place;
  int64_t micro_batches = 1;  // of this rank in a step, at most
  bool overlap = true;        // buckets are reduced during the last backward, not after it
  bool norm_fusion = false;   // gradients that products may sum up keep sums of blocks
  int64_t bucket_elements = BucketPlan::kElements;
  ShardingPolicy policy = {};
};

class GradientBuckets {
 public:
  // Allocates the buffers and binds them to the parameters, whose gradient_ready it listens to until it is destroyed.
  // Stream, parameters and groups must outlive it.
  GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups,
                  const GradientOptions& options);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Steps have so many micro-batches of this rank from the next one on: options.micro_batches until this is called.
  void expect(int64_t micro_batches);
  // Before the backward, through a chunk of layers, of each of a step's micro-batches, numbered from 0, which come to
  // every chunk in this order; the backward before it is over. At the first, the chunk's gradients are
  // forgotten; during the last, a bucket is reduced as soon as all its gradients are ready and all of the chunk's
  // buckets before it are; of sharded gradients, during every one.
  void begin_micro_batch(int64_t index, int chunk = 0);
  // After the last: reduces the buckets that are left. Gradients that nobody wrote are zeros then.
  void finish_step();
  // Told of each bucket whose gradients of a micro-batch are complete, before anything else is made of them: in place
  // they are sums over the micro-batches so far. Empty: nobody is.
  void observe(std::function<void(const GradBucket&)> observer) { observer_ = std::move(observer); }
  // Where they are reduced beside the backward; null: on the main stream.
  Stream* side() const { return reduce_.side(); }
  // That reductions of this step have taken, within the backward or after it, waiting for peers included.
  double reduction_seconds() const { return reduction_s_; }

  const std::vector<GradBucket>& buckets() const {
    return buckets_;
  }  // those of a chunk in the order of their reduction

 private:
  // A chunk's buckets, which it finishes in their order.
  struct Line {
    std::vector<GradBucket*> buckets;
    size_t next = 0;  // the first that is not finished: in the last micro-batch, or in this one
  };

  GradBucket make_bucket(const BucketPlan& plan, const std::vector<Parameter*>& parameters, const Groups& groups) const;
  void begin_micro_batch(GradBucket& bucket, int64_t index);
  void make_whole(GradBucket& bucket, MemoryTag tag) const;
  void make_shard(GradBucket& bucket) const;
  bool sums_blocks(const GradBucket& bucket, const Parameter& parameter) const;
  void make_block_sums(const GradBucket& bucket) const;
  void bind(const GradBucket& bucket, int64_t level, int64_t sources);
  void bind_for_micro_batch(GradBucket& bucket);
  void finish_left(Line& line);
  void end_backward();
  void on_ready(GradBucket& bucket);
  void finish_micro_batch(GradBucket& bucket);
  void write_zeros(GradBucket& bucket);
  void sum_tree(GradBucket& bucket);
  bool tree() const { return options_.summation == Summation::tree; }
  bool reduces_now(const GradBucket& bucket) const { return in_last(bucket) || (bucket.sharded() && !tree()); }
  bool in_last(const GradBucket& bucket) const { return bucket.micro_batch + 1 == micro_batches_; }

  Stream& stream_;
  GradReduce reduce_;
  GradientOptions options_;
  int64_t micro_batches_;  // of a step
  std::vector<GradBucket> buckets_;
  std::vector<Line> lines_;    // by chunk
  Line* under_way_ = nullptr;  // of the chunk whose backward it is
  bool sharded_ = false;       // some buckets: all are finished in their order then, in every micro-batch
  double reduction_s_ = 0;
  std::function<void(const GradBucket&)> observer_;
};

}  // namespace witan
