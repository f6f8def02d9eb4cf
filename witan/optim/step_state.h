// The values that change from step to step, in device memory, where kernels read them so that a captured step can be
// replayed.
#pragma once

#include <vector>

#include "witan/kernels/optimizer/optimizer.h"

namespace witan {

class StepState {
 public:
  // `groups`: the number of parameter groups. The stream must outlive this object.
  explicit StepState(Stream& stream, size_t groups = 1);

  // Call before each step with every parameter group's learning rate and the share of its weight decay. `iteration`
  // counts steps and `update` counts updates, both including this one; skipped steps make no update. Gradients are
  // neither scaled nor skipped until clip() decides so.
  void set(const std::vector<double>& learning_rates, int64_t iteration, int64_t update, double weight_decay_share = 1);

  int64_t update() const { return update_; }  // as set last
  double learning_rate() const { return read(kernels::step_value::learning_rate); }
  double gradient_scale() const { return read(kernels::step_value::gradient_scale); }
  bool skipped() const { return read(kernels::step_value::skip) != 0; }  // false on the meta device
  // float64 [kStepValues + groups - 1], as kernels read it (step_report.h), and its part common to all groups,
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
