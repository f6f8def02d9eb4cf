#include "witan/train/step/engine.h"

#include <cmath>
#include <exception>
#include <utility>

#include "witan/base/process.h"
#include "witan/data/batches/batch.h"
#include "witan/kernels/common/step_report.h"
#include "witan/model/parts.h"
#include "witan/ops/fp8/fp8_kept.h"
#include "witan/optim/lr_schedule.h"
#include "witan/tensor/trace_context.h"

namespace witan {

Engine::Engine(Stream& stream, const Groups& groups, const ResolvedConfig& config)
    : rank_(stream, groups, config),
      reference_(Reference::make(rank_)),
      stream_(stream),
      groups_(groups),
      config_(rank_.config),
      features_(make_step_features(rank_.parts())),
      buffer_sums_(stream, rank_.buffers, groups,
                   features_.may_repeat() ? BufferSums::Undo::possible : BufferSums::Undo::never),
      part_observers_(charge_parts(rank_.model, stream)),
      passes_(rank_.parts(), features_),
      evaluator_(rank_, passes_.objective(), reference_.get()),
      recorded_(stream) {
  ModelServices services{.units = rank_.units.get()};
  features_.call(&StepFeature::offer, services);
  if (reference_) reference_->attach(services);
  rank_.model.attach(services);
}

void Engine::use_objective(std::unique_ptr<Objective> objective) {
  passes_.use_objective(std::move(objective));
  evaluator_.use_objective(passes_.objective());
}

// A failing rank notifies the others before it releases memory, since their devices may still access it.
Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) groups_.host().abandon();
}

StepResult Engine::step(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates,
                        const std::function<RunEnd()>& asks_to_end) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  const std::vector<Batch>& own = own_part(micro_batches);
  prepare(own);
  const Count count{iteration, updates};
  begin(own, count);
  times_ = {};
  StepReport::Result read;
  if (recordable()) {
    // Asked before the step, since the host has no part in it: a request to stop during the step is seen in the next.
    report_->write_end(stream_, asks_to_end ? asks_to_end() : RunEnd::none);
    if (before_update_) before_update_();  // its wait is no part of the step's time
    const Stopwatch whole;
    replay();
    read = report_->read(stream_);
    times_.forward_backward = whole.seconds();
  } else {
    recorded_.queue([&] { compute(Mode::eager, asks_to_end); });
    read = report_->read(stream_);
  }
  while (features_.repeats(read)) read = compute_again(own, count);
  StepResult result = result_of(read);
  features_.call(&StepFeature::report, read, result);
  return result;
}

void Engine::step_again(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  const std::vector<Batch>& own = own_part(micro_batches);
  for (const StepResult& way : features_.repetitions()) {
    features_.call(&StepFeature::begin_again, way);
    compute_again(own, {iteration, updates});
    features_.call(&StepFeature::end_again);
  }
}

StepReport::Result Engine::compute_again(const std::vector<Batch>& own, Count count) {
  buffer_sums_.undo_step(stream_);
  begin(own, count);
  recorded_.queue([&] { compute(Mode::again); }, RecordedStep::Noted::no);
  return report_->read(stream_);
}

// Uploads the step's inputs.
void Engine::begin(const std::vector<Batch>& own, Count count) {
  const int64_t length = config_->schedule_length(), now = position(count, scheduled_samples_);
  rank_.step_state.set(rank_.param_groups.learning_rates(length, now), count.iteration, count.updates + 1,
                       rank_.param_groups.weight_decay_share(length, now));
  if (held_) {
    constexpr double kHeld = -1;
    stream_.write(rank_.step_state.tensor().narrow(0, kernels::step_value::skip, 1), &kHeld);
  }
  inputs_->upload(stream_, own, ahead_);
  features_.call(&StepFeature::before_step, count.iteration);
}

int64_t Engine::samples_of_step() const {
  return inputs_->micro_batches() * config_->train.micro_batch_size * groups_.layout().data_ranks();
}

// The positions of schedules after `samples` samples of earlier updates.
int64_t Engine::position(Count count, int64_t samples) const {
  return config_->optimizer.counts_samples() ? samples
                                             : schedule_position(config_->optimizer, count.iteration, count.updates);
}

