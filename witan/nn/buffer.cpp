#include "witan/nn/buffer.h"

#include <cassert>
#include <vector>

#include "witan/kernels/pointwise/elementwise.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

template <class T>
void write_all(Stream& stream, const Tensor& to, double value) {
  const std::vector<T> values(static_cast<size_t>(to.elements()), static_cast<T>(value));
  stream.write(to, values.data());
}

void fill(Stream& stream, const Tensor& to, double value) {
  if (is_floating(to.dtype())) return kernels::fill(stream, to, value);
  if (to.dtype() == DType::i32) return write_all<int32_t>(stream, to, value);
  write_all<int64_t>(stream, to, value);
}

}  // namespace

Buffer::Buffer(Stream& stream, BufferSpec spec) : spec_(std::move(spec)) {
  const TraceContextScope named(stream, spec_.name);
  value_ = stream.empty(spec_.shape, spec_.dtype, MemoryTag::weights);
  fill(stream, value_, spec_.initial);
}

void Buffer::add(Tape& tape, const Tensor& found) const {
  assert(spec_.rule == BufferSpec::Rule::summed);
  if (share_.defined() && tape.training_forward()) kernels::add(tape.stream(), share_, share_, found);
}

void Buffer::bind_share(Tensor share) {
  assert(!share.defined() || (share.shape() == spec_.shape && share.dtype() == spec_.dtype && share.contiguous()));
  share_ = std::move(share);
}

}  // namespace witan
