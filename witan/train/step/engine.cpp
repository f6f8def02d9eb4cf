#include "witan/train/step/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <span>
#include <utility>

#include "witan/base/stopwatch.h"
#include "witan/base/threads/threads.h"
#include "witan/data/batches/ahead.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/expert_pool.h"
#include "witan/model/parts.h"
#include "witan/moe/experts.h"
#include "witan/moe/moe.h"
#include "witan/moe/replicas.h"
#include "witan/ops/fp8/fp8_kept.h"
#include "witan/optim/lr_schedule.h"
#include "witan/parallel/sharding/shard_plan.h"
#include "witan/tensor/recording.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/context_part.h"

namespace witan {
namespace {

// What every stage of the pipeline has to sum: models of the others' layers on the meta device say it.
std::vector<std::vector<NormRows>> rows_of_stages(const RunConfig& config, const Stages& stages, const Groups& groups,
                                                  const ShardingPolicy& policy) {
  if (stages.stages() == 1) return {};
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  std::vector<std::vector<NormRows>> rows;
  for (int stage = 0; stage < stages.stages(); ++stage) {
    const Transformer model(stream, config.model, 0, groups.model_axes(config.parallel), stages.held_by(stage));
    rows.push_back(norm_rows(
        ShardPlan(model.parameters(), groups.layout(), groups.rank(), BucketPlan::kElements, policy), groups.layout()));
  }
  return rows;
}

// Whose launches are noted as long as it lives.
class WatchedLaunches {
 public:
  WatchedLaunches(Stream& stream, LaunchObserver* launches) : stream_(stream) { stream_.watch_launches(launches); }
  ~WatchedLaunches() { stream_.watch_launches(nullptr); }
  WatchedLaunches(const WatchedLaunches&) = delete;
  WatchedLaunches& operator=(const WatchedLaunches&) = delete;

