#include "witan/parallel/sharding/grad_reduce.h"

#include <bit>
#include <utility>

#include "witan/kernels/pointwise/elementwise.h"

namespace witan {

GradReduce::GradReduce(Stream& stream, const Groups& groups) : stream_(stream) {
  constexpr int64_t kSideScratch = int64_t{64} << 20;  // for the pieces in which groups sum
  if (stream.plans_for_cuda() && groups.world().size() > 1) side_ = std::make_unique<Stream>(stream, kSideScratch);
}

Stream& GradReduce::stream_for(const GradBucket& bucket) {
  if (!side_ || bucket.group->size() == 1) return stream_;
  if (bucket.sharded()) finish();  // frees the memory of the previous bucket
  side_->follow(stream_);
  side_pending_ = true;
  return *side_;
}

// A recorded step can only wait for work that is part of it.
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

// Sums shards over their group first, whose ranks are neighbours in the order of all ranks, so that the tree is the
// same.
void GradReduce::reduce(Stream& on, const GradBucket& bucket, const Tensor& buffer) {
  if (bucket.shard_group->size() == 1) return bucket.group->all_reduce(on, buffer);
  bucket.shard_group->reduce_scatter_uneven(on, buffer, bucket.begins);
  const auto [begin, count] = bucket.own_range();
  if (count > 0) bucket.replicas->all_reduce(on, buffer.narrow(0, begin, count));
}

// Replicas are summed once a step after summing in place, but in a tree before its sources are.
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

namespace tied_gradients {

// The head's gradient is the second source.
Tensor head_buffer(const GradBucket& bucket) {
  const int64_t total = bucket.buffer.elements();
  return bucket.levels.reshape({bucket.levels.elements()}).narrow(0, total, total);
}

void sum(Stream& stream, const GradBucket& bucket) {
  if (bucket.embedding == nullptr) return;
  const auto [begin, count] = bucket.own_range();
  if (count == 0) return;
  const Tensor own = bucket.sharded() ? bucket.shard : bucket.buffer.narrow(0, begin, count);
  if (!bucket.head_apart)
    bucket.embedding->all_reduce(stream, own);
  else if (!bucket.sharded())
    kernels::add(stream, own, own, head_buffer(bucket).narrow(0, begin, count));
}

}  // namespace tied_gradients

namespace grad_tree {

namespace {

// Counts `times` additions of one level to another as kernels::add would.
void count_additions(Stream& stream, const Tensor& level, double times) {
  if (times == 0) return;  // Stream::count would count no calls as one
  stream.count(
      "add", {times * static_cast<double>(level.elements()), times * kernels::bytes_of(level, level, level), 0, times});
}

}  // namespace

int64_t level_of(int64_t index) {
  return std::popcount(static_cast<uint64_t>(index));
}

int64_t level_count(int64_t micro_batches) {
  return std::bit_width(static_cast<uint64_t>(micro_batches));
}

// One addition for each bit that carries, as when counting: in total one fewer than there are micro-batches.
void sum_levels(Stream& stream, const Tensor& levels, int64_t index, int64_t micro_batches) {
  const int64_t end = micro_batches - 1;
  const auto level = [&](int64_t i) { return levels.narrow(0, i, 1); };
  if (stream.is_meta() && index < end) {
    if (index == 0) count_additions(stream, level(0), static_cast<double>(end - level_of(end)));
    return;
  }
  const int64_t top = level_of(index);
  const int64_t bottom = index == end ? 0 : top - std::countr_one(static_cast<uint64_t>(index));
  for (int64_t i = top; i > bottom; --i) kernels::add(stream, level(i - 1), level(i - 1), level(i));
}

void sum_sources(Stream& stream, const Tensor& sources) {
  const auto source = [&](int64_t i) { return sources.narrow(0, i, 1); };
  for (int64_t distance = 1; distance < sources.size(0); distance *= 2)
    for (int64_t i = 0; i + distance < sources.size(0); i += 2 * distance)
      kernels::add(stream, source(i), source(i), source(i + distance));
}

}  // namespace grad_tree

}  // namespace witan
