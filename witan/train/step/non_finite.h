// Finds where values that are not finite come from: which parameters, gradients and experts have them, and which op was
// the first to compute one. Values are read on the host, which never happens in a step that goes well.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/tensor/observer.h"
#include "witan/tensor/trace_context.h"

namespace witan {

// Counts in a contiguous tensor; 0 for integers. The stream must have been waited for.
struct NonFiniteCount {
  int64_t nans = 0, infinities = 0;
  int64_t first = -1;  // position of the first of either; -1: all elements are finite

  bool any() const { return first >= 0; }
};
NonFiniteCount count_non_finite(const Tensor& tensor);
std::string describe(const NonFiniteCount& count);  // "3 NaN and 1 infinite"

// "layers.2.moe.experts.down, expert 5: 3 NaN" for a flat part of a parameter that begins at its element `first`, with
// the number of the first expert that has some; nothing if all are finite. Of a parameter that is kept as codes, `part`
// is their scales.
std::optional<std::string> describe_non_finite(const Parameter& parameter, const Tensor& part, int64_t first);

// Watches passes for the first value that is not finite.
class NonFiniteSearch final : public TensorObserver {
 public:
  struct Found {
    TraceContext::Phase phase = TraceContext::Phase::none;  // forward or backward
    int64_t micro_batch = -1;                               // of the rank, from 0
    std::string what;                                       // "the output of swiglu in layers.2.mlp has 3 NaN"
  };
  const std::optional<Found>& found() const { return found_; }

  void kernel(Stream&, const char*, const Cost&, int64_t, int64_t) override {}
  // Fills with zeros, so that memory that is never written is not taken for a result.
  void allocated(Stream& stream, const Tensor& memory) override;
  void computed(Stream& stream, std::string_view op, std::span<const Tensor> outputs) override;
  void gradients_of(Stream& stream, std::span<const Tensor> gradients) override;
  void parameter_gradient(Stream& stream, const Tensor& gradient) override;

 private:
  void look_at(Stream& stream, std::span<const Tensor> tensors, std::string_view what, std::string_view op);

  std::optional<Found> found_;
};

}  // namespace witan
