#include "witan/parallel/sharding/grad_buckets.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/base/process.h"
#include "witan/kernels/common/block_sums.h"
#include "witan/parallel/sharding/grad_reduce.h"
#include "witan/tensor/trace_context.h"

namespace witan {
GradientBuckets::GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups,
                                 const GradientOptions& options)
    : stream_(stream), reduce_(stream, groups), options_(options), micro_batches_(options.micro_batches) {
  for (const BucketPlan& plan : plan_gradients(parameters, groups.layout(), options.bucket_elements, options.policy))
    if (!plan.frozen) buckets_.push_back(make_bucket(plan, parameters, groups));
  for (const Parameter* parameter : parameters)  // chunks without trainable parameters have a line too
    lines_.resize(std::max(lines_.size(), static_cast<size_t>(parameter->spec().chunk) + 1));
  for (GradBucket& bucket : buckets_) {
    sharded_ = sharded_ || bucket.sharded();
    lines_[static_cast<size_t>(bucket.chunk)].buckets.push_back(&bucket);
    for (Parameter* parameter : bucket.parameters) {
      parameter->gradient_ready = [this, &bucket](Parameter&) { on_ready(bucket); };
      if (bucket.sharded()) parameter->make_gradient = [this, &bucket] { bind_for_micro_batch(bucket); };
    }
  }
  for (GradBucket& bucket : buckets_) begin_micro_batch(bucket, 0);
}

GradientBuckets::~GradientBuckets() {
  for (const GradBucket& bucket : buckets_)
    for (Parameter* parameter : bucket.parameters) {
      parameter->gradient_ready = nullptr;
      parameter->make_gradient = nullptr;
      parameter->bind_gradient_block_sums({});
    }
}

GradBucket GradientBuckets::make_bucket(const BucketPlan& plan, const std::vector<Parameter*>& parameters,
                                        const Groups& groups) const {
  GradBucket bucket;
  bucket.first_parameter = plan.first();
  for (const size_t i : plan.parameters) bucket.parameters.push_back(parameters[i]);
  bucket.group = &groups.over(plan.axes);
  const Axes owners = groups.layout().sharding_axes(plan.experts);
  bucket.shard_group = &groups.over(owners);
  Axes others = plan.axes;
  std::erase_if(others, [&](Axis axis) { return std::ranges::find(owners, axis) != owners.end(); });
  bucket.replicas = &groups.over(others);
  bucket.begins = plan.begins;
  bucket.chunk = bucket.parameters.front()->spec().chunk;
  if (plan.experts && tree()) bucket.sources = groups.of(Axis::expert).size();
  if (plan.tied) {
    bucket.embedding = &groups.embedding();
    bucket.head_apart = tree() && groups.of(Axis::pipeline).size() == 1;
    if (bucket.head_apart) bucket.sources = 2;
  }
  const TraceContextScope named(stream_, bucket.parameters.front()->name());
  if (groups.layout().shards_gradients(plan.experts))
    make_shard(bucket);
  else
    make_whole(bucket, MemoryTag::gradients);
  make_block_sums(bucket);
  return bucket;
}

// A GEMM that accumulates into float32 would sum blocks in an extra pass over the gradient in every micro-batch, while
// the norm itself makes one pass per step.
bool GradientBuckets::sums_blocks(const GradBucket& bucket, const Parameter& parameter) const {
  return options_.norm_fusion && parameter.can_sum_blocks && !tree() && !bucket.sharded() &&
         bucket.group->size() == 1 && (options_.dtype == DType::bf16 || options_.micro_batches == 1);
}

void GradientBuckets::make_block_sums(const GradBucket& bucket) const {
  for (Parameter* parameter : bucket.parameters)
    if (sums_blocks(bucket, *parameter))
      parameter->bind_gradient_block_sums(
          stream_.empty(kernels::block_sums_shape(parameter->shape()), DType::f64, MemoryTag::workspace));
}

void GradientBuckets::make_whole(GradBucket& bucket, MemoryTag tag) const {
  bucket.levels =
      stream_.empty({tree() ? grad_tree::level_count(options_.micro_batches) : 1, bucket.sources, bucket.elements()},
                    options_.dtype, tag);
  bucket.buffer = bucket.levels.reshape({bucket.levels.elements()}).narrow(0, 0, bucket.elements());
}

void GradientBuckets::make_shard(GradBucket& bucket) const {
  const auto [begin, count] = bucket.own_range();
  bucket.shard = stream_.empty({count}, options_.dtype, MemoryTag::gradients);
  int64_t at = 0;  // offset of the parameter in the bucket
  for (Parameter* parameter : bucket.parameters) {
    const int64_t end = at + parameter->elements();
    const int64_t first = std::clamp(begin, at, end), last = std::clamp(begin + count, at, end);
    if (first < last) parameter->bind_gradient_shard(bucket.shard.narrow(0, first - begin, last - first), first - at);
    if (bucket.head_apart) parameter->set_head_gradient_apart();
    at = end;
  }
}

// Binds gradients to this level, separately for each source.
void GradientBuckets::bind(const GradBucket& bucket, int64_t level, int64_t sources) {
  const int64_t total = bucket.elements();
  const Tensor flat = bucket.levels.reshape({bucket.levels.elements()});
  int64_t begin = level * bucket.sources * total;
  for (Parameter* parameter : bucket.parameters) {
    const auto part_from = [&](int64_t source) {
      return flat.narrow(0, begin + source * total, parameter->elements()).reshape(std::as_const(*parameter).shape());
    };
    std::vector<Tensor> parts;
    for (int64_t source = 0; source < (bucket.head_apart ? 1 : sources); ++source) parts.push_back(part_from(source));
    parameter->bind_gradient_parts(std::move(parts));
    if (bucket.head_apart && sources > 1) parameter->bind_head_gradient(part_from(1));
    begin += parameter->elements();
  }
}

