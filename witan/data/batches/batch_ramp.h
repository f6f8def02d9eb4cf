// The size of the global batch from step to step, where it grows at the beginning of a run: Megatron-LM's
// --rampup-batch-size (RampupBatchsizeNumMicroBatchesCalculator of megatron/core/num_microbatches_calculator.py in
// Megatron-Core 0.16). A step's size depends only on the samples consumed before it, so that a resumed run has
// the sizes of one that was never stopped.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace witan {

class BatchRamp {
 public:
  // Steps of `full` samples, always.
  explicit BatchRamp(int64_t full) : full_(full) {}
  // Ramps from START samples to `full`, INCREMENT more at a time, over SAMPLES samples: `text` is
  // "START,INCREMENT,SAMPLES", in brackets or not; empty: always `full`. Throws ConfigError, naming rampup_batch_size,
  // where it is no such text or the increments do not lead from START to `full`.
  static BatchRamp parse(std::string_view text, int64_t full);

  // This ramp with each size rounded down to a multiple of `unit` (decrease_batch_size_if_needed).
  BatchRamp in_units_of(int64_t unit) const;

  bool ramps() const { return increments_ > 0; }
  int64_t full() const { return full_; }
  int64_t start() const { return full_ - increments_ * increment_; }  // as given, not rounded
  int64_t increment() const { return increment_; }
  int64_t samples() const { return samples_; }  // over which it grows

  // The samples of the step before which `consumed` samples were consumed.
  int64_t size(int64_t consumed) const { return nominal(consumed) / unit_ * unit_; }
  // All sizes that steps have, each once, ascending.
  std::vector<int64_t> sizes() const;
  // Consumed by the first `steps` steps.
  int64_t consumed_by(int64_t steps) const;
  // Steps before the first of full size.
  int64_t steps_below_full() const;
  // The steps of a run over `samples` samples, as Megatron-LM counts them (update_train_iters() of
  // megatron/training/training.py): by sizes that are not rounded, and without a last batch that would not be whole.
  int64_t steps_over(int64_t samples) const;

 private:
  int64_t nominal(int64_t consumed) const;
  // Calls visit(size, steps of this size) from the first size on, until it returns false; the full size has no end.
  template <class Visit>
  void walk(Visit visit) const;
  // The first number of consumed samples after `consumed` at which the size is another one.
  int64_t end_of_size(int64_t consumed) const;

  int64_t full_ = 1, increment_ = 0, increments_ = 0, samples_ = 0, unit_ = 1;
};

}  // namespace witan
