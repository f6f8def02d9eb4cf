// The gradient buckets of a model: they hold the gradients, and decide when they are reduced.
//
// Gradients of parameters that are reduced over the same ranks, those of experts or those of all others, lie in buckets
// (shard_plan.h), each a single allocation, so that one collective serves many parameters. Buckets take parameters in
// reverse order, as backward finishes them, and are reduced (grad_reduce.h) in one order that is fixed by the
// parameters alone: every rank makes the same calls, whatever its backward does first.
//
// If a pipeline stage has several chunks of layers, a bucket has parameters of one chunk. Chunks come to their
// backwards one at a time; each reduces its own buckets, in their order.
//
// If gradients are sharded (ZeRO stage 2), a bucket is a unit of the model (model/unit.h), of which a rank keeps only
// its own shard. The full bucket exists from the first gradient that a backward writes until it is reduced into the
// shard. Shards accumulate the micro-batches, so that this happens after every one; a tree sums a rank's micro-batches
// before ranks, so that it holds the full bucket until after the last one.
//
// A gradient that is complete once a GEMM has written it, because no other rank has a summand of it, keeps sums of its
// blocks (kernels/common/block_sums.h), which the GEMM computes from values that it has at hand: the norm reads these
// instead. A tree does without, as no GEMM sees its sums of micro-batches, and it promises the norm's bits in every
// layout.
//
// Micro-batches are summed in place (Summation::in_place), or in a binary tree (Summation::tree, grad_tree), which
// costs a buffer for each level of the rank's own tree; experts then have a separate gradient for each rank that tokens
// came from. A tied embedding is a bucket by itself if its two gradients are separate (tied_gradients).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "witan/parallel/sharding/grad_reduce.h"

namespace witan {

enum class Summation : uint8_t { in_place, tree };

struct GradientOptions {
  DType dtype = DType::f32;  // dtype of gradients: float32, or float64 for float64 values
  Summation summation = Summation::in_place;
  int64_t micro_batches = 1;  // at most this many per rank and step
  bool overlap = true;        // reduce buckets during the last backward instead of after it
  bool norm_fusion = false;   // keep block sums of gradients that GEMMs can sum up
  int64_t bucket_elements = BucketPlan::kElements;
  ShardingPolicy policy = {};
};

class GradientBuckets {
 public:
  // Allocates the buffers and binds them to the parameters, to whose gradient_ready it listens until it is destroyed.
  // Stream, parameters and groups must outlive it.
  GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups,
                  const GradientOptions& options);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Sets the number of this rank's micro-batches for the following steps; initially options.micro_batches.
  void expect(int64_t micro_batches);
  // Called before the backward of each of a step's micro-batches through a chunk of layers. Micro-batches are numbered
  // from 0 and come to every chunk in this order, after the previous backward is over. The first one discards the
  // chunk's old gradients. During the last one a bucket is reduced as soon as all its gradients are ready and all of
  // the chunk's earlier buckets are reduced; sharded gradients are reduced during every one.
  void begin_micro_batch(int64_t index, int chunk = 0);
  // Called after the last backward: reduces the remaining buckets. Gradients that were not written are zeros then.
  void finish_step();
  // Calls `observer` for each bucket whose gradients of a micro-batch are complete, before they are used: in place they
  // are sums over the micro-batches so far. An empty function removes the observer.
  void observe(std::function<void(const GradBucket&)> observer) { observer_ = std::move(observer); }
  // The stream of reductions that overlap with the backward; nullptr: the main stream.
  Stream* side() const { return reduce_.side(); }
  // Seconds that this step's reductions took, during the backward or after it, including waits for peers.
  double reduction_seconds() const { return reduction_s_; }

  const std::vector<GradBucket>& buckets() const {
    return buckets_;
  }  // buckets of a chunk are in the order of their reduction

 private:
  // The buckets of a chunk, which are finished in order.
  struct Line {
    std::vector<GradBucket*> buckets;
    size_t next = 0;  // the first bucket that is not finished: in the last micro-batch, or in this one if sharded
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
  int64_t micro_batches_;  // per step
  std::vector<GradBucket> buckets_;
  std::vector<Line> lines_;    // by chunk
  Line* under_way_ = nullptr;  // line of the chunk whose backward is running
  bool sharded_ = false;       // some buckets are sharded, so that all are finished in order in every micro-batch
  double reduction_s_ = 0;
  std::function<void(const GradBucket&)> observer_;
};

}  // namespace witan
