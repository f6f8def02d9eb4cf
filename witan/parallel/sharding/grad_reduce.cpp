#include "witan/parallel/sharding/grad_reduce.h"

#include <utility>

#include "witan/kernels/pointwise/elementwise.h"
#include "witan/parallel/sharding/tied_gradients.h"

namespace witan {

GradReduce::GradReduce(Stream& stream, const Groups& groups) : stream_(stream) {
  constexpr int64_t kSideScratch = int64_t{64} << 20;  // of the pieces in which groups sum
  if (stream.plans_for_cuda() && groups.world().size() > 1) side_ = std::make_unique<Stream>(stream, kSideScratch);
}

Stream& GradReduce::stream_for(const GradBucket& bucket) {
  if (!side_ || bucket.group->size() == 1) return stream_;
  if (bucket.sharded()) finish();  // what was reduced before gives its memory back
  side_->follow(stream_);
  side_pending_ = true;
  return *side_;
}

// In a recorded step only what is part of it can be waited for.
void GradReduce::wait_for_side() {
  if (std::exchange(side_pending_, false)) stream_.follow(*side_);
}

void GradReduce::finish() {
  wait_for_side();
  in_flight_ = {};
}

void GradReduce::all_reduce(const GradBucket& bucket) {
  reduce(stream_for(bucket), bucket, bucket.buffer);
  if (bucket.head_apart) reduce(stream_for(bucket), bucket, tied_gradients::head_buffer(bucket));
}

// Shards are summed over their group first, whose ranks are neighbours in the order of all: the same tree.
void GradReduce::reduce(Stream& on, const GradBucket& bucket, const Tensor& buffer) {
  if (bucket.shard_group->size() == 1) return bucket.group->all_reduce(on, buffer);
  bucket.shard_group->reduce_scatter_uneven(on, buffer, bucket.begins);
  const auto [begin, count] = bucket.own_range();
  if (count > 0) bucket.replicas->all_reduce(on, buffer.narrow(0, begin, count));
}

// Replicas of what was summed in place are summed once a step, those of a tree before its sources are.
void GradReduce::reduce_into_shard(GradBucket& bucket, Into into) {
  Stream& on = stream_for(bucket);
  const auto [begin, count] = bucket.own_range();
  const auto own_of = [&, begin = begin, count = count](const Tensor& buffer) {
    bucket.shard_group->reduce_scatter_uneven(on, buffer, bucket.begins);
    const Tensor own = buffer.narrow(0, begin, count);
    if (into.tree && count > 0) bucket.replicas->all_reduce(on, own);
    return own;
  };
  const Tensor own = own_of(bucket.buffer);
  if (bucket.head_apart) kernels::add(on, own, own, own_of(tied_gradients::head_buffer(bucket)));
  const Write write = into.tree || into.first ? Write::overwrite : Write::accumulate;
  kernels::accumulate(on, bucket.shard, write, own);
  if (!into.tree && into.last && count > 0) bucket.replicas->all_reduce(on, bucket.shard);

  for (Parameter* parameter : bucket.parameters) parameter->unbind_gradient();
  bucket.buffer = {};
  Tensor whole = std::exchange(bucket.levels, {});
  if (side_) in_flight_ = std::move(whole);
}

}  // namespace witan
