#include "witan/train/loop/trainer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "witan/base/json.h"
#include "witan/base/process.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/background_save.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/comm/texts.h"
#include "witan/comm/threads/threads.h"
#include "witan/generate/generation_batch.h"
#include "witan/parallel/peers.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/anomaly_response.h"
#include "witan/train/loop/interval_samples.h"
#include "witan/train/loop/load_state.h"
#include "witan/train/loop/replay_check.h"
#include "witan/train/loop/run_records.h"
#include "witan/train/loop/run_routes.h"
#include "witan/train/loop/start_check.h"
#include "witan/train/loop/step_batches.h"
#include "witan/train/record/memory.h"
#include "witan/train/record/recorder.h"
#include "witan/train/record/stragglers.h"
#include "witan/train/signals/debug_wait.h"
#include "witan/train/signals/signals.h"
#include "witan/train/state/rewinds.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/device.h"
#include "witan/train/step/engine.h"
#include "witan/train/step/features/state_checks.h"
#include "witan/train/step/features/step_routes.h"
#include "witan/train/trace/step_tracer.h"

namespace witan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Shared by all ranks of a run, read-only except for the records, which only rank 0 uses.
struct Run {
  const ResolvedConfig& config;
  const RunPlan& plan;
  const RunData& data;
  const RunStart& start;
  std::string tokenizer;  // tokenizer.json, for the checkpoints
  RunRecords* records;    // null except in rank 0's process

  Recorder& recorder() const { return records->recorder(); }
};

// An arena of the planned size, which writes a snapshot if the plan is exceeded.
std::shared_ptr<Arena> arena_of(const Run& run, World& world, int rank) {
  auto arena =
      reserve_arena(device_of(run.config, world.local_rank(rank)), run.plan.memory[static_cast<size_t>(rank)].peak);
  write_snapshots(*arena, run.start.folder, run.plan, rank);
  return arena;
}

// One rank, on its own thread.
class RankTrainer {
 public:
  RankTrainer(const Run& run, World& world, const Layout& layout, int rank)
      : run_(run),
        pool_(static_cast<int>(run.config->parallel.threads)),
        stream_(device_of(run.config, world.local_rank(rank)), arena_of(run, world, rank), pool_),
        groups_(made_alike(world,
                           make_groups(world, layout, rank, stream_, sums_of(run.config),
                                       peers_of(run.config->parallel, layout, rank)),
                           run.config)),
        routes_(run.config, groups_),
        ramp_(run.config->batch_ramp()),
        memory_request_(run.start.folder, stream_.arena(), rank),
        engine_(stream_, groups_, run.config),
        saving_(world.group(rank, layout.mesh().ranks(rank, layout.world_axes()), "checkpoint"),  // for saving alone
                run.config->parallel.checkpoint_deadline_seconds()),
        state_loader_({run.config, run.data, run.start, run.tokenizer, is_rank_zero() ? &run.recorder() : nullptr},
                      engine_, stream_, saving_),
        tracer_(world, run.start.folder, groups_, stream_, run.start.aids.trace),
        held_out_(held_out_batches(run.data, evaluation_samples(run.data, run.config->train),
                                   run.config->train.micro_batch_size, layout.data_rank(rank), layout.data_ranks())),
        anomalies_(run.config, run.start.folder, run.tokenizer, saving_, is_rank_zero() ? &run.recorder() : nullptr) {
    for (const ValidationSet& set : run.data.sets)
      sets_.push_back(evaluation_batches(*set.samples, run.data.batch, evaluation_samples(set, run.config->train),
                                         run.config->train.micro_batch_size, layout.data_rank(rank),
                                         layout.data_ranks()));
    share_prompts();
    engine_.before_update([this] {
      answer_memory_request();
      finish_save();
      if (replay_check_) replay_check_->before_update(saving_.world(), saving_.stream());
    });
    const TrainConfig& train = run.config->train;
    if (train.check_messages) saving_.world().check_messages();
    if (train.replay_interval > 0 && layout.world_size() > 1)
      replay_check_.emplace(engine_, groups_.layout(), rank, run.config, run.data);
    watch_ranks(layout);
    if (stream_.is_cuda() && run.config->log.nvtx_ranges) engine_.show_ranges(&ranges_);
    if (stream_.is_cuda()) tracer_.note_launches([this](LaunchTrace* launches) { engine_.note_launches(launches); });
    engine_.after_pass([this](double share) {
      answer_memory_request();
      if (is_rank_zero()) run_.recorder().done(share);
    });
  }

