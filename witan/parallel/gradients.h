// Gradient buffers, and their reduction over exactly the axes on which they are Partial.
//
// Gradients of parameters that are reduced over the same ranks, of experts or of all others, lie in buckets
// (ownership.h), each one allocation, so that one collective serves many parameters. Buckets take parameters in reverse
// order, as backward finishes them, and are reduced in one order that is fixed by the parameters alone: every rank
// makes the same calls, whatever its backward does first. On a GPU they run on a stream of their own, beside the
// backward, which the end of the step waits for. Reductions are sums; losses carry the global denominators already.
// With a distributed optimizer a rank ends with the sums of what it owns, and the rest of its gradients is undefined.
//
// Where a stage of a pipeline has several chunks of layers, a bucket has parameters of one of them. Chunks come to
// their backwards one at a time; each reduces its own buckets, in their order.
//
// An embedding that is the head too is a bucket by itself where both gradients are kept apart
// (Layout::sums_heads_apart): they meet at the end of the step, when each is a sum over micro-batches and ranks.
//
// Where ranks divide gradients too (ZeRO stage 2), a bucket is a unit of the model (ownership.h), of which a rank keeps
// its own part alone. The whole is there from the first gradient of a backward that is written until the last one is,
// when it's reduced into the part: of every micro-batch, so that parts sum them up, or of the last alone in a tree,
// which sums a rank's micro-batches before ranks and so keeps the whole until then.
//
// Micro-batches are summed in place (Summation::in_place), or in a binary tree over their index in the global batch
// (Summation::tree): the first largest power of two of them, plus the rest. Of a tree, this rank's micro-batches are a
// run of 2^k, and so are those of the ranks that share a set of experts; ranks are summed in the same tree
// (comm/reduce.h). Then every layout forms the same sums, to the bit. It costs a buffer for each level of the rank's
// own tree, and experts keep their gradient apart by the rank its rows came from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "witan/parallel/sharding/ownership.h"

namespace witan {

enum class Summation : uint8_t { in_place, tree };

struct GradientOptions {
  DType dtype = DType::f32;  // of gradients: float32, or float64 for float64 values
  Summation summation = Summation::in_place;
  int64_t micro_batches = 1;  // of this rank in a step
  bool overlap = true;        // buckets are reduced during the last backward, not after it
  int64_t bucket_elements = BucketPlan::kElements;
  OwnershipPolicy policy = {};
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

  // Before the backward, through a chunk of layers, of this rank's micro-batch 0 … options.micro_batches - 1, which
  // come to every chunk in this order; the backward before it is over. At the first, the chunk's gradients are
  // forgotten; during the last, a bucket is reduced as soon as all its gradients are ready and all of the chunk's
  // buckets before it are; of gradients that ranks divide, during every one.
  void begin_micro_batch(int64_t index, int chunk = 0);
  // After the last: reduces the buckets that are left. Gradients that nobody wrote are zeros then.
  void finish_step();
  // Where they are reduced beside the backward; null: on the main stream.
  Stream* side() const { return side_.get(); }
  // That reductions of this step have taken, within the backward or after it, waiting for peers included.
  double reduction_seconds() const { return reduction_s_; }

  struct Bucket {
    std::vector<Parameter*> parameters;  // in the order of the buffer
    size_t first_parameter = 0;          // the least index in the model of any of them
    Group* group = nullptr;              // all ranks that find summands of its gradients; of which,
    Group* shards = nullptr;    // where several own parts of it, these do, and get the sums of their own part alone,
    Group* replicas = nullptr;  // and these own the same part
    std::vector<int64_t> begins = {};  // [owners + 1]: elements of the buffer
    Group* embedding = nullptr;        // of a tied embedding: the stages that find summands of its gradient
    bool head_apart = false;           // it is the head here too, whose gradient is the second of two sources
    int64_t sources = 1;               // ranks whose rows its gradients are kept apart by
    // Undefined where gradients are divided and none is written:
    Tensor levels = {};       // [levels, sources, sum of elements]: sums of runs of micro-batches; in_place: one level
    Tensor buffer = {};       // [sum of elements]: the first of them, which the step ends with
    Tensor part = {};         // [elements of this owner], where gradients are divided: what the step ends with
    int chunk = 0;            // of layers, that its parameters belong to
    int64_t micro_batch = 0;  // whose gradients are added now
    size_t waiting = 0;       // parameters that are not ready yet

    int64_t elements() const { return begins.back(); }
    bool divided() const { return part.defined(); }
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }  // those of a chunk in the order of their reduction

 private:
  // A chunk's buckets, which it finishes in their order.
  struct Line {
    std::vector<Bucket*> buckets;
    size_t next = 0;  // the first that is not finished: in the last micro-batch, or in this one
  };

  Bucket make_bucket(const BucketPlan& plan, const std::vector<Parameter*>& parameters, const Groups& groups) const;
  void begin_micro_batch(Bucket& bucket, int64_t index);
  void make_whole(Bucket& bucket, MemoryTag tag) const;
  void keep_part(Bucket& bucket) const;
  void bind(const Bucket& bucket, int64_t level, int64_t sources);
  void bind_for_micro_batch(Bucket& bucket);
  void finish_left(Line& line);
  void end_backward();
  void on_ready(Bucket& bucket);
  void finish_micro_batch(Bucket& bucket);
  void write_zeros(Bucket& bucket);
  void sum_levels(const Bucket& bucket);
  void sum_sources(const Bucket& bucket);
  Stream& reduction_stream(const Bucket& bucket);
  void wait_for_side();
  void reduce(const Bucket& bucket, const Tensor& buffer);
  void reduce_into_part(Bucket& bucket);
  void meet_head(const Bucket& bucket);
  bool reduces_now(const Bucket& bucket) const {
    return in_last(bucket) || (bucket.divided() && options_.summation == Summation::in_place);
  }
  bool in_last(const Bucket& bucket) const { return bucket.micro_batch + 1 == options_.micro_batches; }

  Stream& stream_;
  std::unique_ptr<Stream> side_;  // on a GPU with peers: reductions, beside the backward
  bool beside_ = false;           // it has work that the main stream has not waited for
  GradientOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Line> lines_;    // by chunk
  Line* under_way_ = nullptr;  // of the chunk whose backward it is
  bool divided_ = false;       // some buckets: all are finished in their order then, in every micro-batch
  Tensor in_flight_;           // whole gradients that are being reduced beside the backward
  double reduction_s_ = 0;
};

}  // namespace witan