 private:
  Stream& stream_;
};

// Of the residual stream that goes from stage to stage.
Shape residual_shape(const RunConfig& config, const Batch& batch) {
  const int64_t ranks = config.parallel.sequence_parallel ? config.parallel.tensor_model_parallel_size : 1;
  return {batch.sequences, batch.sequence_length / ranks, config.model.hidden_size};
}

ModelAxes training_axes(const Groups& groups, const RunConfig& config,
                        std::shared_ptr<const ops::Fp8Rounds> fp8_rounds) {
  ModelAxes axes = groups.model_axes(config.parallel);
  axes.tensor_overlap = config.overlaps_tensor_exchanges();
  axes.fp8_rounds = std::move(fp8_rounds);
  return axes;
}

}  // namespace

Engine::Engine(Stream& stream, const Groups& groups, const ResolvedConfig& config)
    : stream_(stream),
      groups_(groups),
      config_(config),
      stages_(config->parallel.stage_split(config->model.num_layers)),
      fp8_rounds_(config->model.fp8() && config->model.fp8_keep_weights ? std::make_shared<ops::Fp8Rounds>() : nullptr),
      model_(stream, config->model, static_cast<uint64_t>(config->train.seed),
             training_axes(groups, *config, fp8_rounds_), stages_.held_by(groups.of(Axis::pipeline).rank())),
      parameters_(model_.parameters()),
      buffers_(model_.buffers()),
      param_groups_(config->optimizer),
      policy_(config->optimizer),
      shard_plan_(parameters_, groups.layout(), groups.rank(), BucketPlan::kElements, policy_),
      units_(make_unit_store()),
      pools_(make_pools()),
      tensor_side_(make_tensor_side()),
      expert_side_(make_expert_side()),
      global_load_(make_global_load()),
      gradients_(stream, parameters_, groups,
                 {.dtype = config->gradient_dtype(),
                  .summation = config->parallel.sums_in_tree(config->model.moe.num_experts) ? Summation::tree
                                                                                            : Summation::in_place,
                  .micro_batches = config->micro_batches() / groups.layout().data_ranks(),
                  .overlap = config->parallel.overlap_grad_reduce,
                  .norm_fusion = config->parallel.fuses_gradient_norm(),
                  .policy = policy_}),
      buffer_sums_(stream, buffers_, groups, pools_ ? BufferSums::Undo::possible : BufferSums::Undo::never),
      norm_(stream, shard_plan_, groups, rows_of_stages(config, stages_, groups, policy_)),
      step_state_(stream, param_groups_.size()),
      optimizer_(make_optimizer(config->optimizer, stream, shard_plan_.local_shards(&groups))),
      state_check_(parameters_, groups, buffers_),
      part_observers_(charge_parts(model_, stream)),
      loss_scaler_(make_loss_scaler()),
      passes_(stream, *config_, groups, model_, gradients_, step_state_, loss_scaler_ ? &*loss_scaler_ : nullptr) {
  units_->gather_on(gradients_.side(), config->parallel.overlap_param_gather);
  const TraceContextScope trace_context(stream, TraceContext::Phase::set_up);
  const OptimizerConfig& optimizer = config_->optimizer;
  if (optimizer.skip_step_sigma > 0)
    spikes_.emplace(SpikeSkip(stream, optimizer.skip_step_sigma, optimizer.skip_step_window), std::nullopt);
  if (optimizer.qk_clip) qk_clip_.emplace(stream, groups, *config_, model_);
  if (config_->log.log_activations > 0) passes_.use_activations(&activations_.emplace());
  if (!config_->train.record_routes.empty() || !config_->train.replay_routes.empty())
    passes_.use_routes(&routes_.emplace(model_, *config_));
  model_.attach(services());
  if (config_->train.check_states) state_check_.after_init(stream_, units_.get());
}

// A rank that fails tells the others before it gives back what a device may hold on to until theirs are done.
Engine::~Engine() {
  if (std::uncaught_exceptions() > 0) groups_.host().abandon();
}

std::unique_ptr<UnitStore> Engine::make_unit_store() {
  UnitStore::Options options{config_->parallel.reshard_after_forward,
                             static_cast<uint64_t>(config_->train.seed),
                             config_->model.init_method == "torch",
                             {},
                             policy_};
  const auto make = [&] { return std::make_unique<UnitStore>(stream_, model_.units(), shard_plan_, groups_, options); };
  if (!groups_.layout().shards_values() || !options.torch || stages_.stages() == 1) return make();
  ThreadPool pool(1);  // the whole model, on the meta device, says what is drawn before this stage's values
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  Transformer whole(stream, config_->model, 0, groups_.model_axes(config_->parallel));
  for (const Parameter* parameter : whole.parameters()) options.drawn.push_back(parameter);
  return make();
}

// Norms, too, run on it, and sum gradients of their weights in its scratch.
std::unique_ptr<Stream> Engine::make_tensor_side() {
  if (!config_->overlaps_tensor_exchanges()) return nullptr;
  constexpr int64_t kLeast = int64_t{16} << 20, kStrips = 512;  // of rows, which sums of columns are made of at most
  const int64_t strips = kStrips * config_->model.hidden_size * size_of(accumulator(config_->model.compute_dtype()));
  return std::make_unique<Stream>(stream_, std::max(kLeast, strips));
}

// A stream of its own: gradients that are reduced beside the backward would be in the way of rows.
std::unique_ptr<Stream> Engine::make_expert_side() {
  if (!config_->model.moe.moe_shared_expert_overlap || groups_.of(Axis::expert).size() == 1) return nullptr;
  constexpr int64_t kScratch = 512;  // exchanges of rows need none
  return std::make_unique<Stream>(stream_, kScratch);
}

std::unique_ptr<GlobalLoad> Engine::make_global_load() {
  const MoeConfig& moe = config_->model.moe;
  const auto losses = moe.num_experts > 0 ? moe.balance_losses() : std::vector<BalanceLoss>();
  const bool global = std::ranges::find(losses, BalanceLoss::Over::global_batch, &BalanceLoss::over) != losses.end();
  if (!global || moe.balances_last_load()) return nullptr;
  return std::make_unique<GlobalLoad>(stream_, model_.routers(), moe.num_experts,
                                      config_->micro_batches() / groups_.layout().data_ranks(),
                                      groups_.over(groups_.layout().data_axes()));
}

// Exchanges of the tensor axis that are not in peers' memory stay on the main stream, where other groups' may be:
// NCCL's calls take multiprocessors that wait for each other.
ModelServices Engine::services() {
  const bool beside = !stream_.is_cuda() || groups_.of(Axis::tensor).peers() != nullptr;
  ModelServices services{.units = units_.get(), .pools = pools_.get()};
  if (tensor_side_) services.tensor_side = beside ? tensor_side_.get() : &stream_;
  services.expert_side = expert_side_.get();
  if (activations_) services.activations = &*activations_;
  if (routes_) services.routes = &*routes_;
  services.global_load = global_load_.get();
  return services;
}

std::optional<LossScaler> Engine::make_loss_scaler() const {
  if (config_->model.compute_dtype() != DType::f16) return std::nullopt;
  return LossScaler(stream_, config_->optimizer);
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
  if (pools_ && exchange_backoff_.waits()) pools_->divide(1);
  if (recordable()) {
    // Asked before the step, since nothing is asked within it: who is told to stop during it is heard after the next.
    report_->write_end(stream_, asks_to_end ? asks_to_end() : RunEnd::none);
    if (before_update_) before_update_();  // its wait is no part of the step's time
    const Stopwatch whole;
    replay();
    const StepReport::Result read = report_->read(stream_, measures());
    times_.forward_backward = whole.seconds();
    return within_pools(own, count, read);
  }
  compute_noted(Mode::eager, asks_to_end);
  return within_pools(own, count, report_->read(stream_, measures()));
}

// What the step reads, on the device.
void Engine::begin(const std::vector<Batch>& own, Count count) {
  const int64_t length = config_->schedule_length(), now = position(count, scheduled_samples_);
  step_state_.set(param_groups_.learning_rates(length, now), count.iteration, count.updates + 1,
                  param_groups_.weight_decay_share(length, now));
  if (activations_) activations_->want(count.iteration % config_->log.log_activations == 0);
  inputs_->upload(stream_, own, ahead_);
  if (routes_ && routes_->replays()) routes_->upload(stream_, replayed_routes_);
}

int64_t Engine::samples_of_step() const {
  return inputs_->micro_batches() * config_->train.micro_batch_size * groups_.layout().data_ranks();
}

// The positions of schedules after `samples` samples of earlier updates.
int64_t Engine::position(Count count, int64_t samples) const {
  return config_->optimizer.counts_samples() ? samples
                                             : schedule_position(config_->optimizer, count.iteration, count.updates);
}

// Of whole sequences, before ranks divide them: what is ahead of a rank's last place is another rank's.
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

// All that depends on the number of micro-batches is made anew where it changes (rampup_batch_size), a recorded step
// too.
void Engine::prepare(const std::vector<Batch>& batches) {
  if (inputs_ && inputs_->fits(batches)) return;
  for (auto& graph : graphs_) graph.reset();
  noted_graph_.reset();
  warm_ = false;
  inputs_.reset();
  report_.reset();
  if (routes_) routes_->release();
  channel_.reset();
  if (spikes_) spikes_->losses.reset();
  inputs_ = std::make_unique<StepInputs>(stream_, batches, config_->model.mtp_num_layers);
  const auto count = static_cast<int64_t>(batches.size());
  report_ =
      std::make_unique<StepReport>(stream_, groups_.layout(), groups_.rank(),
                                   ReportSizes(config_->model, stages_, count, ReportSizes::activations_of(*config_)));
  if (spikes_) spikes_->losses.emplace(stream_, groups_, count);
  gradients_.expect(count);
  passes_.expect(count);
  if (global_load_) global_load_->expect(count);
  const Batch& one = batches.front();
  if (routes_) routes_->allocate(stream_, count, one.sequences * one.sequence_length);
  channel_ = std::make_unique<PipelineChannel>(groups_.of(Axis::pipeline), pipeline(count, Pipeline::Passes::both),
                                               residual_shape(config_, batches.front()), config_->model.compute_dtype(),
                                               repetition_);
}

Pipeline Engine::pipeline(int64_t micro_batches, Pipeline::Passes passes) const {
  return {stages_.stages(), stages_.chunks(), micro_batches, passes};
}

std::string Engine::why_eager() const {
  const auto& moe = config_->model.moe;
  if (!config_->parallel.cuda_graph) return "cuda_graph = false";
  if (config_->train.check_states) return "check_states = true compares ranks on the host during the step";
  if (moe.num_experts > 0 && expert_backend(moe) == ExpertBackend::sequential)
    return cat(moe.moe_grouped_gemm ? "moe_expert_backend = sequential" : "moe_grouped_gemm = false",
               " reads the row count of each expert on the host");
  const int64_t expert_ranks = groups_.of(Axis::expert).size();
  if (moe.moe_token_dispatcher_type == "alltoall" && expert_ranks > 1 && !rows_go_by_peers()) {
    if (moe.moe_exchange_factor == 0)
      return cat("experts' rows are exchanged over NCCL, which needs their counts on the host",
                 config_->parallel.peer_memory ? "" : " (WITAN_COMM_PEERS = 0)",
                 "; moe_exchange_factor = 1.5 does without");
    if (replica_slots(moe, expert_ranks) > 0)
      return "moe_replicated_experts copies experts over NCCL, which needs the rows of each on the host";
  }
  for (const ParamGroup& group : param_groups_.all())
    if (optimizer_traits(group.settings.optimizer).eager)
      return cat("optimizer = ", group.settings.optimizer, " makes preconditioners in some steps alone");
  return "";
}

bool Engine::recordable() const {
  if (bounds_exchanges() && !pools_->in_parts()) return false;  // this step
  return stream_.is_cuda() && !stream_.times_kernels() && stream_.observer() == nullptr && why_eager().empty();
}

// The first step runs as it comes: libraries are loaded and choose their kernels, those of statistics too. The second
// is recorded, and so is the first one that measures activations, or the first that does not.
void Engine::replay() {
  const bool wanted = measures();
  if (!std::exchange(warm_, true)) {
    if (activations_) activations_->want(true);
    compute_noted(Mode::recorded, {});
    if (activations_) activations_->want(wanted);
    return;
  }
  if (launches_ != nullptr) return replay_noted();
  std::unique_ptr<Graph>& graph = graphs_[wanted ? 1 : 0];
  if (!graph) graph = record(*stream_.queue(), [&] { compute(Mode::recorded, {}); });
  graph->launch();
  if (config_->parallel.overlap_param_gather) units_->publish();
}

void Engine::replay_noted() {
  if (!noted_graph_ || noted_measures_ != measures()) {
    noted_graph_.reset();  // before its moments go
    launches_->clear(LaunchTrace::Work::captured);
    noted_measures_ = measures();
    const WatchedLaunches watched(stream_, launches_);
    noted_graph_ = record(*stream_.queue(), [&] { compute(Mode::recorded, {}); });
  }
  launches_->start(*stream_.queue());
  noted_graph_->launch();
  if (config_->parallel.overlap_param_gather) units_->publish();
}

void Engine::compute_noted(Mode mode, const std::function<RunEnd()>& asks_to_end) {
  if (launches_ == nullptr) return compute(mode, asks_to_end);
  noted_graph_.reset();
  launches_->clear(LaunchTrace::Work::queued);
  launches_->start(*stream_.queue());
  const WatchedLaunches watched(stream_, launches_);
  compute(mode, asks_to_end);
}

void Engine::note_launches(LaunchTrace* launches) {
  noted_graph_.reset();
  launches_ = launches;
}

// All that a step does, from its inputs to its report.
void Engine::compute(Mode mode, const std::function<RunEnd()>& asks_to_end) {
  std::optional<WatchedLaunches> shown;
  if (ranges_ != nullptr && stream_.launches() == nullptr) shown.emplace(stream_, ranges_);
  compute_passes(mode);
  if (mode == Mode::eager && before_update_) before_update_();
  const Tensor total = update();
  stream_.set_part("other");
  if (mode == Mode::eager) report_->write_end(stream_, asks_to_end ? asks_to_end() : RunEnd::none);
  report_->finish(stream_, groups_.world(), total, step_state_.common());
  if (shown) ranges_->close();
}

// From the inputs to the gradients.
void Engine::compute_passes(Mode mode) {
  // A recorded step begins with what the one before it updated, whether or not it was gathered in between.
  if (mode == Mode::recorded && config_->parallel.overlap_param_gather) units_->publish();
  tokens().all_reduce(stream_, inputs_->target_counts());
  buffer_sums_.begin_step(stream_);
  if (pools_) pools_->begin_step();
  if (qk_clip_) qk_clip_->begin_step();
  const Stopwatch forward_backward;
  passes_.begin_step(*inputs_, *report_);
  {
    const ops::Fp8Rounds::Round fixed_weights(fp8_rounds_.get());
    channel_->run(stream_, passes_);
  }
  units_->give_back();
  units_->gather();  // what the step did not read
  finish_gradients();
  if (digest_ != nullptr) note_losses();
  times_.forward_backward = forward_backward.seconds();
  times_.forward = passes_.forward_seconds();
  times_.backward = passes_.backward_seconds();
  times_.reduction = gradients_.reduction_seconds();
}

void Engine::finish_gradients() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::gradients);
  stream_.set_part("gradients");
  gradients_.finish_step();
  if (config_->train.check_states) state_check_.after_reduction(stream_, shard_plan_.local_shards());
}