  // Returns why training ended.
  RunEnd train() {
    state_ = state_loader_.begin();
    if (run_.start.from) newest_ = run_.start.from->step;
    require_same_temperature(state_, run_.config);
    // A start that fails until here must change neither the run's configuration nor its records.
    if (is_rank_zero()) run_.records->begin();
    if (is_rank_zero() && !run_.start.config.empty())
      write_file_atomically(run_.start.folder.config(), run_.start.config);
    const double set_up_s = since_.seconds();
    open_data();
    if (run_.config->log.megatron()) report_setup(set_up_s);
    if (is_rank_zero() && run_.config->train.check_states) run_.recorder().states_checked(0);
    RunEnd end = end_of_steps(RunEnd::none);
    while (end == RunEnd::none) {
      const int64_t before = state_.step;
      const RunEnd asked = step();
      const bool done = state_.step > before;  // else it went back to a checkpoint, or stopped while it sampled
      const bool unsaved = done || state_.step > newest_.value_or(0);
      if (done) after_step();
      end = end_of_steps(asked);
      // Reported only now, since the evaluation may have stopped the run early instead.
      const auto nothing =
          batches_->stopped() == RunEnd::none ? Recorder::Saves::nothing_after_rewind : Recorder::Saves::nothing_new;
      if (is_rank_zero() && end == asked && end != RunEnd::none)
        run_.recorder().record_end(end, unsaved ? Recorder::Saves::step : nothing);
      if (unsaved && (saves() || end != RunEnd::none)) begin_save();
    }
    begins(StepWatch::Doing::saving, state_.step);
    finish_save();
    begins(StepWatch::Doing::nothing, state_.step);
    tracer_.finish();
    return end;
  }

  std::string sample() {
    const auto& train = run_.config->train;
    if (!run_.config->writes_sample()) return {};
    const auto prompt = prompt_ids(*run_.data.tokenizer, prompts_.last, prompts_.chat);
    if (prompt.empty()) return {};
    GenerateOptions options;
    options.max_tokens = tokens_that_fit(engine_.model(), static_cast<int64_t>(prompt.size()), train.sample_tokens);
    if (options.max_tokens == 0) return {};
    options.vocab_size = run_.data.tokenizer->vocab_size();
    options.end_of_text = run_.data.tokenizer->end_of_text();
    options.stop_tokens = prompts_.ends;
    options.sampler.temperature = train.sample_temperature;
    options.sampler.seed = static_cast<uint64_t>(train.seed);
    const TraceContextScope trace_context(stream_, TraceContext::Phase::sample);
    const auto tokens = generate(stream_, engine_.model(), prompt, options);
    engine_.end_reading();
    const std::string text = run_.data.tokenizer->decode(tokens);
    if (is_rank_zero()) run_.recorder().last_sample(state_.step, options.sampler.seed, prompts_.last, text);
    return text;
  }

  const TrainState& state() const { return state_; }

  // The peak memory of every rank; collective.
  std::vector<MemoryEvent> memory() { return gather_memory(saving_.stream(), saving_.world(), stream_.arena()); }

 private:
  // Checks that all ranks will make the same calls on the groups.
  static Groups made_alike(World& world, Groups groups, const ResolvedConfig& config) {
    const PeerAccess peers = peers_of(config->parallel, groups.layout(), groups.rank());
    require_peers(groups, peers);
    require_same_schedule(world, groups.rank(), schedule_of_step(config, groups.layout(), groups.rank(), peers));
    if (!config->train.check_messages) return groups;
    for (Group* group : groups.all()) group->check_messages();
    groups.host().check_messages();
    return groups;
  }

