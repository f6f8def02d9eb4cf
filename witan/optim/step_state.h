// What changes from step to step, on the device: kernels read it there, so that a captured step can be replayed.
#pragma once

#include "witan/kernels/optimizer.h"

namespace witan {

class StepState {
 public:
  // The stream must outlive it.
  explicit StepState(Stream& stream);

  // Before each step. `iteration` counts the steps made and `update` the updates, this one included: updates are fewer
  // where steps were skipped. Gradients are neither scaled nor skipped until clip() says so.
  void set(double learning_rate, int64_t iteration, int64_t update);

  double learning_rate() const { return read(kernels::step_value::learning_rate); }
  double gradient_scale() const { return read(kernels::step_value::gradient_scale); }
  bool skipped() const { return read(kernels::step_value::skip) != 0; }  // false on the meta device
  const Tensor& tensor() const { return values_; }                       // float64 [kStepValues]

 private:
  double read(int64_t index) const;  // waits for the stream

  Stream& stream_;
  Tensor values_;
};

}  // namespace witan