// Returns what the gradients come to (GlobalNorm::compute).
Tensor Engine::update() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::optimizer);
  stream_.set_part("optimizer");
  const Stopwatch optimizer;
  buffer_sums_.finish_step(stream_);
  const Tensor total = norm_.compute(stream_, GlobalNorm::Of::gradients);
  if (loss_scaler_) loss_scaler_->unscale(total);
  clip(stream_, step_state_, total, config_->optimizer.clip_grad);
  if (pools_) {
    groups_.world().all_reduce(stream_, pools_->fill(), Reduce::max);
    kernels::skip_overflow(stream_, step_state_.tensor(), pools_->fill());
  }
  if (loss_scaler_) loss_scaler_->adapt(step_state_);
  if (spikes_) {
    spikes_->losses->gather(stream_, report_->own_losses());
    spikes_->skip.decide(step_state_, total, spikes_->losses->losses(), spikes_->losses->order());
  }
  times_.clip = optimizer.seconds();
  optimizer_->update(stream_, step_state_);
  if (qk_clip_) qk_clip_->clip(*optimizer_, step_state_);
  model_.visit([&](Module& module) { module.after_update(stream_, step_state_.tensor()); });
  times_.update = optimizer.seconds() - times_.clip;
  units_->publish();
  if (!config_->parallel.overlap_param_gather) units_->gather();
  times_.optimizer = optimizer.seconds();
  if (config_->train.check_states) {
    units_->gather();
    state_check_.after_update(stream_, *optimizer_);
    state_check_.experts_after_update(stream_, units_.get());
  }
  return total;
}