// Takes whole sequences: the tokens ahead of a context-parallel rank's last place are another rank's.
void Engine::look_ahead_of(const std::vector<Batch>& batches) {
  const Group& context = groups_.of(Axis::context);
  ahead_.clear();
  for (int64_t module = 1; module <= config_->model.mtp_num_layers; ++module) {
    std::vector<Batch>& ahead = ahead_.emplace_back();
    for (const Batch& batch : batches) ahead.push_back(look_ahead(batch, module));
    if (context.size() > 1) ahead = context_part(ahead, context);
  }
}

const std::vector<Batch>& Engine::own_part(const std::vector<Batch>& batches) {
  const Group& context = groups_.of(Axis::context);
  if (context.size() == 1) return batches;
  parts_ = context_part(batches, context);
  return parts_;
}

// Everything that depends on the number of micro-batches is made again when it changes (rampup_batch_size), recorded
// steps too.
void Engine::prepare(const std::vector<Batch>& batches) {
  if (inputs_ && inputs_->fits(batches)) return;
  recorded_.reset();
  features_.call(&StepFeature::release);
  inputs_.reset();
  reference_passes_.reset();
  report_.reset();
  channel_.reset();
  inputs_ = std::make_unique<StepInputs>(stream_, batches, config_->model.mtp_num_layers,
                                         passes_.objective().counts_sequences());
  if (reference_)
    reference_passes_ = std::make_unique<ReferencePasses>(*reference_, batches, Dropping::by_capacity, repetition_);
  const auto count = static_cast<int64_t>(batches.size());
  report_ = std::make_unique<StepReport>(stream_, groups_.layout(), groups_.rank(), report_sizes(count));
  rank_.gradients.expect(count);
  passes_.expect(count);
  const Batch& one = batches.front();
  features_.call(&StepFeature::allocate, StepShape{count, one.sequences * one.sequence_length, *report_});
  const Pipeline pipeline{rank_.stages.stages(), rank_.stages.chunks(), count, Pipeline::Passes::both};
  channel_ = std::make_unique<PipelineChannel>(groups_.of(Axis::pipeline), pipeline, residual_shape(*config_, one),
                                               config_->model.compute_dtype(), repetition_);
}

ReportSizes Engine::report_sizes(int64_t micro_batches) const {
  return {config_->model,
          rank_.stages,
          micro_batches,
          {.objective = passes_.objective().losses(), .modules = rank_.whole.losses},
          ReportSizes::activations_of(*config_)};
}

std::string Engine::why_eager() const {
  return witan::why_eager(*config_, groups_, rank_.param_groups);
}

bool Engine::recordable() const {
  return features_.recordable() && stream_.is_cuda() && !stream_.times_kernels() && stream_.observer() == nullptr &&
         why_eager().empty();
}

// The first step is launched kernel by kernel, with all kernels that later ones may launch. Others are replayed.
void Engine::replay() {
  const auto step = [this] { compute(Mode::recorded); };
  const std::vector<bool> launches = features_.launches();
  if (recorded_.is_first()) {
    features_.set_launches(std::vector<bool>(launches.size(), true));
    recorded_.queue_first(step);
    return features_.set_launches(launches);
  }
  recorded_.replay(launches, step);
  if (config_->parallel.overlap_param_gather) rank_.units->publish();
}

// The whole step, from its inputs to its report.
void Engine::compute(Mode mode, const std::function<RunEnd()>& asks_to_end) {
  compute_passes(mode);
  if (mode == Mode::eager && before_update_) before_update_();
  const Tensor total = update();
  stream_.set_part("other");
  if (mode == Mode::eager) report_->write_end(stream_, asks_to_end ? asks_to_end() : RunEnd::none);
  report_->finish(stream_, groups_.world(), total, rank_.step_state.common());
}

