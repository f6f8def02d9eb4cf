// Skips steps whose loss or gradient norm is a spike, which the device decides (kernels::skip_spikes).
#pragma once

#include <vector>

#include "witan/optim/step_state.h"

namespace witan {

class SpikeSkip {
 public:
  // `window`: the number of steps that are remembered. The stream must outlive this object.
  SpikeSkip(Stream& stream, double sigma, int64_t window);

  // Call after clip(), whose decision to skip stays. total, losses and order are skip_spikes()'s and the same on every
  // rank, so that ranks decide alike.
  void decide(const StepState& step, const Tensor& total, const Tensor& losses, const Tensor& order);

  // The remembered steps for checkpoints, oldest first.
  struct History {
    std::vector<double> losses, norms;
    int64_t steps = 0;  // all that were seen
  };
  History read() const;  // waits for the stream; empty on the meta device
  // Continues from it to the bit. If it has more than `window` steps, the last ones are kept.
  void restore(const History& history);

 private:
  Stream& stream_;
  double sigma_;
  int64_t window_;
  Tensor history_;  // [spike_history_elements(window)] float64
};

}  // namespace witan
