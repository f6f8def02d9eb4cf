#include "witan/optim/spike_skip.h"

#include <algorithm>

namespace witan {

SpikeSkip::SpikeSkip(Stream& stream, double sigma, int64_t window)
    : stream_(stream),
      sigma_(sigma),
      window_(window),
      history_(stream.zeros({kernels::spike_history_elements(window)}, DType::f64, MemoryTag::optimizer)) {}

void SpikeSkip::decide(const StepState& step, const Tensor& total, const Tensor& losses, const Tensor& order) {
  kernels::skip_spikes(stream_, step.common(), history_, total, losses, order, sigma_);
}

SpikeSkip::History SpikeSkip::read() const {
  std::vector<double> values(static_cast<size_t>(history_.elements()), 0.0);
  stream_.read(values.data(), history_);
  History history;
  history.steps = static_cast<int64_t>(values[0]);
  for (int64_t step = std::max<int64_t>(0, history.steps - window_); step < history.steps; ++step) {
    history.losses.push_back(values[static_cast<size_t>(1 + step % window_)]);
    history.norms.push_back(values[static_cast<size_t>(1 + window_ + step % window_)]);
  }
  return history;
}

void SpikeSkip::restore(const History& history) {
  std::vector<double> values(static_cast<size_t>(history_.elements()), 0.0);
  const auto known = static_cast<int64_t>(history.losses.size()), kept = std::min(known, window_);
  // A step keeps its slot. A history from a smaller window has fewer steps than were seen.
  const int64_t steps = kept == window_ ? history.steps : kept;
  values[0] = static_cast<double>(steps);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t slot = (steps - kept + i) % window_;
    values[static_cast<size_t>(1 + slot)] = history.losses[static_cast<size_t>(known - kept + i)];
    values[static_cast<size_t>(1 + window_ + slot)] = history.norms[static_cast<size_t>(known - kept + i)];
  }
  stream_.write(history_, values.data());
}

}  // namespace witan