// From the inputs to the gradients.
void Engine::compute_passes(Mode mode) {
  // A recorded step begins by gathering what the step before it updated, whether or not that happened in between.
  if (mode == Mode::recorded && config_->parallel.overlap_param_gather) rank_.units->publish();
  groups_.over(groups_.layout().token_axes()).all_reduce(stream_, inputs_->counts());
  buffer_sums_.begin_step(stream_);
  features_.call(&StepFeature::begin_step);
  const Stopwatch forward_backward;
  if (reference_passes_) reference_passes_->run(*inputs_);
  passes_.begin_step(*inputs_, *report_, reference_passes_.get());
  {
    const ops::Fp8Rounds::Round fixed_weights(rank_.fp8_rounds.get());
    channel_->run(stream_, passes_);
  }
  rank_.units->give_back();
  rank_.units->gather();  // values that the step did not read
  {
    const TraceContextScope trace_context(stream_, TraceContext::Phase::gradients);
    stream_.set_part("gradients");
    rank_.gradients.finish_step();
    features_.call(&StepFeature::after_passes);
  }
  times_.forward_backward = forward_backward.seconds();
  times_.forward = passes_.forward_seconds();
  times_.backward = passes_.backward_seconds();
  times_.reduction = rank_.gradients.reduction_seconds();
}

// Returns the total of GlobalNorm::compute().
Tensor Engine::update() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::optimizer);
  stream_.set_part("optimizer");
  const Stopwatch optimizer;
  buffer_sums_.finish_step(stream_);
  const Tensor total = rank_.norm.compute(stream_, GlobalNorm::Of::gradients);
  features_.call(&StepFeature::before_update, total);
  times_.clip = optimizer.seconds();
  rank_.optimizer->update(stream_, rank_.step_state);
  features_.call(&StepFeature::after_update);
  rank_.model.visit([&](Module& module) { module.after_update(stream_, rank_.step_state.tensor()); });
  times_.update = optimizer.seconds() - times_.clip;
  rank_.units->publish();
  if (!config_->parallel.overlap_param_gather) rank_.units->gather();
  times_.optimizer = optimizer.seconds();
  return total;
}

StepResult Engine::result_of(const StepReport::Result& report) const {
  StepResult result;
  result.loss = report.losses.front();
  for (size_t i = 1; i < report.losses.size(); ++i)
    if (const LossSpec& loss = report_->sizes().losses()[i]; is_mtp_loss(loss.name))
      result.mtp_losses.push_back(report.losses[i]);
    else
      result.other_losses.emplace_back(loss.name, report.losses[i]);
  result.router = StepStatistics(report_->sizes().statistics(), report.statistics);
  result.gradient_norm = std::sqrt(report.square_sum);
  if (config_->log.log_num_zeros_in_grad) result.scalars.set(kNumZeros, report.zeros);
  result.skipped = report.step[kernels::step_value::skip] != 0;
  const auto iteration = static_cast<int64_t>(report.step[kernels::step_value::iteration]),
             update = static_cast<int64_t>(report.step[kernels::step_value::update]);
  result.samples = samples_of_step();
  const int64_t now = position({iteration, result.skipped ? update - 1 : update},
                               scheduled_samples_ + (result.skipped ? 0 : result.samples));
  result.learning_rate = rank_.param_groups.learning_rates(config_->schedule_length(), now).front();
  result.held = held_;
  result.spike = result.skipped && !held_ && std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  result.end = report.end;
  result.times = times_;
  return result;
}

std::optional<NonFiniteSearch::Found> Engine::find_non_finite(const std::vector<Batch>& micro_batches,
                                                              int64_t iteration, int64_t updates,
                                                              const StepResult& result) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  features_.call(&StepFeature::begin_again, result);
  begin(own_part(micro_batches), {iteration, updates});
  KernelObserver* const before = stream_.observer();
  NonFiniteSearch search;
  stream_.observe(&search);
  try {
    compute_passes(Mode::again);
    stream_.wait();
  } catch (...) {
    stream_.observe(before);
    throw;
  }
  stream_.observe(before);
  features_.call(&StepFeature::end_again);
  return search.found();
}

void Engine::replay_passes(const std::vector<Batch>& micro_batches, int data_rank, int64_t iteration, int64_t updates) {
  const TraceContextScope trace_context(stream_);
  trace_context->step = iteration;
  look_ahead_of(micro_batches);
  const std::vector<Batch>& own = own_part(micro_batches);
  prepare(own);
  begin(own, {iteration, updates});
  passes_.compute_as(data_rank);
  compute_passes(Mode::again);
  passes_.compute_as(groups_.layout().data_rank(groups_.rank()));
}

}  // namespace witan