  // Sends the prompts of samples, which may come from files, from rank 0 to the others.
  void share_prompts() {
    const TrainConfig& train = run_.config->train;
    prompts_.last = train.sample_prompt;
    const bool chats = run_.config->rollout.rollouts || (run_.config->data.sft && run_.config->writes_sample());
    if (train.sample_interval == 0 && !chats) return;
    Json read = Json::object();
    if (is_rank_zero()) {
      const SamplePrompts own = sample_prompts(*run_.config, *run_.data.tokenizer);
      read = {{"last", own.last}, {"interval", own.interval}, {"ends", own.ends}, {"chat", own.chat}};
    }
    const std::string text =
        broadcast_text(saving_.world(), saving_.stream(), read.dump(-1, ' ', false, Json::error_handler_t::replace), 0);
    const Json shared = parse_json(text, "prompts of rank 0");
    prompts_ = {shared.at("last").get<std::string>(), shared.at("interval").get<std::vector<std::string>>(),
                shared.at("ends").get<std::vector<int32_t>>(), shared.at("chat").get<bool>()};
  }

  // Changes nothing that training reads.
  void sample_interval() {
    begins(StepWatch::Doing::sampling, state_.step);
    const TraceContextScope trace_context(stream_, TraceContext::Phase::sample);
    const uint64_t seed = sample_seed(run_.config->train, state_.step);
    const auto texts =
        generate_samples(stream_, engine_.model(), *run_.data.tokenizer, run_.config->train, prompts_, seed);
    engine_.end_reading();
    if (is_rank_zero()) run_.recorder().samples(state_.step, seed, prompts_.interval, texts);
  }

  bool is_rank_zero() const { return groups_.rank() == 0; }
  void warn(const std::string& warning) {  // all ranks have the same; empty: there is none
    if (is_rank_zero() && !warning.empty()) run_.recorder().warn(warning);
  }

  // After the first pass of a step, when its activations are live or, if passes are captured, before its update.
  void answer_memory_request() {
    const auto file = memory_request_.answer();
    if (file && is_rank_zero())
      run_.recorder().note(cat("step ", state_.step + 1, ": the memory of each rank is shown in ",
                               run_.start.folder.memory().string(), ", that of rank 0 in ", file->filename().string()));
  }

  // Runs checks, evaluations and samples, each at its interval.
  void after_step() {
    if (compares_states()) engine_.feature<StateChecks>()->check();
    if (evaluates()) evaluate();
    if (!prompts_.interval.empty() && state_.step % run_.config->train.sample_interval == 0) sample_interval();
  }

  // Why no further step follows; `asked` is what ranks have asked for.
  RunEnd end_of_steps(RunEnd asked) const {
    if (state_.step >= run_.config->train.train_iters) return RunEnd::finished;
    return state_.validation.stops(run_.config->train) ? RunEnd::stopped_early : asked;
  }

  // Whether this step is a multiple of the interval, or the last one.
  bool due(int64_t interval) const {
    return state_.step == run_.config->train.train_iters || (interval > 0 && state_.step % interval == 0);
  }

  // Whether replicas are compared after this step: at an interval, and before each save.
  bool compares_states() const {
    const TrainConfig& train = run_.config->train;
    return train.check_states_interval > 0 && (state_.step % train.check_states_interval == 0 || saves());
  }

  // Whether a checkpoint is saved after this step: at an interval, but not while consecutive steps are skipped, for
  // which the weights may be to blame. It is then saved after the next update, so that the newest checkpoint stays one
  // from before those steps.
  bool saves() const {
    const int64_t interval = run_.config->train.save_interval;
    if (state_.step == run_.config->train.train_iters) return true;
    if (interval <= 0 || state_.skipped_in_a_row > 0) return false;
    return state_.step / interval > (state_.step - 1 - skipped_before_) / interval;
  }

  // Whether an evaluation follows this step: at an interval, and before checkpoints that are compared by it
  // (keep_best).
  bool evaluates() const {
    const TrainConfig& train = run_.config->train;
    return !held_out_.empty() && (due(train.eval_interval) || (train.keep_best > 0 && saves()));
  }

