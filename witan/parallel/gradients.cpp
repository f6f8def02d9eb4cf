#include "witan/parallel/gradients.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "witan/base/stopwatch.h"
#include "witan/kernels/elementwise.h"
#include "witan/tensor/trail.h"

namespace witan {
namespace {

// Of micro-batch `index`, which goes on top of the sums that are not complete yet: a run for each bit of the index.
int64_t level_of(int64_t index) {
  return std::popcount(static_cast<uint64_t>(index));
}

int64_t level_count(const GradientOptions& options) {
  if (options.summation == Summation::in_place) return 1;
  int64_t levels = 1;
  for (int64_t index = 0; index < options.micro_batches; ++index) levels = std::max(levels, level_of(index) + 1);
  return levels;
}

// The head's gradients of a tied embedding, where they are kept apart: the second source.
Tensor head_buffer(const GradientBuckets::Bucket& bucket) {
  const int64_t total = bucket.buffer.elements();
  return bucket.levels.reshape({bucket.levels.elements()}).narrow(0, total, total);
}

}  // namespace

GradientBuckets::GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups,
                                 const GradientOptions& options)
    : stream_(stream), options_(options) {
  constexpr int64_t kSideScratch = int64_t{64} << 20;  // of the pieces in which groups sum
  if (stream.plans_for_cuda() && groups.world().size() > 1) side_ = std::make_unique<Stream>(stream, kSideScratch);
  for (const BucketPlan& plan : plan_gradients(parameters, groups.layout(), options.bucket_elements, options.policy))
    buckets_.push_back(make_bucket(plan, parameters, groups));
  for (Bucket& bucket : buckets_) {
    divided_ = divided_ || bucket.divided();
    lines_.resize(std::max(lines_.size(), static_cast<size_t>(bucket.chunk) + 1));
    lines_[static_cast<size_t>(bucket.chunk)].buckets.push_back(&bucket);
    for (Parameter* parameter : bucket.parameters) {
      parameter->gradient_ready = [this, &bucket](Parameter&) { on_ready(bucket); };
      if (bucket.divided()) parameter->make_gradient = [this, &bucket] { bind_for_micro_batch(bucket); };
    }
  }
  for (Bucket& bucket : buckets_) begin_micro_batch(bucket, 0);
}

GradientBuckets::~GradientBuckets() {
  for (const Bucket& bucket : buckets_)
    for (Parameter* parameter : bucket.parameters) {
      parameter->gradient_ready = nullptr;
      parameter->make_gradient = nullptr;
    }
}

GradientBuckets::Bucket GradientBuckets::make_bucket(const BucketPlan& plan, const std::vector<Parameter*>& parameters,
                                                     const Groups& groups) const {
  Bucket bucket;
  bucket.first_parameter = plan.first();
  for (const size_t i : plan.parameters) bucket.parameters.push_back(parameters[i]);
  bucket.group = &groups.over(plan.axes);
  const Axes owners = groups.layout().owner_axes(plan.experts);
  bucket.shards = &groups.over(owners);
  Axes others = plan.axes;
  std::erase_if(others, [&](Axis axis) { return std::ranges::find(owners, axis) != owners.end(); });
  bucket.replicas = &groups.over(others);
  bucket.begins = plan.begins;
  bucket.chunk = bucket.parameters.front()->spec().chunk;
  if (plan.experts && options_.summation == Summation::tree) bucket.sources = groups.of(Axis::expert).size();
  if (plan.tied) {
    bucket.embedding = &groups.embedding();
    bucket.head_apart = options_.summation == Summation::tree && groups.of(Axis::pipeline).size() == 1;
    if (bucket.head_apart) bucket.sources = 2;
  }
  if (groups.layout().divides_gradients(plan.experts))
    keep_part(bucket);
  else
    make_whole(bucket, MemoryTag::gradients);
  return bucket;
}

void GradientBuckets::make_whole(Bucket& bucket, MemoryTag tag) const {
  bucket.levels = stream_.empty({level_count(options_), bucket.sources, bucket.elements()}, options_.dtype, tag);
  bucket.buffer = bucket.levels.reshape({bucket.levels.elements()}).narrow(0, 0, bucket.elements());
}

void GradientBuckets::keep_part(Bucket& bucket) const {
  const auto [begin, count] = part_of(bucket.begins, bucket.shards->rank());
  bucket.part = stream_.empty({count}, options_.dtype, MemoryTag::gradients);
  int64_t at = 0;  // of the parameter in the bucket
  for (Parameter* parameter : bucket.parameters) {
    const int64_t end = at + parameter->elements();
    const int64_t first = std::clamp(begin, at, end), last = std::clamp(begin + count, at, end);
    if (first < last) parameter->bind_gradient_shard(bucket.part.narrow(0, first - begin, last - first), first - at);
    if (bucket.head_apart) parameter->set_head_gradient_apart();
    at = end;
  }
}