// Losses are summed in the order of micro-batches, whoever ran them: the same bits in every layout.
StepResult Engine::result_of(const StepReport::Result& report) const {
  StepResult result;
  result.mtp_losses.resize(static_cast<size_t>(config_->model.mtp_num_layers));
  for (const double loss : report.losses) result.loss += loss;
  for (const std::vector<double>& losses : report.mtp_losses)
    for (size_t module = 0; module < losses.size(); ++module) result.mtp_losses[module] += losses[module];
  result.router = StepStatistics(report_->sizes().statistics(), report.statistics);
  result.gradient_norm = std::sqrt(report.square_sum);
  result.zero_gradients = report.zeros;
  result.skipped = report.step[kernels::step_value::skip] != 0;
  const auto iteration = static_cast<int64_t>(report.step[kernels::step_value::iteration]),
             update = static_cast<int64_t>(report.step[kernels::step_value::update]);
  result.samples = samples_of_step();
  const int64_t now = position({iteration, result.skipped ? update - 1 : update},
                               scheduled_samples_ + (result.skipped ? 0 : result.samples));
  result.learning_rate = param_groups_.learning_rates(config_->schedule_length(), now).front();
  result.spike = result.skipped && std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  if (loss_scaler_) result.loss_scale = loss_scaler_->read().scale;
  if (qk_clip_) result.max_attention_logit = qk_clip_->largest();
  if (measures()) result.activations = activations_of(report);
  result.end = report.end;
  result.times = times_;
  return result;
}