  void open_data() {
    if (!batches_)
      batches_.emplace(Rollouts::Parts{engine_, groups_, run_.config, run_.data, run_.start.folder, saving_.world(),
                                       saving_.stream(), answer_ends(), StopSignals::asked},
                       ramp_);
    warn(batches_->open(state_));
  }

  // What ends a sampled answer.
  AnswerEnds answer_ends() const {
    AnswerEnds ends{prompts_.ends, run_.config->rollout.stops()};
    if (const auto end = run_.data.tokenizer->end_of_text()) ends.tokens.push_back(*end);
    return ends;
  }

  // Why this rank asks for the run to be saved and ended after the step.
  RunEnd asks_to_end(int64_t step) const {
    const TrainConfig& train = run_.config->train;
    if (const RunEnd asked = StopSignals::asked(); asked != RunEnd::none) return asked;
    if (train.exit_interval > 0 && step % train.exit_interval == 0) return RunEnd::exit_interval;
    const bool old = train.exit_duration_in_mins > 0 && process_seconds() > 60 * train.exit_duration_in_mins;
    return old ? RunEnd::exit_duration_in_mins : RunEnd::none;
  }

  // Returns why ranks ask for the run to end. An anomalous step may return the run to an earlier one.
  RunEnd step() {
    begins(StepWatch::Doing::step, state_.step + 1);
    if (replay_check_) replay_check_->before_step(state_.step + 1, state_.updates, state_.consumed_samples);
    const auto start = Clock::now();
    stream_.trace_context().step = state_.step + 1;
    memory_request_.before_step(state_.step + 1);
    tracer_.before_step(state_.step + 1);
    if (rank_watch_) rank_watch_->begin_step();
    const double waited = batches_->waited_seconds();
    std::vector<Batch> batches = next_batches();
    if (batches_->stopped() != RunEnd::none) return batches_->stopped();
    if (run_.start.aids.before_step) run_.start.aids.before_step(groups_.rank(), state_.step + 1, batches, engine_);
    const int64_t updates = state_.updates;
    engine_.schedule_from(state_.updated_samples);
    engine_.hold(batches_->nothing_counts());
    if (run_.config->rollout.router_replay) engine_.feature<StepRoutes>()->replay(batches_->rollouts().take_routes());
    if (routes_.replays()) engine_.feature<StepRoutes>()->replay(routes_.read(state_.step + 1, batches));
    StepResult result = engine_.step(batches, state_.step + 1, updates, [&] { return asks_to_end(state_.step + 1); });
    if (routes_.records()) routes_.write(state_.step + 1, batches, engine_.feature<StepRoutes>()->read());
    const RunConfig& config = run_.config;
    const bool logs = config.train.closes_interval(state_.step + 1) || result.end != RunEnd::none;
    if (is_rank_zero() && logs) result.layer_norms = engine_.layer_norms(result);
    if (config.log.log_params_norm && logs) result.scalars.set(kParamsNorm, engine_.params_norm());
    const double seconds = seconds_since(start);
    if (rank_watch_) rank_watch_->end_step(seconds);
    tracer_.after_step(state_.step + 1);
    result.times.batch = batches_->waited_seconds() - waited;
    batches_->complete(result);
    advance(result, seconds);
    record_step(result, seconds, logs);
    warn(batches_->warning());
    if (result.held) return result.end;
    if (result.skipped && lowers_loss_scale(result)) {
      if (is_rank_zero()) run_.recorder().overflowed(state_.step, *result.scalars.get(kLossScale));
    } else if (result.skipped) {
      if (auto back = anomalies_.meet({engine_, groups_.layout(), batches, state_.step, updates, result}, state_))
        rewind(back->checkpoint, std::move(back->event));
    }
    anomalies_.require_updates(state_, result.spike, newest_);
    return result.end;
  }

  // Adds the step to the state.
  void advance(const StepResult& result, double seconds) {
    ++state_.step;
    state_.validation_loss.reset();
    state_.consumed_samples += result.samples;
    state_.updated_samples += result.skipped ? 0 : result.samples;
    state_.updates += result.skipped ? 0 : 1;
    skipped_before_ = state_.skipped_in_a_row;
    if (!result.skipped || result.held)
      state_.skipped_in_a_row = 0;
    else if (!lowers_loss_scale(result))
      ++state_.skipped_in_a_row;
    state_.elapsed_s += seconds;
  }