// Gradients are in this level from now on, kept apart by so many sources.
void GradientBuckets::bind(const Bucket& bucket, int64_t level, int64_t sources) {
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

void GradientBuckets::begin_micro_batch(int64_t index, int chunk) {
  assert(index >= 0 && index < options_.micro_batches);
  if (under_way_ == nullptr) reduction_s_ = 0;  // a step begins
  end_backward();
  under_way_ = &lines_.at(static_cast<size_t>(chunk));
  under_way_->next = 0;
  for (Bucket* bucket : under_way_->buckets) begin_micro_batch(*bucket, index);
}

void GradientBuckets::begin_micro_batch(Bucket& bucket, int64_t index) {
  // It has parameters that the micro-batch before did not use.
  if (!divided_ && index > 0 && bucket.waiting > 0) finish_micro_batch(bucket);
  bucket.micro_batch = index;
  bucket.waiting = bucket.parameters.size();
  const bool anew = index == 0 || options_.summation == Summation::tree;
  if (anew && bucket.levels.defined()) bind_for_micro_batch(bucket);
}

// Gradients of the bucket's micro-batch go where they belong; whole ones are made where there are none.
void GradientBuckets::bind_for_micro_batch(Bucket& bucket) {
  if (!bucket.levels.defined()) make_whole(bucket, MemoryTag::communication);
  if (options_.summation == Summation::tree)
    bind(bucket, level_of(bucket.micro_batch), bucket.sources);
  else
    bind(bucket, 0, 1);
}

// Those with parameters that the micro-batch did not use.
void GradientBuckets::finish_left(Line& line) {
  while (line.next < line.buckets.size()) finish_micro_batch(*line.buckets[line.next++]);
}

// What is left of it is reduced before another chunk's buckets are: every rank has the same order.
void GradientBuckets::end_backward() {
  if (under_way_ == nullptr || !options_.overlap) return;
  if (divided_ || in_last(*under_way_->buckets.front())) finish_left(*under_way_);
}

void GradientBuckets::finish_step() {
  end_backward();
  for (Line& line : lines_) {
    assert(std::ranges::all_of(line.buckets, [&](const Bucket* bucket) { return in_last(*bucket); }));
    finish_left(line);
    line.next = 0;
  }
  under_way_ = nullptr;
  wait_for_side();
  in_flight_ = {};
  for (const Bucket& bucket : buckets_)
    if (bucket.embedding != nullptr) meet_head(bucket);
}

void GradientBuckets::on_ready(Bucket& bucket) {
  assert(bucket.waiting > 0);
  --bucket.waiting;
  if (!in_last(bucket) && !divided_) {
    if (bucket.waiting == 0) finish_micro_batch(bucket);
    return;
  }
  if (in_last(bucket) && !options_.overlap) return;
  const auto is_ready = [&](const Bucket& one) { return one.waiting == 0 && one.micro_batch == bucket.micro_batch; };
  Line& line = lines_[static_cast<size_t>(bucket.chunk)];
  while (line.next < line.buckets.size() && is_ready(*line.buckets[line.next]))
    finish_micro_batch(*line.buckets[line.next++]);
}

// All gradients of the bucket and the micro-batch are written: sums what is complete, over ranks where it is time.
void GradientBuckets::finish_micro_batch(Bucket& bucket) {
  const bool tree = options_.summation == Summation::tree;
  if (tree || reduces_now(bucket)) write_zeros(bucket);
  if (tree) sum_levels(bucket);
  if (!reduces_now(bucket)) return;
  if (tree) {
    if (!bucket.head_apart) sum_sources(bucket);
    bind(bucket, 0, 1);
    for (Parameter* parameter : bucket.parameters) parameter->gradient_written = true;
  }
  const Stopwatch reduction;
  const TrailScope trail(stream_, bucket.parameters.front()->name());
  trail->op = "gradients";
  if (bucket.divided()) {
    reduce_into_part(bucket);
  } else {
    reduce(bucket, bucket.buffer);
    if (bucket.head_apart) reduce(bucket, head_buffer(bucket));
  }
  reduction_s_ += reduction.seconds();
}

Stream& GradientBuckets::reduction_stream(const Bucket& bucket) {
  if (!side_ || bucket.group->size() == 1) return stream_;
  if (bucket.divided()) {  // what was reduced before gives its memory back
    wait_for_side();
    in_flight_ = {};
  }
  side_->follow(stream_);
  beside_ = true;
  return *side_;
}

// In a recorded step only what is part of it can be waited for.
void GradientBuckets::wait_for_side() {
  if (std::exchange(beside_, false)) stream_.follow(*side_);
}

// Over ranks. Owners' parts are summed over them first, which are neighbours in the order of all: the same tree.
void GradientBuckets::reduce(const Bucket& bucket, const Tensor& buffer) {
  Stream& on = reduction_stream(bucket);
  if (bucket.shards->size() == 1) return bucket.group->all_reduce(on, buffer);
  bucket.shards->reduce_scatter_uneven(on, buffer, bucket.begins);
  const auto [begin, count] = part_of(bucket.begins, bucket.shards->rank());
  if (count > 0) bucket.replicas->all_reduce(on, buffer.narrow(0, begin, count));
}

// Replicas of what was summed in place are summed once a step, those of a tree before its sources are. The whole is no
// more, on a device as soon as it is reduced.
void GradientBuckets::reduce_into_part(Bucket& bucket) {
  Stream& on = reduction_stream(bucket);
  const auto [begin, count] = part_of(bucket.begins, bucket.shards->rank());
  const bool tree = options_.summation == Summation::tree;
  const auto own_of = [&](const Tensor& buffer) {
    bucket.shards->reduce_scatter_uneven(on, buffer, bucket.begins);
    const Tensor own = buffer.narrow(0, begin, count);
    if (tree && count > 0) bucket.replicas->all_reduce(on, own);
    return own;
  };
  const Tensor own = own_of(bucket.buffer);
  if (bucket.head_apart) kernels::add(on, own, own, own_of(head_buffer(bucket)));
  const bool first = tree || bucket.micro_batch == 0;
  kernels::accumulate(on, bucket.part, first ? Write::overwrite : Write::accumulate, own);
  if (!tree && in_last(bucket) && count > 0) bucket.replicas->all_reduce(on, bucket.part);

  for (Parameter* parameter : bucket.parameters) parameter->unbind_gradient();
  bucket.buffer = {};
  Tensor whole = std::exchange(bucket.levels, {});
  if (side_) in_flight_ = std::move(whole);
}

// The two gradients of a tied embedding are summed, of the part that this rank owns: another stage's, or both here,
// which a divided bucket has done already.
void GradientBuckets::meet_head(const Bucket& bucket) {
  const auto [begin, count] = part_of(bucket.begins, bucket.shards->rank());
  if (count == 0) return;
  const Tensor own = bucket.divided() ? bucket.part : bucket.buffer.narrow(0, begin, count);
  if (!bucket.head_apart)
    bucket.embedding->all_reduce(stream_, own);
  else if (!bucket.divided())
    kernels::add(stream_, own, own, head_buffer(bucket).narrow(0, begin, count));
}

void GradientBuckets::write_zeros(Bucket& bucket) {
  if (!bucket.levels.defined()) bind_for_micro_batch(bucket);
  for (Parameter* parameter : bucket.parameters) {
    if (Leaf& head = parameter->as_head(); bucket.head_apart && !head.gradient_written) stream_.zero(head.gradient());
    if (parameter->gradient_written) continue;
    for (int64_t part = 0; part < parameter->gradient_parts(); ++part) stream_.zero(parameter->gradient_part(part));
    parameter->gradient_written = true;
  }
}

// Adds the level just written to the one below, and that to the next, as far as both are sums of equally many
// micro-batches: one addition for each bit that counting on carries. After the last one, all that are left.
void GradientBuckets::sum_levels(const Bucket& bucket) {
  const int64_t top = level_of(bucket.micro_batch);
  const int64_t bottom = in_last(bucket) ? 0 : top - std::countr_one(static_cast<uint64_t>(bucket.micro_batch));
  const auto level = [&](int64_t i) { return bucket.levels.narrow(0, i, 1); };
  for (int64_t i = top; i > bottom; --i) kernels::add(stream_, level(i - 1), level(i - 1), level(i));
}

// The tree over source ranks, into the first: neighbours, then neighbours' neighbours.
void GradientBuckets::sum_sources(const Bucket& bucket) {
  const Tensor sums = bucket.levels.narrow(0, 0, 1).reshape({bucket.sources, bucket.elements()});
  for (int64_t apart = 1; apart < bucket.sources; apart *= 2)
    for (int64_t i = 0; i + apart < bucket.sources; i += 2 * apart)
      kernels::add(stream_, sums.narrow(0, i, 1), sums.narrow(0, i, 1), sums.narrow(0, i + apart, 1));
}

}  // namespace witan
