#include "witan/train/record/tensorboard_recorder.h"

#include <algorithm>
#include <cmath>

#include "witan/base/error.h"

namespace witan {

TensorboardRecorder::TensorboardRecorder(const RunConfig& config, const fs::path& folder, int64_t first_step)
    : batch_size_(config.train.global_batch_size),
      balance_loss_name_(config.model.moe.balance_loss_name()),
      writer_(folder, first_step) {}

void TensorboardRecorder::step(const TrainState& state, const StepEvent& event, double iteration_s,
                               const std::vector<int64_t>& layers,
                               const std::vector<std::vector<int64_t>>& expert_counts) {
  std::vector<tfevents::Scalar> scalars = {
      {"lm loss", event.loss},
      {"learning-rate", event.lr},
      {"grad-norm", event.grad_norm},
      {"batch-size", static_cast<double>(batch_size_)},
      {"samples vs steps", static_cast<double>(state.consumed_samples)},
      {"iteration-time", iteration_s},
      {"tokens-per-second", event.tokens_per_s},
  };
  const auto add = [&](const char* tag, const std::optional<double>& value) {
    if (value) scalars.push_back({tag, *value});
  };
  add("throughput", event.megatron_tflops);
  add("params-norm", event.params_norm);
  add("num-zeros", event.num_zeros);
  add(balance_loss_name_, event.load_balancing_loss);
  add("z_loss", event.z_loss);
  add("expert-load/max over mean", event.load_max_over_mean);
  std::vector<tfevents::Histogram> histograms;
  for (size_t i = 0; i < expert_counts.size(); ++i)
    histograms.push_back(tfevents::histogram_of_counts(cat("expert-load/layer ", layers[i]), expert_counts[i]));
  writer_.add(state.step, scalars, histograms);
}

void TensorboardRecorder::evaluation(const EvalEvent& event) {
  writer_.add(event.step, {{"lm loss validation", event.loss},
                           {"lm loss validation ppl", std::exp(std::min(event.loss, 20.0))},
                           {"bits-per-byte", event.bits_per_byte}});
}

}  // namespace witan
