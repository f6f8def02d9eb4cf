// The values that change from step to step, in device memory: kernels read them there, so that a captured step can be
// replayed.
#pragma once

#include <vector>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan {

class StepState {
 public:
  // For so many parameter groups. The stream must outlive it.
  explicit StepState(Stream& stream, size_t groups = 1);

  // Before each step: the learning rate of every parameter group, and the share of their weight decay. `iteration`
  // counts the steps made and `update` the updates, this one included: updates are fewer where steps were skipped.
  // Gradients are neither scaled nor skipped until clip() says so.
  void set(const std::vector<double>& learning_rates, int64_t iteration, int64_t update, double weight_decay_share = 1);

  int64_t update() const { return update_; }  // as it was last set
  double learning_rate() const { return read(kernels::step_value::learning_rate); }
  double gradient_scale() const { return read(kernels::step_value::gradient_scale); }
  bool skipped() const { return read(kernels::step_value::skip) != 0; }  // false on the meta device
  // float64 [kStepValues + groups - 1], as kernels read it (step_report.h); and what is there for all groups alike,
  // [kStepValues].
  const Tensor& tensor() const { return values_; }
  const Tensor& common() const { return common_; }

 private:
  double read(int64_t index) const;  // waits for the stream

  Stream& stream_;
  Tensor values_, common_;
  int64_t update_ = 0;
};

}  // namespace witan
