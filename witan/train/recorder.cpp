#include "witan/train/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "witan/base/text.h"
#include "witan/report/train_line.h"

namespace witan {
namespace {

// Busiest expert over the mean, in the layer where that is worst.
double max_over_mean(const std::vector<std::vector<int64_t>>& counts) {
  double worst = 0;
  for (const auto& layer : counts) {
    const auto total = static_cast<double>(std::accumulate(layer.begin(), layer.end(), int64_t{0}));
    const auto most = static_cast<double>(*std::max_element(layer.begin(), layer.end()));
    if (total > 0) worst = std::max(worst, most * static_cast<double>(layer.size()) / total);
  }
  return worst;
}

ExpertsEvent experts_event(const RunConfig& config, int64_t step, const std::vector<std::vector<int64_t>>& counts) {
  ExpertsEvent event;
  event.step = step;
  for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
    if (config.model.moe.is_moe_layer(layer, config.model.num_layers)) event.layers.push_back(layer);
  for (const auto& layer : counts) {
    const auto total = static_cast<double>(std::accumulate(layer.begin(), layer.end(), int64_t{0}));
    auto& shares = event.load.emplace_back();
    for (const int64_t count : layer) shares.push_back(total > 0 ? static_cast<double>(count) / total : 0);
  }
  return event;
}

}  // namespace

Recorder::Recorder(const RunConfig& config, const RunPlan& plan, const RunFolder& folder, Progress& progress)
    : config_(config),
      plan_(plan),
      path_(folder.metrics()),
      metrics_(path_),
      log_(folder.log().string()),
      progress_(progress) {}

void Recorder::begin(const RunEvent& run, double bigram_bits_per_byte, int64_t step) {
  metrics_.truncate_after(step);
  log_.info(fmt::format("begin at step {}", step));
  const auto before = read_metrics(path_).run;
  if (before && before->total_steps == run.total_steps) return;
  metrics_.append(run);
  if (before) return;
  for (int64_t rank = 0; rank < config_.parallel.ranks; ++rank)
    metrics_.append(MemoryEvent{rank, plan_.tags, plan_.arena_bytes});
  metrics_.append(BaselineEvent{"Kneser-Ney bigram", bigram_bits_per_byte});
}

void Recorder::step(const TrainState& state, const StepResult& result, double step_s, double data_wait_s) {
  interval_loss_ += result.loss;
  ++interval_steps_;
  rate_.update(progress_.now(), static_cast<double>(state.step));
  StepEvent event;
  event.step = state.step;
  event.loss = interval_loss_ / static_cast<double>(interval_steps_);
  event.lr = result.learning_rate;
  event.grad_norm = result.gradient_norm;
  event.step_s = step_s;
  event.data_wait_s = data_wait_s;
  event.tokens_per_s = static_cast<double>(config_.train.global_batch_size * config_.data.seq_length) / step_s;
  event.gflops = plan_.step_flops / step_s * 1e-9;
  event.ceiling_share = plan_.ceiling_gflops > 0 ? event.gflops / plan_.ceiling_gflops : 0;
  event.skipped = result.skipped;
  event.elapsed_s = state.elapsed_s;
  if (!result.expert_counts.empty()) {
    event.load_balancing_loss = result.balance_loss;
    event.z_loss = result.z_loss;
    event.load_max_over_mean = max_over_mean(result.expert_counts);
  }
  if (result.skipped) {
    const std::string line = fmt::format("step {}: gradients were not finite; the step was skipped", state.step);
    progress_.note("warning: " + line);
    log_.warn(line);
  }
  show(state, event);
  if (!closes_interval(state.step) && !result.stop) return;
  metrics_.append(event);
  if (!result.expert_counts.empty()) metrics_.append(experts_event(config_, state.step, result.expert_counts));
  interval_loss_ = 0;
  interval_steps_ = 0;
}

// A checkpoint ends an interval too: a run that goes on from it has no sums to bring along.
bool Recorder::closes_interval(int64_t step) const {
  const auto& train = config_.train;
  return step % train.log_interval == 0 || step == train.train_iters ||
         (train.save_interval > 0 && step % train.save_interval == 0);
}

void Recorder::show(const TrainState& state, const StepEvent& event) {
  TrainStatus status;
  status.step = state.step;
  status.total_steps = config_.train.train_iters;
  status.loss = event.loss;
  status.held_out_loss = held_out_loss_;
  status.bits_per_byte = bits_per_byte_;
  status.tokens_per_s = event.tokens_per_s;
  status.gflops = event.gflops;
  if (plan_.ceiling_gflops > 0) status.ceiling_share = event.ceiling_share;
  status.load_max_over_mean = event.load_max_over_mean;
  status.data_wait_share = event.data_wait_s / event.step_s;
  status.eta_s = rate_.remaining(static_cast<double>(config_.train.train_iters));
  progress_.update(static_cast<double>(state.step) / static_cast<double>(config_.train.train_iters),
                   [&](int width) { return format_train_line(status, width, progress_.colour()); });
}

void Recorder::evaluation(const TrainState& state, const Evaluation& evaluation, double bytes) {
  held_out_loss_ = evaluation.loss();
  evaluated_at_ = state.step;
  bits_per_byte_ = bytes > 0 ? evaluation.nats / std::numbers::ln2 / bytes : 0;
  metrics_.append(EvalEvent{state.step, *held_out_loss_, *bits_per_byte_});
  log_.info(
      fmt::format("step {}: held-out loss {:.4f}, {:.4f} bits per byte", state.step, *held_out_loss_, *bits_per_byte_));
}

void Recorder::saved(const std::string& checkpoint, double seconds) {
  log_.info(fmt::format("saved {} in {}", checkpoint, format_duration(seconds)));
}

void Recorder::sample(const TrainState& state, const std::string& text) {
  metrics_.append(SampleEvent{state.step, config_.train.sample_prompt, text});
}

void Recorder::end(const std::string& reason) {
  metrics_.append(EndEvent{reason});
  log_.info("end: " + reason);
}

}  // namespace witan