std::map<std::string, std::vector<double>> Engine::activations_of(const StepReport::Result& report) const {
  std::map<std::string, std::vector<double>> values;
  for (const ActivationStatistic& statistic : activation_statistics())
    for (const auto& layer : report.activations) {
      const ActivationMoments& moments = layer[static_cast<size_t>(statistic.of)];
      values[statistic.name].push_back(moments.elements > 0 ? statistic.compute(moments) : std::nan(""));
    }
  if (qk_clip_) values["attention_logit_max"] = qk_clip_->largest_of_layers();
  return values;
}

// The values of all ranks with tokens of their own, in all stages, in the order of ranks.
std::vector<double> Engine::gather(const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  Group& ranks = groups_.over(groups_.layout().loss_reporting_axes());
  const Tensor all = stream_.empty({ranks.size() * count}, DType::f64, MemoryTag::communication);
  const Tensor own = all.narrow(0, ranks.rank() * count, count);
  stream_.write(own, values.data());
  ranks.all_gather(stream_, all, own);
  if (stream_.is_meta()) return values;
  std::vector<double> gathered(static_cast<size_t>(all.elements()));
  stream_.read(gathered.data(), all);
  return gathered;
}

int64_t Engine::evaluated_together() const {
  return stages_.stages() == 1 ? 1 : config_->micro_batches() / groups_.layout().data_ranks();
}

