#include "witan/train/record/recorder.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <numbers>
#include <numeric>
#include <sstream>
#include <utility>

#include "witan/base/text.h"
#include "witan/model/counts.h"
#include "witan/moe/routers/router.h"
#include "witan/report/progress/train_line.h"
#include "witan/train/signals/signals.h"

namespace witan {
namespace {

// The counts of experts stand there as their shares.
ExpertsEvent experts_event(const RunConfig& config, int64_t step, const StepStatistics& router) {
  ExpertsEvent event;
  event.step = step;
  const std::vector<LayerSpec> layers = layers_with_mtp(config.model);
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (layers[layer].moe) event.layers.push_back(static_cast<int64_t>(layer));
  for (const auto& layer : router.counts(kExpertCounts)) {
    const auto total = static_cast<double>(std::accumulate(layer.begin(), layer.end(), int64_t{0}));
    auto& shares = event.load.emplace_back();
    for (const int64_t count : layer) shares.push_back(total > 0 ? static_cast<double>(count) / total : 0);
  }
  for (const StepStatistics::Value& value : router.values())
    if (value.declared.name != kExpertCounts) event.statistics[value.declared.name] = value.layers;
  return event;
}

// A norm has less than seven significant digits, and short numbers keep the file small.
double rounded(double value) {
  return std::isfinite(value) ? std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr) : value;
}

LayersEvent layers_event(int64_t step, const LayerNorms& norms) {
  LayersEvent event{step, {}, rounded(norms.embedding), rounded(norms.head)};
  for (const double norm : norms.layers) event.grad_norms.push_back(rounded(norm));
  return event;
}

ActivationsEvent activations_event(int64_t step, const StepResult& result) {
  ActivationsEvent event{step, result.activations};
  for (auto& [name, layers] : event.statistics)
    for (double& value : layers) value = rounded(value);
  return event;
}

std::optional<double> value_at(const std::map<std::string, double>& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

constexpr int64_t kMostChecksTold = 11;  // steps whose state checks are reported; Tutel's example makes as many

constexpr double kNoteworthy = 1.05;  // a smaller excess over the ceiling is the clock's inaccuracy

}  // namespace

Recorder::Recorder(const ResolvedConfig& config, const RunPlan& plan, const RunFolder& folder, Progress& progress)
    : config_(config),
      ramp_(config->batch_ramp()),
      all_samples_(ramp_.consumed_by(config->train.train_iters)),
      plan_(plan),
      folder_(folder),
      log_(folder.log().string()),
      progress_(progress),
      watch_(progress, {.total_steps = config->train.train_iters,
                        .step_seconds = plan.step_seconds,
                        .stopping = StopSignals::requested}) {
  if (config->log.megatron()) megatron_.emplace(config, [this](const std::string& text) { print(text); });
  if (plan.on_gpu) gpus_.emplace();
  if (config->log.log_progress)
    progress_log_.emplace(
        folder.progress(), config->parallel.ranks,
        megatron_iteration_flops(config->model, config->data.seq_length, config->train.global_batch_size));
}

void Recorder::begin(const RunEvent& run, double bigram_bits_per_byte, int64_t step) {
  metrics_.emplace(folder_.metrics());
  metrics_->truncate_after(step);
  if (config_->train.sample_interval > 0) samples_.emplace(folder_.samples());
  log_.info(fmt::format("start at step {}", step));
  first_step_ = step + 1;
  last_step_ = step;
  if (config_->log.tensorboard_dir != "none") open_tensorboard(step + 1);
  if (progress_log_) progress_log_->start(std::time(nullptr), share_of(ramp_.consumed_by(step)));
  const auto before = last_run_event(folder_.metrics());
  if (before && step > 0)
    resume_ = ResumeEvent{step, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))};
  const bool laid_out_anew = !before || before->world_size != run.world_size || before->layout != run.layout;
  if (before && before->total_steps == run.total_steps && !laid_out_anew) return;
  metrics_->append(run);
  if (laid_out_anew)
    for (const MemoryEvent& rank : plan_.memory) metrics_->append(rank);
  if (before || bigram_bits_per_byte == 0) return;  // without evaluations there is no baseline
  metrics_->append(BaselineEvent{"Kneser-Ney bigram", bigram_bits_per_byte});
}