  // Reports the step that the state ends with; collective. `logs`: whether it closes a log interval.
  void record_step(const StepResult& result, double seconds, bool logs) {
    const RunConfig& config = run_.config;
    if (is_rank_zero())
      run_.recorder().step(state_, result, seconds, result.times.batch,
                           evaluates() ? Recorder::Line::with_evaluation : Recorder::Line::now);
    if (rank_watch_)
      for (const AnomalyEvent& event : rank_watch_->judge(state_.step, saving_.world(), saving_.stream()))
        if (is_rank_zero()) run_.recorder().anomaly(event);
    if (is_rank_zero() && config.train.check_states) run_.recorder().states_checked(state_.step);
    if (is_rank_zero() && logs && config.log.log_memory_to_tensorboard)
      run_.recorder().memory_in_use(state_.step, memory_in_use(), blocks_in_use());
    if (config.log.megatron()) report_interval(result.times);
  }

  // Watches ranks that compute on the host. A GPU's step is one graph, which cannot be observed, and a trace needs the
  // groups' observer for itself.
  void watch_ranks(const Layout& layout) {
    const double threshold = run_.config->train.straggler_threshold;
    if (threshold == 0 || layout.world_size() == 1 || stream_.is_cuda() || run_.start.aids.trace) return;
    rank_watch_.emplace(layout, threshold, saving_.world(), saving_.stream());
    for (Group* group : groups_.all()) group->observe(rank_watch_->observer());
  }

  // Whether an overflow only lowers a dynamic loss scale, which is how the scale is found.
  bool lowers_loss_scale(const StepResult& result) const {
    const OptimizerConfig& optimizer = run_.config->optimizer;
    const std::optional<double> scale = result.scalars.get(kLossScale);
    return scale && !result.spike && optimizer.loss_scale == 0 && *scale > optimizer.min_loss_scale;
  }

  void begins(StepWatch::Doing what, int64_t step) {
    if (is_rank_zero()) run_.recorder().begins(what, step);
  }

  std::vector<Batch> next_batches() {
    const StepTracer::Wait wait(tracer_, "data");
    if (!batches_->samples_answers()) return batches_->next(state_.step + 1, state_.consumed_samples);
    finish_save();  // which rollouts share a group with
    try {
      return batches_->next(state_.step + 1, state_.consumed_samples);
    } catch (const RewardError& error) {  // on all ranks: what has been trained is kept
      if (state_.step > newest_.value_or(0)) begin_save();
      finish_save();
      throw RewardError(cat(error.what(), ". `witan train --run ", flags_of_run(run_.start.folder.place()),
                            "` then continues with step ", state_.step + 1));
    }
  }

  // Returns to a checkpoint, and continues with the samples that would have come next.
  void rewind(const Checkpoint& back, AnomalyEvent event) {
    std::vector<Rewind> rewinds = state_.rewinds;
    Rewind now{.checkpoint = back.step, .at = state_.step, .consumed_samples = state_.consumed_samples};
    const double elapsed_s = state_.elapsed_s;
    state_ = state_loader_.load(back);
    newest_ = back.step;
    now.first_sample = state_.consumed_samples;
    rewinds.push_back(now);
    state_.consumed_samples = now.consumed_samples;
    state_.rewinds = std::move(rewinds);
    state_.elapsed_s = elapsed_s;
    open_data();
    if (!is_rank_zero()) return;
    record_rewind(run_.start.folder, state_.rewinds);
    event.at = now.at;
    event.step = back.step;
    event.text += cat("; back to ", back.folder.filename().string(), ", and on without samples ", now.first_sample,
                      " to ", now.consumed_samples - 1);
    run_.recorder().rewound(back.step);
    run_.recorder().anomaly(event);
  }

  Evaluation timed_evaluation(const std::vector<Batch>& batches) {
    const Stopwatch evaluating;
    Evaluation evaluation = engine_.evaluate(batches);
    evaluation.seconds = evaluating.seconds();
    return evaluation;
  }