// Runs of evaluated_together() micro-batches, each of which begins with the memory that the one before it began with:
// however many there are, they take what one takes. A last run that is short is filled up, and what fills it counts
// nothing.
Evaluation Engine::evaluate(const std::vector<Batch>& whole) {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::evaluation);
  const std::vector<Batch>& batches = own_part(whole);
  const std::string before = stream_.set_part("evaluation");
  const auto most = static_cast<size_t>(evaluated_together());
  const int stage = groups_.of(Axis::pipeline).rank();
  ModelConfig evaluated = config_->model;
  evaluated.mtp_num_layers = 0;  // they predict what only training looks at
  const ReportSizes sizes(evaluated, stages_, static_cast<int64_t>(most));
  RouterSums routers(sizes.statistics(), sizes.blocks());
  units_->begin_passes();
  std::vector<double> own;  // of each batch: nats, targets
  for (size_t begin = 0; begin < batches.size(); begin += most) {
    std::vector<Batch> filled;
    std::span<const Batch> run = std::span(batches).subspan(begin, std::min(most, batches.size() - begin));
    const size_t real = run.size();
    if (real < most) {
      filled.assign(run.begin(), run.end());
      filled.resize(most, run.back());
      run = filled;
    }
    PipelineChannel channel(groups_.of(Axis::pipeline), pipeline(static_cast<int64_t>(most), Pipeline::Passes::forward),
                            residual_shape(config_, run.front()), config_->model.compute_dtype(),
                            stages_.stages() == 1 ? nullptr : repetition_);
    const StageEvaluation found = witan::evaluate(stream_, model_, channel, run, sizes, stage);
    for (size_t i = 0; i < real; ++i) own.insert(own.end(), {found.losses[i].nats, found.losses[i].targets});
    for (size_t i = 0; i < std::min(real, found.routers.size()); ++i) add_routers(routers, sizes, found.routers[i]);
    units_->end_pass();
  }
  units_->give_back();
  stream_.set_part(before);
  // Batch by batch, so that this too takes what one takes. Summed rank by rank.
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < own.size(); i += 2) all.push_back(gather({own[i], own[i + 1]}));
  Evaluation sum;
  for (size_t at = 0; !all.empty() && at < all.front().size(); at += 2)
    for (const std::vector<double>& batch : all) {
      sum.nats += batch[at];
      sum.targets += batch[at + 1];
    }
  if (sizes.blocks() > 0) sum.router = gather(routers);
  return sum;
}

