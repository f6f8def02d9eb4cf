// Skipping steps whose loss or gradient norm is a spike, decided on the device (kernels::skip_spikes).
#pragma once

#include <vector>

#include "witan/optim/step_state.h"

namespace witan {

class SpikeSkip {
 public:
  // `window`: steps that are remembered. The stream must outlive it.
  SpikeSkip(Stream& stream, double sigma, int64_t window);

  // After clip(), whose decision stays. total, losses and order are skip_spikes()'s, the same on every rank, and so is
  // what becomes of the step.
  void decide(const StepState& step, const Tensor& total, const Tensor& losses, const Tensor& order);

  // The steps remembered, the oldest first: for checkpoints.
  struct History {
    std::vector<double> losses, norms;
    int64_t steps = 0;  // seen
  };
  History read() const;  // waits for the stream; empty on the meta device
  // Continues from it to the bit. Of one that remembers more than `window` steps the last are kept.
  void restore(const History& history);

 private:
  Stream& stream_;
  double sigma_;
  int64_t window_;
  Tensor history_;  // [spike_history_elements(window)] float64
};

}  // namespace witan
