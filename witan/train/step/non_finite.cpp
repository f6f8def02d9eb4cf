#include "witan/train/step/non_finite.h"

#include <cmath>
#include <cstring>

#include "witan/base/error.h"
#include "witan/tensor/host.h"

namespace witan {

NonFiniteCount count_non_finite(const Tensor& tensor) {
  NonFiniteCount count;
  if (!is_floating(tensor.dtype())) return count;
  dispatch_floating(tensor.dtype(), [&]<class T>() {
    int64_t at = 0;
    for_host_bytes(tensor, [&](const std::byte* bytes, int64_t size) {
      for (int64_t offset = 0; offset < size; offset += static_cast<int64_t>(sizeof(T)), ++at) {
        T element;
        std::memcpy(&element, bytes + offset, sizeof(T));
        const auto value = static_cast<double>(element);
        if (std::isfinite(value)) continue;
        ++(std::isnan(value) ? count.nans : count.infinities);
        if (count.first < 0) count.first = at;
      }
    });
  });
  return count;
}

std::string describe(const NonFiniteCount& count) {
  std::string text;
  if (count.nans > 0) text = cat(count.nans, " NaN");
  if (count.infinities > 0) text += cat(text.empty() ? "" : " and ", count.infinities, " infinite");
  return text;
}

std::optional<std::string> describe_non_finite(const Parameter& parameter, const Tensor& part, int64_t first) {
  const NonFiniteCount count = count_non_finite(part);
  if (!count.any()) return std::nullopt;
  const std::string what = cat(describe(count), parameter.in_codes() ? " scales" : "");
  if (!parameter.spec().expert) return cat(parameter.name(), ": ", what);
  const kernels::WeightFormatTraits& format = kernels::traits_of(parameter.spec().format);
  const int64_t place = parameter.in_codes() ? count.first / format.scales * format.group : count.first;
  const int64_t each = parameter.global_shape().elements() / parameter.global_shape()[0];
  return cat(parameter.name(), ", expert ", parameter.region().global(first + place) / each, ": ", what);
}

void NonFiniteSearch::allocated(Stream& stream, const Tensor& memory) {
  if (!found_) stream.zero(memory);
}

void NonFiniteSearch::computed(Stream& stream, std::string_view op, std::span<const Tensor> outputs) {
  look_at(stream, outputs, "the output of ", op);
}

void NonFiniteSearch::gradients_of(Stream& stream, std::span<const Tensor> gradients) {
  look_at(stream, gradients, "the gradient by the output of ", stream.trace_context().op);
}

void NonFiniteSearch::parameter_gradient(Stream& stream, const Tensor& gradient) {
  look_at(stream, {&gradient, 1}, "the gradient by a parameter of ", stream.trace_context().op);
}

void NonFiniteSearch::look_at(Stream& stream, std::span<const Tensor> tensors, std::string_view what,
                              std::string_view op) {
  if (found_ || stream.is_meta()) return;
  stream.wait();
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.contiguous()) continue;
    const NonFiniteCount count = count_non_finite(tensor);
    if (!count.any()) continue;
    const TraceContext& where = stream.trace_context();
    found_ = Found{where.phase, where.micro_batch,
                   cat(what, op, where.module.empty() ? "" : " in ", where.module, " has ", describe(count))};
    return;
  }
}

}  // namespace witan