// Of a micro-batch that this stage looked at. Context-parallel ranks all know the same of it, and the first counts.
void Engine::add_routers(RouterSums& sums, const ReportSizes& sizes, std::span<const double> found) const {
  if (groups_.of(Axis::context).rank() > 0) return;
  const auto values = static_cast<size_t>(sizes.statistics().values());
  size_t at = 0;
  for (const int64_t block : sizes.held(groups_.of(Axis::pipeline).rank())) {
    sums.add(block, found.subspan(at, values));
    at += values;
  }
}

StepStatistics Engine::gather(RouterSums& sums) {
  const auto count = static_cast<int64_t>(sums.values().size());
  const Tensor all = stream_.empty({count}, DType::f64, MemoryTag::communication);
  stream_.write(all, sums.values().data());
  if (stream_.is_meta()) return {};  // it comes once for an evaluation: a plan counts what each micro-batch takes
  groups_.over(groups_.layout().loss_reporting_axes()).all_reduce(stream_, all);
  stream_.read(sums.values().data(), all);
  return sums.statistics();
}

double Engine::params_norm() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::logging);
  const std::string before = stream_.set_part("logging");
  const double norm = read_norm(stream_, norm_.compute(stream_, GlobalNorm::Of::values)).norm;
  stream_.set_part(before);
  return norm;
}

// The gradients of float16 models are summed as they are, scaled, and the scale has changed since.
LayerNorms Engine::layer_norms(const StepResult& result) {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::logging);
  const std::string before = stream_.set_part("logging");
  std::vector<double> sums = norm_.square_sums_of_units(stream_);
  stream_.set_part(before);
  double unscale = 1;
  if (loss_scaler_) unscale = result.gradient_norm / std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
  sums.resize(static_cast<size_t>(config_->model.num_layers + config_->model.mtp_num_layers + 2));
  for (double& sum : sums) sum = std::sqrt(sum) * unscale;
  const auto head = sums.begin() + 1 + config_->model.num_layers;  // as Transformer numbers its units
  LayerNorms norms{.embedding = sums.front(), .layers = {sums.begin() + 1, head}, .head = *head};
  norms.layers.insert(norms.layers.end(), head + 1, sums.end());
  return norms;
}

void Engine::check_states() {
  const TraceContextScope trace_context(stream_, TraceContext::Phase::optimizer);
  gather_values();
  state_check_.after_update(stream_, *optimizer_);
}

void Engine::gather_values() {
  if (units_->gathered()) return;
  units_->gather();
  stream_.wait();  // for who reads them by other means than this stream
}

std::vector<StateTensor> Engine::state() {
  gather_values();
  // Of the ranks that hold the same, the first writes it.
  const Layout& layout = groups_.layout();
  std::vector<StateTensor> tensors;
  for (const Parameter* parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec();
    const Axes owners = layout.shards_values(spec.expert) ? layout.sharding_axes(spec.expert) : Axes{};
    const bool writes = !spec.copy && layout.holds_first(spec, groups_.rank(), owners);
    const Tensor shard = parameter->value_shard();
    int64_t done = 0;
    for (const Region& region :
         parameter->region().slice(parameter->shard_first(), parameter->shard_first() + shard.elements())) {
      tensors.push_back(
          {parameter->name(), shard.narrow(0, done, region.elements()), parameter->global_shape(), region, writes});
      done += region.elements();
    }
  }
  for (const Buffer* buffer : buffers_) {
    const BufferSpec& spec = buffer->spec();
    tensors.push_back({.name = buffer->name(),
                       .local = buffer->value(),
                       .global_shape = spec.shape,
                       .region = {0, spec.shape.elements()},
                       .writes = !spec.copy && layout.holds_first(spec, groups_.rank()),
                       .kind = StateTensor::Kind::buffer});
  }
  optimizer_->visit([&](const OptimizerTensor& piece) {
    const Axes owners = layout.sharding_axes(piece.parameter.expert);
    const bool writes = !piece.parameter.copy && layout.holds_first(piece.parameter, groups_.rank(), owners);
    tensors.push_back({piece.name, piece.tensor, piece.parameter.shape, piece.region, writes, piece.remainder,
                       piece.remainder.defined() ? StateTensor::Kind::master : StateTensor::Kind::optimizer});
  });
  return tensors;
}

}  // namespace witan
