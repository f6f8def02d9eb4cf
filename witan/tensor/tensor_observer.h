// The interface through which values are watched while a step computes them: who looks for the first that is not finite
// observes the stream with it (Stream::observe). Steps are then launched kernel by kernel.
#pragma once

#include <span>
#include <string_view>

#include "witan/tensor/observer.h"
#include "witan/tensor/tensor.h"

namespace witan {

class TensorObserver : public KernelObserver {
 public:
  // Memory was handed out on the stream, and nothing is written there yet. Rows of experts' pools that no token comes
  // to never are.
  virtual void allocated(Stream& stream, const Tensor& memory) = 0;
  // An op was recorded with these outputs.
  virtual void computed(Stream& stream, std::string_view op, std::span<const Tensor> outputs) = 0;
  // Backward comes to the op that the stream's trace context names, with the gradients of its outputs; undefined: that
  // output was not used.
  virtual void gradients_of(Stream& stream, std::span<const Tensor> gradients) = 0;
  // The same op was the last to write a parameter's gradient in this backward.
  virtual void parameter_gradient(Stream& stream, const Tensor& gradient) = 0;

  // The stream's observer, where it is one; else null.
  static TensorObserver* of(const Stream& stream) {
    return stream.observer() == nullptr ? nullptr : dynamic_cast<TensorObserver*>(stream.observer());
  }
};

}  // namespace witan