  void evaluate() {
    const Stopwatch evaluating;
    begins(StepWatch::Doing::evaluation, state_.step);
    Evaluation evaluation = timed_evaluation(held_out_);
    if (run_.config->rollout.rollout_eval_prompts > 0) {
      finish_save();  // which rollouts share a group with
      evaluation.reward = batches_->held_out_reward([this](const std::string& warning) { warn(warning); });
    }
    state_.validation_loss = evaluation.loss();
    state_.validation.add(state_.step, evaluation.loss(), run_.config->train);
    std::vector<Evaluation> of_sets;
    const bool ends = state_.step == run_.config->train.train_iters;
    for (size_t i = 0; i < sets_.size(); ++i)
      of_sets.push_back(ends || !run_.data.sets[i].at_end ? timed_evaluation(sets_[i]) : Evaluation{});
    std::vector<megatron_log::RankTimes> times;
    if (run_.config->log.megatron()) times = gather_times(stream_, world(), {{"evaluate", evaluating.seconds()}});
    if (!is_rank_zero()) return;
    std::vector<SetEvaluation> sets;
    for (size_t i = 0; i < of_sets.size(); ++i)
      if (ends || !run_.data.sets[i].at_end)
        sets.push_back({run_.data.sets[i].name, of_sets[i], run_.records->set_bytes()[i]});
    run_.recorder().evaluation(state_, evaluation, run_.records->evaluated_bytes(), times, sets);
  }

  // For Megatron-LM's log; collective.
  void report_setup(double set_up_s) {
    SetupReport report;
    report.times = gather_times(stream_, world(),
                                {{"model-and-optimizer-setup", set_up_s},
                                 {"train/valid/test-data-iterators-setup", since_.seconds() - set_up_s}});
    if (!is_rank_zero()) return;
    for (const Parameter* parameter : engine_.model().parameters()) report.parameters += parameter->elements();
    report.buckets = describe_buckets(engine_.gradients());
    run_.recorder().setup(report, *run_.data.train);
  }
  void report_interval(const StepTimes& times) {
    interval_times_ += times;
    ++interval_steps_;
    if (state_.step % run_.config->train.log_interval != 0) return;
    const auto gathered =
        gather_times(stream_, world(), named(interval_times_, run_.config->log.timing_log_level), interval_steps_);
    if (is_rank_zero()) run_.recorder().interval(state_, memory_in_use(), gathered);
    interval_times_ = {};
    interval_steps_ = 0;
  }
  Group& world() { return groups_.world(); }

  megatron_log::Memory memory_in_use() {
    const Arena& arena = stream_.arena();
    return {arena.live(), arena.high_water(), arena.reserved(), arena.reserved()};
  }
  int64_t blocks_in_use() {
    return std::ssize(stream_.arena().snapshot(MemorySnapshot::Why::not_planned, 0, MemoryTag::workspace).blocks);
  }

  // The checkpoint is written while training continues, until finish_save().
  void begin_save() {
    const auto start = Clock::now();
    CheckpointContent content;
    content.step = state_.step;
    content.tensors = engine_.state();
    state_.spikes = {};
    state_.loss_scaler = {};
    engine_.features().save(state_);
    if (batches_->samples_answers()) state_.sampled = batches_->rollouts().sampled();
    state_.sources = run_.data.train->use_of(state_.consumed_samples);
    content.scalars = state_.to_json();
    if (is_rank_zero()) {
      content.files = {{"config.toml", config_to_save(run_.config)}, {"tokenizer.json", run_.tokenizer}};
      content.records = {run_.start.folder.metrics()};
      if (!prompts_.interval.empty()) content.records.push_back(run_.start.folder.samples());
    }
    const TrainConfig& train = run_.config->train;
    // A checkpoint among skipped steps, which a signal may cause, replaces no other.
    const int64_t newest = state_.skipped_in_a_row > 0 ? std::numeric_limits<int64_t>::max() : train.keep_last;
    saving_.begin(run_.start.folder.checkpoints(), std::move(content), {newest, train.keep_best, kValidationLoss},
                  StopSignals::saved);
    paused_s_ = seconds_since(start);
  }

