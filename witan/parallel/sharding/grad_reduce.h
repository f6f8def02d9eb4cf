// Reduces gradient buckets over ranks, on a GPU on a side stream during the backward. Reductions are sums;
// losses carry the global denominators already. Where the optimizer is sharded, a rank ends with the sums of its own
// shard, and the rest of its gradients is undefined.
#pragma once

#include <memory>

#include "witan/parallel/sharding/grad_bucket.h"

namespace witan {

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

}  // namespace witan
