#include "witan/parallel/buffer_sums.h"

#include <algorithm>

namespace witan {

BufferSums::BufferSums(Stream& stream, const std::vector<Buffer*>& buffers, const Groups& groups, Undo undo) {
  for (Buffer* buffer : buffers) {
    const BufferSpec& spec = buffer->spec();
    if (spec.rule == BufferSpec::Rule::replicated) continue;
    Group* const group = &groups.over(groups.layout().share_axes(spec));
    const Reduce reduce = spec.rule == BufferSpec::Rule::largest ? Reduce::max : Reduce::sum;
    auto shares = std::ranges::find_if(
        all_, [&](const Shares& one) { return one.group == group && one.dtype == spec.dtype && one.reduce == reduce; });
    if (shares == all_.end()) shares = all_.insert(shares, {group, spec.dtype, reduce});
    shares->buffers.push_back(buffer);
  }
  for (Shares& shares : all_) {
    int64_t elements = 0, begin = 0;
    for (const Buffer* buffer : shares.buffers) elements += buffer->value().elements();
    shares.flat = stream.empty({elements}, shares.dtype, MemoryTag::communication);
    if (undo == Undo::possible) shares.before = stream.empty({elements}, shares.dtype, MemoryTag::communication);
    for (Buffer* buffer : shares.buffers) {
      const Tensor& value = buffer->value();
      buffer->bind_share(shares.flat.narrow(0, begin, value.elements()).reshape(value.shape()));
      begin += value.elements();
    }
  }
}

BufferSums::~BufferSums() {
  for (const Shares& shares : all_)
    for (Buffer* buffer : shares.buffers) buffer->bind_share({});
}

template <class Copy>
void BufferSums::for_kept(const Copy& copy) const {
  for (const Shares& shares : all_) {
    if (!shares.before.defined()) continue;
    int64_t begin = 0;
    for (const Buffer* buffer : shares.buffers) {
      const Tensor& value = buffer->value();
      copy(value, shares.before.narrow(0, begin, value.elements()).reshape(value.shape()));
      begin += value.elements();
    }
  }
}

void BufferSums::begin_step(Stream& stream) const {
  for_kept([&](const Tensor& value, const Tensor& before) { stream.copy(before, value); });
  for (const Shares& shares : all_) stream.zero(shares.flat);
}

void BufferSums::finish_step(Stream& stream) const {
  for (const Shares& shares : all_) {
    shares.group->all_reduce(stream, shares.flat, shares.reduce);
    for (const Buffer* buffer : shares.buffers) stream.copy(buffer->value(), buffer->share());
  }
}

void BufferSums::undo_step(Stream& stream) const {
  for_kept([&](const Tensor& value, const Tensor& before) { stream.copy(value, before); });
}

}  // namespace witan