void Recorder::setup(const SetupReport& report, const SampleSource& samples) {
  megatron_->setup(report, samples);
}

void Recorder::interval(const TrainState& state, const megatron_log::Memory& memory,
                        const std::vector<megatron_log::RankTimes>& times) {
  megatron_->interval(state, memory, times);
  if (tensorboard_) tensorboard_->interval(state.step, times);
}

void Recorder::memory_in_use(int64_t step, const megatron_log::Memory& memory, int64_t blocks) {
  if (tensorboard_) tensorboard_->memory_in_use(step, memory, blocks);
}

// Other programs' log formats have no such line.
void Recorder::begins(StepWatch::Doing what, int64_t step) {
  if (!config_->log.prints_lines()) watch_.begin(what, step);
  // A GPU's first step takes longer than the others.
  if (what == StepWatch::Doing::step && step == first_step_ && !plan_.on_gpu) {
    watch_.stopped();
    rate_.update(progress_.now(), static_cast<double>(step - 1));
  }
}

void Recorder::raise_ceiling(double gflops) {
  best_gflops_ = std::max(best_gflops_, gflops);
  if (plan_.ceiling_gflops <= 0 || gflops <= plan_.ceiling_gflops) return;
  const double was = std::exchange(plan_.ceiling_gflops, gflops);
  if (ceiling_raised_ || gflops <= kNoteworthy * was) return;
  ceiling_raised_ = true;
  const std::string note = fmt::format(
      "this step reached {:.3g} GFLOP/s, more than the {:.3g} that were measured as this machine's ceiling: it was "
      "busy then; `witan doctor` measures it again",
      gflops, was);
  progress_.note("note: " + note);
  log_.info(note);
}

void Recorder::note_overflow(int64_t step, int64_t passes) {
  ++overflows_;
  const std::string note = fmt::format("pool overflow: step {} was rerun in {} passes ({} of {} steps so far)", step,
                                       passes, overflows_, step - first_step_ + 1);
  progress_.note("note: " + note);
  log_.info(note);
}

// All are logged; only the first is printed, since the same key avoids them all.
void Recorder::note_exchange_overflow(int64_t step, double fill) {
  ++exchange_overflows_;
  const double factor = config_->model.moe.moe_exchange_factor;
  const std::string note = fmt::format(
      "exchange overflow: step {} was rerun with exact counts ({} of {} steps so far): a rank had "
      "{:.3g} times the balanced load for another, and moe_exchange_factor = {:.3g} has room for {:.3g}; raise it if "
      "this "
      "happens often",
      step, exchange_overflows_, step - first_step_ + 1, fill * factor, factor, factor);
  if (exchange_overflows_ == 1) progress_.note("note: " + note);
  log_.info(note);
}

void Recorder::warn(const std::string& line) {
  progress_.note("warning: " + line);
  log_.warn(line);
}

void Recorder::tell(const std::string& line) {
  progress_.note(line);
  log_.info(line);
}

// Warns at the step at which a dataset is read again.
void Recorder::warn_of_repetition(const TrainState& state, int64_t samples) {
  if (!train_) return;
  const std::vector<SourceUse> before = uses_ ? *uses_ : train_->use_of(state.consumed_samples - samples);
  uses_ = train_->use_of(state.consumed_samples);
  for (size_t i = 0; i < uses_->size(); ++i) {
    const SourceUse& now = (*uses_)[i];
    if (now.epochs <= 1 || before[i].epochs > 1) continue;
    const SourceUse end = train_->use_of(all_samples_)[i];
    warn(fmt::format("step {}: the second epoch of {} begins; the run ends after {:.2f}", state.step, now.name,
                     end.epochs));
  }
}