  // Called before anything changes that the checkpoint holds, and before the run ends.
  void finish_save() {
    const auto start = Clock::now();
    const StepTracer::Wait wait(tracer_, "save");
    const auto saved = saving_.finish();
    if (saved) newest_ = saved->step;
    if (saved && is_rank_zero()) run_.recorder().saved(state_, *saved, paused_s_ + seconds_since(start));
  }

  const Stopwatch since_;
  const Run& run_;
  std::optional<RankWatch> rank_watch_;  // outlives the groups that it observes; empty if ranks are not compared
  ThreadPool pool_;
  Stream stream_;
  Groups groups_;
  RunRoutes routes_;
  const BatchRamp ramp_;
  MemoryRequest memory_request_;
  PlaceRanges ranges_{cuda::push_range, cuda::pop_range};
  Engine engine_;
  BackgroundSave saving_;  // destroyed before the engine, whose tensors it reads
  StateLoader state_loader_;
  double paused_s_ = 0;  // pause of training to begin the current save
  StepTracer tracer_;
  std::optional<int64_t> newest_;  // the step of the newest checkpoint that was loaded or written
  std::vector<Batch> held_out_;
  std::vector<std::vector<Batch>> sets_;  // of valid_data
  SamplePrompts prompts_;
  TrainState state_;
  AnomalyResponse anomalies_;
  std::optional<StepBatches> batches_;       // empty until the state was loaded
  std::optional<ReplayCheck> replay_check_;  // empty if replay_interval is 0
  StepTimes interval_times_;
  int64_t interval_steps_ = 0;
  int64_t skipped_before_ = 0;  // skipped_in_a_row before the last step
};

void begin_debugging(const RunStart& start, World& world, int rank) {
  if (std::ranges::find(start.aids.debug_ranks, rank) == start.aids.debug_ranks.end()) return;
  wait_for_debugger(world, rank, start.folder.debug_rank(rank), start.aids.out);
}

}  // namespace

RunResult train(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
                const RunEvent& event, Progress& progress, World* world) {
  std::optional<ThreadWorld> threads;
  const ThreadWorldOptions options{.deadline_seconds = config->parallel.deadline_seconds(),
                                   .debug_ranks = start.aids.debug_ranks};
  if (world == nullptr) world = &threads.emplace(static_cast<int>(config->parallel.ranks), options);
  Run run{config, plan, data, start, read_file(start.folder.tokenizer()), nullptr};
  std::optional<RunRecords> records;  // in rank 0's process
  RunResult result;
  result.resumed_from = start.step();
  world->first([&] {
    run.records = &records.emplace(config, plan, data, start, event, progress);
    return "";
  });

  const Layout layout(config->parallel, static_cast<int>(config->parallel.ranks), config->model.moe.num_experts);
  const StopSignals signals(StopSignals::Answer::stop,
                            world->runs(0) ? StopSignals::Voice::loud : StopSignals::Voice::silent);
  if (start.from) StopSignals::saved();
  restart_resident_peak();  // reading text and measuring ceilings have released their memory
  const auto train_rank = [&](int rank) {
    require_same_settings(*world, rank, settings_of(config));
    begin_debugging(start, *world, rank);
    if (rank == 0) run.recorder().begins(StepWatch::Doing::set_up, start.step() + 1);
    RankTrainer trainer(run, *world, layout, rank);
    const RunEnd end = trainer.train();
    const std::string sample = is_finished(end) ? trainer.sample() : std::string();
    const std::vector<MemoryEvent> memory = trainer.memory();
    // All ranks have the same result; the first one of each process writes it, so that no other does at the same time.
    if (rank != 0 && world->runs(rank - 1)) return;
    result.end = end;
    result.validation = trainer.state().validation;
    result.step = trainer.state().step;
    result.sample = sample;
    result.memory = memory;
  };
  try {
    world->run(train_rank);
  } catch (const std::exception& error) {
    if (records) records->failed(error.what());
    if (records && start.aids.trace) merge_traces(start.folder, world->size());
    throw;
  }
  if (records) records->end(result);
  return result;
}

}  // namespace witan
