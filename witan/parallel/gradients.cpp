#include "witan/parallel/gradients.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>

namespace witan {

std::vector<std::vector<size_t>> plan_buckets(std::span<const int64_t> elements, int64_t bucket_elements) {
  std::vector<std::vector<size_t>> buckets;
  int64_t held = bucket_elements;  // of the last bucket: closed, so the first parameter opens one
  for (size_t i = elements.size(); i-- > 0;) {
    if (held >= bucket_elements) {
      buckets.emplace_back();
      held = 0;
    }
    buckets.back().push_back(i);
    held += elements[i];
  }
  return buckets;
}

GradientBuckets::GradientBuckets(Stream& stream, const std::vector<Parameter*>& parameters, const Groups& groups,
                                 DType dtype, int64_t bucket_elements)
    : stream_(stream) {
  std::map<Axis, std::vector<size_t>> families;  // indices of the parameters that are reduced over one axis
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto axes = groups.layout.gradient_axes(parameters[i]->spec());
    assert(axes.size() == 1);
    families[axes.front()].push_back(i);
  }
  for (const auto& [axis, family] : families) add_buckets(parameters, family, groups.of(axis), dtype, bucket_elements);
  // Backward has finished a bucket when it passes the bucket's first parameter, so the latest go first.
  std::ranges::sort(buckets_, std::greater(), &Bucket::first_parameter);
  for (size_t i = 0; i < buckets_.size(); ++i)
    for (Parameter* parameter : buckets_[i].parameters)
      parameter->gradient_ready = [this, i](Parameter&) { on_ready(buckets_[i]); };
  begin_step();
}

GradientBuckets::~GradientBuckets() {
  for (const Bucket& bucket : buckets_)
    for (Parameter* parameter : bucket.parameters) parameter->gradient_ready = nullptr;
}

void GradientBuckets::add_buckets(const std::vector<Parameter*>& parameters, const std::vector<size_t>& family,
                                  Group& group, DType dtype, int64_t bucket_elements) {
  std::vector<int64_t> elements;
  for (const size_t i : family) elements.push_back(parameters[i]->elements());
  for (const std::vector<size_t>& members : plan_buckets(elements, bucket_elements)) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.group = &group;
    bucket.first_parameter = family[members.back()];
    int64_t total = 0, begin = 0;
    for (const size_t member : members) total += elements[member];
    bucket.buffer = stream_.empty({total}, dtype, MemoryTag::gradients);
    for (const size_t member : members) {
      Parameter* parameter = bucket.parameters.emplace_back(parameters[family[member]]);
      parameter->bind_gradient(bucket.buffer.narrow(0, begin, elements[member]).reshape(parameter->value().shape()));
      begin += elements[member];
    }
  }
}

void GradientBuckets::begin_step() {
  for (Bucket& bucket : buckets_) {
    bucket.waiting = bucket.parameters.size();
    for (Parameter* parameter : bucket.parameters) parameter->clear_gradient();
  }
  next_ = 0;
  reducing_ = false;
}

void GradientBuckets::finish_step() {
  while (next_ < buckets_.size()) reduce_next();
  reducing_ = false;
}

void GradientBuckets::on_ready(Bucket& bucket) {
  if (!reducing_) return;
  assert(bucket.waiting > 0);
  --bucket.waiting;
  while (next_ < buckets_.size() && buckets_[next_].waiting == 0) reduce_next();
}

void GradientBuckets::reduce_next() {
  const Bucket& bucket = buckets_[next_++];
  for (Parameter* parameter : bucket.parameters) {
    if (parameter->gradient_written) continue;
    const Tensor& gradient = parameter->gradient();
    if (!stream_.is_meta()) std::memset(gradient.raw(), 0, static_cast<size_t>(gradient.bytes()));
    parameter->gradient_written = true;
  }
  bucket.group->all_reduce(stream_, bucket.buffer);
}

}  // namespace witan