void GradientBuckets::expect(int64_t micro_batches) {
  assert(micro_batches >= 1 && micro_batches <= options_.micro_batches && under_way_ == nullptr);
  micro_batches_ = micro_batches;
}

void GradientBuckets::begin_micro_batch(int64_t index, int chunk) {
  assert(index >= 0 && index < micro_batches_);
  if (under_way_ == nullptr) reduction_s_ = 0;  // first backward of a step
  end_backward();
  under_way_ = &lines_.at(static_cast<size_t>(chunk));
  under_way_->next = 0;
  for (GradBucket* bucket : under_way_->buckets) begin_micro_batch(*bucket, index);
}

void GradientBuckets::begin_micro_batch(GradBucket& bucket, int64_t index) {
  // The bucket has parameters that the previous micro-batch did not use.
  if (!sharded_ && index > 0 && bucket.waiting > 0) finish_micro_batch(bucket);
  bucket.micro_batch = index;
  bucket.waiting = bucket.parameters.size();
  const bool anew = index == 0 || tree();
  if (anew && bucket.levels.defined()) bind_for_micro_batch(bucket);
}

// Binds gradients of the bucket's current micro-batch to their place; full ones are allocated if there are none.
void GradientBuckets::bind_for_micro_batch(GradBucket& bucket) {
  if (!bucket.levels.defined()) make_whole(bucket, MemoryTag::communication);
  if (tree())
    bind(bucket, grad_tree::level_of(bucket.micro_batch), bucket.sources);
  else
    bind(bucket, 0, 1);
}

// Finishes buckets with parameters that the micro-batch did not use.
void GradientBuckets::finish_left(Line& line) {
  while (line.next < line.buckets.size()) finish_micro_batch(*line.buckets[line.next++]);
}

// The rest of this chunk is reduced before another chunk's buckets, so that the order is the same on every rank.
void GradientBuckets::end_backward() {
  if (under_way_ == nullptr || under_way_->buckets.empty() || !options_.overlap) return;
  if (sharded_ || in_last(*under_way_->buckets.front())) finish_left(*under_way_);
}

void GradientBuckets::finish_step() {
  end_backward();
  for (Line& line : lines_) {
    assert(std::ranges::all_of(line.buckets, [&](const GradBucket* bucket) { return in_last(*bucket); }));
    finish_left(line);
    line.next = 0;
  }
  under_way_ = nullptr;
  reduce_.finish();
  for (const GradBucket& bucket : buckets_) tied_gradients::sum(stream_, bucket);
}

void GradientBuckets::on_ready(GradBucket& bucket) {
  assert(bucket.waiting > 0);
  --bucket.waiting;
  if (!in_last(bucket) && !sharded_) {
    if (bucket.waiting == 0) finish_micro_batch(bucket);
    return;
  }
  if (in_last(bucket) && !options_.overlap) return;
  const auto is_ready = [&](const GradBucket& one) {
    return one.waiting == 0 && one.micro_batch == bucket.micro_batch;
  };
  Line& line = lines_[static_cast<size_t>(bucket.chunk)];
  while (line.next < line.buckets.size() && is_ready(*line.buckets[line.next]))
    finish_micro_batch(*line.buckets[line.next++]);
}

// Called when all gradients of the bucket and micro-batch are written: sums what is complete, over ranks too if it is
// time.
void GradientBuckets::finish_micro_batch(GradBucket& bucket) {
  if (tree() || reduces_now(bucket)) write_zeros(bucket);
  if (observer_) observer_(bucket);
  if (tree()) sum_tree(bucket);
  if (!reduces_now(bucket)) return;
  const Stopwatch reduction;
  const TraceContextScope trace_context(stream_, bucket.parameters.front()->name());
  trace_context->op = "gradients";
  if (bucket.sharded())
    reduce_.reduce_into_shard(bucket, {tree(), bucket.micro_batch == 0, in_last(bucket)});
  else
    reduce_.all_reduce(bucket);
  reduction_s_ += reduction.seconds();
}

// Sums over this rank's micro-batches and, after the last one, over sources.
void GradientBuckets::sum_tree(GradBucket& bucket) {
  grad_tree::sum_levels(stream_, bucket.levels, bucket.micro_batch, options_.micro_batches);
  if (!in_last(bucket)) return;
  if (!bucket.head_apart)
    grad_tree::sum_sources(stream_, bucket.levels.narrow(0, 0, 1).reshape({bucket.sources, bucket.elements()}));
  bind(bucket, 0, 1);
  for (Parameter* parameter : bucket.parameters) parameter->gradient_written = true;
}

void GradientBuckets::write_zeros(GradBucket& bucket) {
  if (!bucket.levels.defined()) bind_for_micro_batch(bucket);
  for (Parameter* parameter : bucket.parameters) {
    if (Leaf& head = parameter->as_head(); bucket.head_apart && !head.gradient_written) stream_.zero(head.gradient());
    if (parameter->gradient_written) continue;
    for (int64_t part = 0; part < parameter->gradient_parts(); ++part) stream_.zero(parameter->gradient_part(part));
    if (const Tensor sums = parameter->gradient_block_sums(); sums.defined())
      kernels::block_square_sums(stream_, sums, parameter->gradient());
    parameter->gradient_written = true;
  }
}

}  // namespace witan