void Recorder::note_batch_size(int64_t step, int64_t samples) {
  const int64_t before = std::exchange(last_samples_, samples);
  if (ramp_.ramps() && samples != before) log_.info(fmt::format("step {}: global batch size {}", step, samples));
}

double Recorder::gflops_of(const StepResult& result, double step_s) const {
  return plan_.step_flops * share_of(samples_of(result)) / step_s * 1e-9;
}

void Recorder::step(const TrainState& state, const StepResult& result, double step_s, double data_wait_s, Line line) {
  if (resume_) metrics_->append(*std::exchange(resume_, {}));
  last_step_ = state.step;
  interval_loss_ += result.loss;
  interval_s_ += step_s;
  ++interval_steps_;
  rate_.skip(watch_.stopped());
  rate_.update(progress_.now(), share_of(ramp_.consumed_by(state.step)));
  raise_ceiling(gflops_of(result, step_s));
  note_batch_size(state.step, samples_of(result));
  if (result.passes > 1) note_overflow(state.step, result.passes);
  if (result.exchange_fill > 0) note_exchange_overflow(state.step, result.exchange_fill);
  warn_of_repetition(state, samples_of(result));
  const StepEvent event = step_event(state, result, step_s, data_wait_s);
  const bool asked = result.end != RunEnd::none;
  scalars_.update(event.scalars);
  if (megatron_)
    megatron_->step(state, result, step_s);
  else if (config_->log.nanogpt())
    print_nanogpt_step(state);
  else if (line == Line::with_evaluation)
    waiting_ = {state, event, asked};
  else
    show(state, event, asked);
  const bool closes = config_->train.closes_interval(state.step) || asked;
  if (closes) metrics_->append(event);
  if (closes && gpus_)
    if (const auto read = gpus_->take(state.step)) metrics_->append(*read);
  if (closes && result.layer_norms) metrics_->append(layers_event(state.step, *result.layer_norms));
  if (!result.activations.empty()) metrics_->append(activations_event(state.step, result));
  if (tensorboard_ && !result.activations.empty()) tensorboard_->activations(state.step, result.activations);
  if (!closes && !config_->model.moe.moe_per_layer_logging) return;
  const ExpertsEvent experts = experts_event(config_, state.step, result.router);
  if (!result.router.empty()) metrics_->append(experts);
  if (!closes) return;
  if (tensorboard_)
    tensorboard_->step(state, event, samples_of(result), interval_s_ / static_cast<double>(interval_steps_),
                       experts.layers, result.router);
  interval_loss_ = interval_s_ = 0;
  interval_steps_ = 0;
}

StepEvent Recorder::step_event(const TrainState& state, const StepResult& result, double step_s,
                               double data_wait_s) const {
  StepEvent event;
  event.step = state.step;
  event.loss = interval_loss_ / static_cast<double>(interval_steps_);
  event.mtp_losses = result.mtp_losses;
  event.lr = result.learning_rate;
  event.grad_norm = result.gradient_norm;
  event.scalars = result.scalars;
  for (const auto& [name, loss] : result.other_losses) event.scalars.set(name, loss);
  if (config_->log.log_throughput)
    event.scalars.set(kMegatronTflops,
                      megatron_iteration_flops(config_->model, config_->data.seq_length, samples_of(result)) /
                          (step_s * 1e12 * static_cast<double>(config_->parallel.ranks)));
  event.step_s = step_s;
  event.data_wait_s = data_wait_s;
  if (const StepTimes& times = result.times; times.forward > 0) {
    event.forward_s = times.forward;
    event.backward_s = times.backward;
    event.reduction_s = times.reduction;
    event.optimizer_s = times.optimizer;
  }
  event.tokens_per_s = static_cast<double>(samples_of(result) * config_->data.seq_length) / step_s;
  if (ramp_.ramps()) event.tokens = ramp_.consumed_by(state.step) * config_->data.seq_length;
  event.gflops = gflops_of(result, step_s);
  event.ceiling_share = plan_.ceiling_gflops > 0 ? event.gflops / plan_.ceiling_gflops : 0;
  event.skipped = result.skipped;
  if (config_->model.moe.moe_pool_factor > 0) event.scalars.set(kPoolOverflows, static_cast<double>(overflows_));
  if (config_->model.moe.moe_exchange_factor > 0)
    event.scalars.set(kExchangeOverflows, static_cast<double>(exchange_overflows_));
  event.elapsed_s = state.elapsed_s;
  if (uses_ && !uses_->empty()) event.epochs = std::ranges::max_element(*uses_, {}, &SourceUse::epochs)->epochs;
  for (const StepStatistics::Value& value : result.router.values())
    if (value.model) set_router_statistic(event, value.declared.name, *value.model);
  return event;
}

