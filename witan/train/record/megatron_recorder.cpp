#include "witan/train/record/megatron_recorder.h"

#include <fmt/core.h>

#include <cmath>
#include <ctime>

#include "witan/base/process.h"
#include "witan/model/counts.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

// The samples that a run asks for, and those of its data.
std::string describe_data(const RunConfig& config, const SampleSource& samples) {
  const int64_t train = config.samples_to_train_on();
  const int64_t evaluated = config.train.eval_iters * config.train.global_batch_size;
  return fmt::format(
      "> building train, validation, and test datasets ...\n"
      " > datasets target sizes (minimum size):\n"
      "    train:      {}\n"
      "    validation: {}\n"
      "    test:       {}\n"
      "> total number of documents: {}\n"
      "> total number of samples: {}\n"
      "> total number of epochs: {}",
      train, evaluated, config.data.megatron_samples() ? evaluated : 0, samples.dataset().documents(),
      samples.per_epoch(), (train + samples.per_epoch() - 1) / samples.per_epoch());
}

}  // namespace

std::vector<std::vector<megatron_log::Bucket>> describe_buckets(const GradientBuckets& gradients) {
  std::vector<megatron_log::Bucket> dense, experts;
  for (const GradBucket& bucket : gradients.buckets()) {
    auto& family = bucket.parameters.front()->spec().expert ? experts : dense;
    megatron_log::Bucket& logged = family.emplace_back();
    logged.elements = bucket.elements();
    for (const Parameter* parameter : bucket.parameters) logged.parameters.push_back(parameter->name());
  }
  return {dense, experts};
}

MegatronRecorder::MegatronRecorder(const ResolvedConfig& config, std::function<void(const std::string&)> print)
    : config_(config), print_(std::move(print)) {}

void MegatronRecorder::setup(const SetupReport& report, const SampleSource& samples) {
  print_(
      fmt::format(" > number of parameters on (tensor, pipeline) model parallel rank (0, 0): {}", report.parameters));
  for (const auto& family : report.buckets)
    if (!family.empty()) print_(megatron_log::format_buckets(family));
  print_(describe_data(config_, samples));
  print_("done with setup ...");
  print_(megatron_log::format_times(report.times));
  print_("training ...");
  print_(megatron_log::format_datetime("before the start of training step", std::time(nullptr)));
}

void MegatronRecorder::step(const TrainState& state, const StepResult& result, double seconds) {
  ++sums_.iterations;
  sums_.seconds += seconds;
  if (result.skipped) {
    ++sums_.skipped;
    sums_.nan += std::isfinite(result.loss) ? 0 : 1;
  } else {
    sums_.loss += result.loss;
    sums_.mtp.resize(result.mtp_losses.size());
    for (size_t module = 0; module < sums_.mtp.size(); ++module) sums_.mtp[module] += result.mtp_losses[module];
    sums_.others.resize(result.other_losses.size());
    for (size_t i = 0; i < sums_.others.size(); ++i) {
      sums_.others[i].first = result.other_losses[i].first;
      sums_.others[i].second += result.other_losses[i].second;
    }
    for (const StepStatistics::Value& value : result.router.values())
      if (value.declared.loss_coefficient) sums_.router[value.declared.name] += value.model.value_or(0);
  }
  if (state.step % config_->train.log_interval != 0) return;

  const int64_t samples = result.samples > 0 ? result.samples : config_->train.global_batch_size;
  megatron_log::Interval interval;
  interval.time = std::time(nullptr);
  interval.iteration = state.step;
  interval.train_iters = config_->train.train_iters;
  interval.consumed_samples = state.consumed_samples;
  const double mean_s = sums_.seconds / static_cast<double>(sums_.iterations);
  interval.ms = mean_s * 1e3;
  if (config_->log.log_throughput)
    interval.tflops = megatron_iteration_flops(config_->model, config_->data.seq_length, samples) /
                      (mean_s * 1e12 * static_cast<double>(config_->parallel.ranks));
  interval.learning_rate = result.learning_rate;
  interval.global_batch_size = samples;
  interval.losses = mean_losses();
  interval.loss_scale = result.scalars.get(kLossScale).value_or(1);
  interval.grad_norm = result.gradient_norm;
  interval.scalars = result.scalars;
  interval.skipped = sums_.skipped;
  interval.nan = sums_.nan;
  print_(megatron_log::format_interval(interval));
  sums_ = {};
}

std::vector<std::pair<std::string, double>> MegatronRecorder::mean_losses() const {
  const auto advanced = static_cast<double>(std::max<int64_t>(sums_.iterations - sums_.skipped, 1));
  std::vector<std::pair<std::string, double>> losses = {{"lm loss", sums_.loss / advanced}};
  const MoeConfig& moe = config_->model.moe;
  for (const RouterStatistic& statistic :
       moe.num_experts > 0 ? router_statistics(moe) : std::vector<RouterStatistic>()) {
    const auto sum = sums_.router.find(statistic.name);
    if (statistic.loss_coefficient.value_or(0) > 0)
      losses.emplace_back(statistic.display_tag(), sum == sums_.router.end() ? 0 : sum->second / advanced);
  }
  for (size_t module = 0; module < sums_.mtp.size(); ++module)
    losses.emplace_back(cat("mtp_", module + 1, " loss"), sums_.mtp[module] / advanced);
  for (const auto& [name, sum] : sums_.others) losses.emplace_back(name, sum / advanced);
  return losses;
}

void MegatronRecorder::interval(const TrainState& state, const megatron_log::Memory& memory,
                                const std::vector<megatron_log::RankTimes>& times) {
  if (!memory_logged_) {
    const ParameterCounts counts = count_parameters(config_->model);
    print_(megatron_log::format_parameters(static_cast<double>(counts.megatron_layers),
                                           static_cast<double>(counts.megatron_embeddings)));
    print_(megatron_log::format_theoretical_memory(megatron_weight_and_optimizer_bytes(
        config_->model, config_->parallel.ranks, config_->parallel.sharding() != Sharding::none)));
    print_(megatron_log::format_memory(0, state.step, memory));
    memory_logged_ = true;
  }
  if (!times.empty()) print_(megatron_log::format_times(times));
}

void MegatronRecorder::evaluation(int64_t step, double loss, const std::vector<megatron_log::RankTimes>& times) {
  print_(megatron_log::format_times(times));
  print_(megatron_log::format_validation(step, loss));
}

void MegatronRecorder::saved(int64_t step, const std::string& checkpoint) {
  print_(fmt::format("  successfully saved checkpoint from iteration {:7d} to {}", step, checkpoint));
}

void MegatronRecorder::end(RunEnd why, int64_t step) {
  std::string what = "exiting program after receiving a signal";
  if (is_finished(why)) what = "after training is done";
  if (why == RunEnd::exit_interval) what = cat("exiting program at iteration ", step);
  if (why == RunEnd::exit_duration_in_mins) what = cat("exiting program after ", process_seconds() / 60, " minutes");
  print_(megatron_log::format_datetime(what, std::time(nullptr)));
}

}  // namespace witan