void Recorder::print_nanogpt_step(const TrainState& state) {
  if (state.step % config_->train.log_interval == 0) print(nanogpt_log::format_step(nanogpt_progress(state)));
}

// Prints log lines for other programs, and copies them to train.log.
void Recorder::print(const std::string& text) {
  progress_.print(text);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    log_.info(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

TrainStatus Recorder::status_of(const TrainState& state, const StepEvent& event) const {
  TrainStatus status;
  status.step = state.step;
  status.total_steps = config_->train.train_iters;
  status.loss = event.loss;
  status.validation_loss = validation_loss_;
  status.bits_per_byte = bits_per_byte_;
  status.evaluated_at = evaluated_at_;
  status.learning_rate = event.lr;
  status.grad_norm = event.grad_norm;
  status.tokens_per_s = event.tokens_per_s;
  status.gflops = event.gflops;
  if (plan_.ceiling_gflops > 0) status.ceiling_share = event.ceiling_share;
  status.load_max_over_mean = event.load_max_over_mean;
  status.dropped_share = event.dropped_share;
  status.data_wait_share = event.data_wait_s / event.step_s;
  status.scalars = scalars_;
  status.epochs = event.epochs;
  status.eta_s = rate_.remaining(share_of(all_samples_));
  if (!status.eta_s && plan_.step_seconds > 0)
    status.eta_s = plan_.step_seconds * share_of(all_samples_ - ramp_.consumed_by(state.step));
  if (state.step == config_->train.train_iters) status.eta_s.reset();
  return status;
}

void Recorder::show(const TrainState& state, const StepEvent& event, bool stays) {
  const TrainStatus status = status_of(state, event);
  watch_.finished(status);
  const int64_t interval = config_->train.log_interval;
  const bool last = state.step == config_->train.train_iters;
  // With the default interval of one step, lines would flood a log, so that there is one every half minute.
  const bool logged = !progress_.is_terminal() && interval > 1 && state.step % interval == 0;
  const double done = static_cast<double>(state.step) / static_cast<double>(config_->train.train_iters);
  const auto line = [&](int width) { return format_train_line(status, width, progress_.colour()); };
  if (stays || last || logged || state.step == first_step_)
    progress_.milestone(done, line);
  else
    progress_.update(done, line);
}

namespace {

double bits_per_byte_of(const Evaluation& evaluation, double bytes) {
  return bytes > 0 && evaluation.figures.empty() ? evaluation.nats / std::numbers::ln2 / bytes : 0;
}

EvalEvent event_of(int64_t step, const Evaluation& evaluation, double bytes, std::optional<std::string> set = {}) {
  EvalEvent event{step, evaluation.loss(), bits_per_byte_of(evaluation, bytes), std::move(set), evaluation.seconds, {}};
  for (const auto& [declared, layers, model] : evaluation.router.values()) {
    const bool of_weights =
        declared.derived && declared.derived->source == kExpertBias;  // not a figure of the evaluated text
    if (model && !of_weights) event.router[declared.name] = rounded(*model);
  }
  for (const auto& [name, value] : evaluation.figures) event.figures[name] = rounded(value);
  if (evaluation.reward) event.reward = rounded(*evaluation.reward);
  return event;
}

// "step 100: validation loss 4.0820, 1.7500 bits per byte; load_balancing_loss 1.01, load_max_over_mean 1.32"
std::string evaluation_line(const EvalEvent& event) {
  std::string line =
      fmt::format("step {}: validation loss{} {:.4f}", event.step, event.set ? " on " + *event.set : "", event.loss);
  if (event.figures.empty()) line += fmt::format(", {:.4f} bits per byte", event.bits_per_byte);
  for (const auto& [name, value] : event.figures) line += fmt::format(", {} {:.4f}", name, value);
  if (event.reward) line += fmt::format(", eval reward {:.4f}", *event.reward);
  std::string routers;
  for (const auto& [name, value] : event.router)
    routers += fmt::format("{}{} {:.5g}", routers.empty() ? "; " : ", ", name, value);
  return line + routers;
}

}  // namespace

void Recorder::evaluation(const TrainState& state, const Evaluation& evaluation, double bytes,
                          const std::vector<megatron_log::RankTimes>& times, const std::vector<SetEvaluation>& sets) {
  validation_loss_ = evaluation.loss();
  evaluated_at_ = state.step;
  if (evaluation.figures.empty()) bits_per_byte_ = bits_per_byte_of(evaluation, bytes);
  const EvalEvent event = event_of(state.step, evaluation, bytes);
  metrics_->append(event);
  if (tensorboard_) tensorboard_->evaluation(event, evaluation.router);
  if (megatron_) megatron_->evaluation(state.step, *validation_loss_, times);
  if (config_->log.nanogpt())
    print(nanogpt_log::format_validation(nanogpt_progress(state), event.loss, value_at(event.router, kBalanceLoss)));
  log_.info(evaluation_line(event));
  for (const SetEvaluation& set : sets) {
    const EvalEvent of_set = event_of(state.step, set.evaluation, set.bytes, set.name);
    metrics_->append(of_set);
    if (tensorboard_) tensorboard_->evaluation(of_set, set.evaluation.router);
    log_.info(evaluation_line(of_set));
  }
  if (waiting_) show(waiting_->state, waiting_->event, waiting_->stays);
  waiting_.reset();
}

void Recorder::saved(const TrainState& state, const BackgroundSave::Saved& checkpoint, double paused_s) {
  if (megatron_) megatron_->saved(state.step, checkpoint.folder.string());
  if (progress_log_)
    progress_log_->saved(std::time(nullptr), {state.step, share_of(ramp_.consumed_by(state.step)),
                                              state.consumed_samples * config_->data.seq_length});
  metrics_->append(SaveEvent{state.step, checkpoint.seconds, paused_s});
  log_.info(fmt::format("saved {} in {:.3f} s, training paused {:.3f} s", checkpoint.folder.string(),
                        checkpoint.seconds, paused_s));
}

void Recorder::states_checked(int64_t step) {
  if (step > kMostChecksTold) return;
  if (config_->log.nanogpt()) {
    if (step == 0) return print(nanogpt_log::format_check("weights-init"));
    print(nanogpt_log::format_check("gradients"));
    return print(nanogpt_log::format_check("weights-upd"));
  }
  log_.info(step == 0 ? "states validated after initialization"
                      : fmt::format("step {}: states validated after the reduction of gradients and the update", step));
}

void Recorder::overflowed(int64_t step, double loss_scale) {
  warn(fmt::format("step {}: gradients were not finite, the loss scale is {:g} now; the step was skipped", step,
                   loss_scale));
}

void Recorder::anomaly(const AnomalyEvent& event) {
  metrics_->append(event);
  std::string warning = fmt::format("step {}: {}: {}", event.at.value_or(event.step), event.what, event.text);
  if (event.action == "skip") warning += "; the step was skipped";
  if (event.folder) warning += fmt::format("; `witan replay {}`", (folder_.path() / *event.folder).string());
  warn(warning);
}

void Recorder::rewound(int64_t step) {
  last_step_ = step;
  waiting_.reset();
  uses_.reset();
  interval_loss_ = interval_s_ = 0;
  interval_steps_ = 0;
  metrics_->truncate_after(step);
  if (samples_) samples_->truncate_after(step);
  if (tensorboard_) open_tensorboard(step + 1);
}

void Recorder::record_end(RunEnd why, Saves saves) {
  const std::string key(key_of(why));
  const bool signalled = key.empty() && StopSignals::requested();  // by the signal's handler
  if (signalled && !StopSignals::restarts()) {
    const std::string cause = "stopped by " + StopSignals::cause();
    progress_.note(cause);
    log_.info(cause);
  }
  if (signalled && saves == Saves::step) return;
  const std::string who = signalled ? "stopping" : key.empty() ? "Another process was asked to stop" : key;
  std::string what = "saving";
  if (saves == Saves::nothing_after_rewind)
    what =
        fmt::format("nothing to save, as the run went back to step {}, whose checkpoint it resumes from", last_step_);
  else if (saves == Saves::nothing_new)
    what = last_step_ == 0
               ? "nothing to save, as no step is done"
               : fmt::format("nothing to save, as step {}, which is saved, is the last one done", last_step_);
  const std::string line = who + ": " + what;
  progress_.note(line);
  log_.info(line);
}

void Recorder::open_tensorboard(int64_t first_step) {
  const std::string& folder = config_->log.tensorboard_dir;
  tensorboard_.emplace(config_, config_.given(), folder.empty() ? folder_.tensorboard() : fs::path(folder), first_step);
}

void Recorder::last_sample(int64_t step, uint64_t seed, const std::string& prompt, const std::string& text) {
  metrics_->append(SampleEvent{step, prompt, text, static_cast<int64_t>(seed)});
}

void Recorder::samples(int64_t step, uint64_t seed, const std::vector<std::string>& prompts,
                       const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const SampleEvent sample{step, prompts[i], texts[i], static_cast<int64_t>(seed)};
    metrics_->append(sample);
    samples_->append(sample);
  }
  const std::string line = fmt::format("sample       step {}: {}", step, clipped(prompts[0] + texts[0], 60));
  progress_.note(line);
  log_.info(line);
}

void Recorder::memory(const std::vector<MemoryEvent>& measured) {
  for (const MemoryEvent& rank : measured) {
    metrics_->append(MeasuredMemoryEvent{rank});
    const auto& planned = plan_.memory[static_cast<size_t>(rank.rank)];
    std::string line = fmt::format("rank {}: arena {} of {} bytes planned", rank.rank, rank.peak, planned.peak);
    for (const auto& [tag, bytes] : rank.tags) line += fmt::format(", {} {} of {}", tag, bytes, planned.tags.at(tag));
    log_.info(line);
  }
  if (tensorboard_) tensorboard_->memory(last_step_, measured);
}

void Recorder::end(RunEnd why, std::optional<uint64_t> peak_resident) {
  const bool finished = is_finished(why);
  const std::string reason(reason_of(why));
  if (megatron_) megatron_->end(why, last_step_);
  EndEvent event{reason};
  if (peak_resident) {
    event.peak_resident = static_cast<double>(*peak_resident);
    event.promised_resident = static_cast<double>(plan_.resident_bytes);
    log_.info(fmt::format("peak memory of the process: {} bytes, {} planned", *peak_resident, plan_.resident_bytes));
  }
  metrics_->append(event);
  if (tensorboard_ && finished) tensorboard_->end(tfevents::SessionStatus::success);
  log_.info("end: " + reason);
}

void Recorder::failed(const std::string& error) {
  std::istringstream lines(error);
  for (std::string line; std::getline(lines, line);) log_.error(line);
  if (metrics_) metrics_->append(EndEvent{"failed: " + error.substr(0, error.find('\n'))});
  if (tensorboard_) tensorboard_->end(tfevents::SessionStatus::failure);
}

}  // namespace witan
