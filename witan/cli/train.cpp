// witan train: from text to a trained model, or from where a run stopped.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>

#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/base/threads.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/commands.h"
#include "witan/cli/job.h"
#include "witan/cli/job_ceilings.h"
#include "witan/cli/planning.h"
#include "witan/cli/run_config.h"
#include "witan/cli/train_page.h"
#include "witan/comm/processes/process_world.h"
#include "witan/kernels/ceiling.h"
#include "witan/planner/disk.h"
#include "witan/planner/fit.h"
#include "witan/planner/layout_choice.h"
#include "witan/report/html.h"
#include "witan/tensor/cuda.h"
#include "witan/train/run/load_options.h"
#include "witan/train/run/resolve.h"
#include "witan/train/run/start_check.h"
#include "witan/train/run/trainer.h"
#include "witan/train/signals/signals.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

struct State {
  RunConfig config;
  ConfigSources sources;
  std::optional<ConfigArgs> args;
  bool fresh = false;
  std::vector<int> debug_ranks;
  std::string trace_steps;
};

// The configuration of this call: that of the run on disk, if there is one, under what the call says. What makes a run
// the same run must not change.
void read_config(const Context& context, State& state) {
  state.sources = read_run_config(context, state.config, *state.args);
  if (!state.sources.before) return;
  const auto& changes = state.sources.changes;
  require<ConfigError>(state.fresh || changes.empty(), "the run ", state.sources.run.string(),
                       " was begun with another configuration: ", fmt::format("{}", fmt::join(changes, ", ")),
                       ". Give this one a name of its own with --run NAME, or start anew with --fresh");
}

// Before anything is reserved: a run that cannot fit must not be found out by the kernel's killer. `plan`: of the ranks
// of this host.
void require_memory(const RunConfig& config, const Plan& plan, int64_t usable, Progress& progress) {
  if (usable > 0 && plan.needed_bytes() > usable) progress.note(format_memory(plan, usable));
  require_fits(config, plan, usable);
}

// Checkpoints that there is no room for are no less the end of a run.
void require_disk(const RunConfig& config, const Plan& plan, const DiskState& state) {
  const fs::path folder = fs::path(config.train.runs_folder) / config.train.run;
  witan::require_disk(config.train, plan.checkpoint_bytes, state, folder, free_bytes_for(folder));
}

// What is there of a run that has done so many steps.
DiskState disk_state(const RunFolder& folder, int64_t done) {
  return {done, static_cast<int64_t>(step_folders(folder.checkpoints()).size())};
}

// Both before text is read, which may take long: with the vocabulary that the tokenizer has at most. Returns the plan.
Plan require_room_early(RunConfig config, bool fresh, const DiskState& disk, const ProcessWorld* world, int64_t usable,
                        Progress& progress) {
  const auto tokenizer = fresh ? std::nullopt : run_tokenizer(config);
  resolve(config, usable_cores(), tokenizer ? tokenizer->vocab_size() : expected_vocabulary(config.data));
  config.validate();
  const Plan plan = plan_of(config, nullptr);
  require_memory(config, part_of_host(plan, config, world), usable, progress);
  require_disk(config, plan, disk);
  return plan;
}

RunPlan promise(const Plan& plan, const Timing& timing) {
  RunPlan promised = run_plan(plan);
  promised.step_seconds = timing.step.seconds;
  promised.ceiling_gflops = timing.ceilings.fma_flops * 1e-9;
  return promised;
}

// How many multiply-adds the processes of a job do in a second: collective.
JobCeilings measure_together(ProcessWorld& world, const RunConfig& config) {
  return measure_job(world, config.parallel.ranks_per_process, config.parallel.threads, [](ThreadPool& pool) {
    return kernels::DeviceCeilings{.flops = 1e9 * kernels::measure_fma_gflops(pool)};
  });
}

RunEvent run_event(const RunConfig& config, const Plan& plan, const RunPlan& promised) {
  RunConfig copy = config;
  const std::string toml = write_toml(copy.fields());
  RunEvent event;
  event.name = config.train.run;
  event.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  event.config_hash = hash_hex(toml.data(), toml.size());
  event.world_size = config.parallel.ranks;
  if (event.world_size > 1) event.layout = mesh_text(config);
  event.parameters = plan.counts.exact;
  event.active_parameters = plan.counts.active;
  event.tokens_per_step = plan.tokens_per_step;
  event.total_steps = config.train.train_iters;
  event.ceiling_gflops = promised.ceiling_gflops;
  return event;
}

// Ranks that are to wait for a debugger must be there.
void check_debug_ranks(const std::vector<int>& debug_ranks, int64_t ranks) {
  for (const int rank : debug_ranks)
    require<ConfigError>(rank >= 0 && rank < ranks, "--debug-rank ", rank, ": this run has ",
                         ranks == 1 ? cat("one rank, 0") : cat(ranks, " ranks, 0 to ", ranks - 1));
}

// What all processes of a job must have been told alike, whatever their hosts fill in.
Settings settings_of_call(const State& state) {
  Settings settings = settings_of(state.config);
  settings.emplace_back("fresh", state.fresh ? "true" : "false");
  settings.emplace_back("debug_rank", fmt::format("{}", fmt::join(state.debug_ranks, ",")));
  settings.emplace_back("trace_steps", state.trace_steps);
  settings.emplace_back("version of witan", WITAN_VERSION);
  return settings;
}

// One call of `witan train`, in the only process or in one of several.
class TrainCall {
 public:
  // `launch`: which process of a job this one is; nothing: the only one. `loud`: where a process that is otherwise
  // silent is heard.
  TrainCall(Context& context, State& state, const std::optional<Launch>& launch, std::FILE* loud)
      : context_(context), state_(state), launch_(launch), loud_(loud) {}

  ExitCode run();

 private:
  ExitCode go();
  bool leads() const { return !launch_ || launch_->rank == 0; }
  ProcessWorld* world() { return world_ ? &*world_ : nullptr; }
  // Of a process among several: meets the others, unless it refuses for itself what it was asked for.
  void meet();
  // What the launcher has decided.
  void settle(RunConfig& config) const;
  void read(Progress& progress);
  int64_t usable() const { return gpu_memory_ ? *gpu_memory_ : usable_memory(state_.config); }
  // Of rank 0: all that is on the disk before a run begins. Returns the step that it begins from; nothing when all are
  // done.
  std::optional<int64_t> prepare(Progress& progress);
  // Of other processes, when rank 0 has prepared: the same.
  void join(int64_t step);
  std::optional<StepRange> traced(int64_t done) const;
  RunAids aids(const Plan& plan, int64_t done) const;
  ExitCode train_from(int64_t done, Progress& progress);

  Context& context_;
  State& state_;
  const std::optional<Launch> launch_;
  std::FILE* const loud_;
  std::optional<ProcessWorld> world_;  // before all that uses it
  std::optional<int64_t> gpu_memory_;  // of the process with least, where there are several
  RunConfig asked_;                    // as given: what is automatic stays so in the run's own file
  std::optional<RunFolder> folder_;
  std::optional<RunStart> start_;
  std::optional<RunData> data_;
};

void TrainCall::meet() {
  if (!launch_) return;
  const ParallelConfig& parallel = state_.config.parallel;
  const int64_t here = ranks_of_process(state_.config, *launch_);
  check_debug_ranks(state_.debug_ranks, launch_->size * here);
  const double seconds = parallel.deadline_seconds();
  world_.emplace(*launch_, ProcessWorldOptions{seconds, seconds, static_cast<int>(here), state_.debug_ranks});
  world_->run([&](int rank) { require_same_settings(*world_, rank, settings_of_call(state_)); });
}

void TrainCall::settle(RunConfig& config) const {
  if (world_) cli::settle(config, *world_, launch_->size);
}

void TrainCall::read(Progress& progress) {
  RunConfig& config = state_.config;
  const auto scheduled = state_.fresh ? std::nullopt : apply_load_options(config, progress);
  asked_ = config;
  asked_.load = {};  // how a checkpoint was loaded is no part of the run
  if (scheduled) fix_length(config, *scheduled);
  settle(config);
  resolve(config, usable_cores(), least_vocabulary(config));
  config.validate();
  check_debug_ranks(state_.debug_ranks, config.parallel.ranks);
  traced(0);  // refuses what no run could do
  require_devices(config, world_ ? std::min(world_->local_size(), cuda::devices()) : config.parallel.ranks);
  if (world_ && config.parallel.on_gpu()) gpu_memory_ = least_gpu_memory(*world_, config);
}

std::optional<int64_t> TrainCall::prepare(Progress& progress) {
  RunConfig& config = state_.config;
  RunConfig early = asked_;
  settle(early);
  std::optional<RunFolder> old;  // the run that this one replaces, once its own text is known to be good
  if (state_.fresh) {
    aids(require_room_early(early, true, {}, world(), usable(), progress), 0);  // refuses what it could not do
    check_sources(config.data);
    old.emplace(config.train.runs_folder, config.train.run);
    if (old->empty()) old.reset();
  }
  using Access = RunFolder::Access;
  folder_.emplace(config.train.runs_folder, config.train.run, old ? Access::stage : Access::own);
  start_.emplace(find_start(*folder_));
  const int64_t done = start_->step();
  if (done >= config.train.train_iters) {
    RunConfig trained = state_.sources.before.value_or(config);
    trained.train.runs_folder = config.train.runs_folder;
    trained.train.run = config.train.run;
    say_finished(context_, trained, *folder_, done, progress);
    if (state_.sources.before) say_unused(*state_.sources.before, asked_, progress);
    return std::nullopt;
  }
  if (!state_.fresh) require_room_early(early, false, disk_state(*folder_, done), world(), usable(), progress);
  if (state_.sources.before) announce_schedule(*state_.sources.before, config, done, progress);
  data_.emplace(prepare_run_data(config, *folder_, progress));
  if (old) progress.note("archived     " + folder_->replace(*old).string());
  return done;
}

void TrainCall::join(int64_t step) {
  const RunConfig& config = state_.config;
  folder_.emplace(config.train.runs_folder, config.train.run, RunFolder::Access::share);
  start_.emplace(RunStart{*folder_, {}, {}, {}});
  if (step > 0) start_->from = open_checkpoint(folder_->checkpoints() / step_folder_name(step));
  data_.emplace(open_prepared_run_data(config, *folder_));
}

ExitCode TrainCall::train_from(int64_t done, Progress& progress) {
  RunConfig& config = state_.config;
  config.model.vocab_size = asked_.model.vocab_size;
  settle(config);
  resolve(config, usable_cores(), data_->tokenizer->vocab_size());
  config.validate();
  start_->config = write_toml(asked_.fields(), true);

  const Plan plan = plan_of(config, data_->tokenizer.get());
  RunPlan promised = run_plan(plan);
  std::optional<JobCeilings> job;
  if (world_ && !config.parallel.on_gpu()) job = measure_together(*world_, config);
  if (leads()) {
    require_memory(config, part_of_host(plan, config, world()), usable(), progress);
    require_disk(config, plan, disk_state(*folder_, done));
    const Timing timing = quick_timing_of(plan, config, done, data_->held_out->per_epoch(), job);
    promised = promise(plan, timing);
    if (const int64_t ranks = config.parallel.ranks_per_process; ranks > 0)
      promised.resident_bytes = part_of(plan, ranks, ranks).resident_bytes();  // of this process
    announce(config, plan, timing, done, progress);
  }
  start_->aids = aids(plan, done);
  const RunResult result =
      train(config, promised, *data_, *start_, run_event(config, plan, promised), progress, world());
  progress.clear();
  if (leads()) {
    if (!job) note_speed(config, result.best_gflops);
    summarise(context_, config, promised, result, write_report(folder_->path()), progress);
  }
  return result.finished ? ExitCode::done : StopSignals::exit_code();
}

// Of a run that has done so many steps.
std::optional<StepRange> TrainCall::traced(int64_t done) const {
  if (state_.trace_steps.empty()) return std::nullopt;
  const StepRange range = parse_step_range(state_.trace_steps);
  const int64_t steps = state_.config.train.train_iters;
  require<ConfigError>(range.first > done && range.last <= steps, "--trace-steps ", state_.trace_steps,
                       ": the run goes from step ", done + 1, " to step ", steps, "; give steps of these");
  return range;
}

RunAids TrainCall::aids(const Plan& plan, int64_t done) const {
  RunAids aids{state_.debug_ranks, loud_, traced(done)};
  require<ConfigError>(!aids.trace || !plan.on_gpu || !plan.why_eager().empty(), "--trace-steps ", state_.trace_steps,
                       ": steps on a GPU are replayed as one recorded graph, of which no kernel can be timed; "
                       "give --no-cuda-graph too");
  return aids;
}

ExitCode TrainCall::run() {
  read_config(context_, state_);
  return telling_sources(state_.sources, [&] { return go(); });
}

ExitCode TrainCall::go() {
  ProgressOptions options = progress_options(context_.err);
  options.data = context_.out;
  Progress progress(context_.err, options);
  const RunConfig& asked = state_.config;
  if (leads() && !state_.sources.given.contains("run") && asked.train.run == RunConfig().train.run)
    announce_run(asked, state_.sources.before.has_value(), progress);
  meet();
  read(progress);
  if (!world_) {
    const auto done = prepare(progress);
    return done ? train_from(*done, progress) : ExitCode::done;
  }
  // Rank 0 changes nothing before all have read what is there.
  const std::string told = world_->first([&] {
    const auto done = prepare(progress);
    return done ? std::to_string(*done) : "";
  });
  if (told.empty()) return ExitCode::done;
  const int64_t done = std::stoll(told);
  if (!leads()) join(done);
  return train_from(done, progress);
}

ExitCode train_command(Context& context, State& state) {
  using Voice = StopSignals::Voice;
  const auto launch = find_launch();
  const bool leads = !launch || launch->rank == 0;
  // Until there is something to save, and after it is saved.
  const StopSignals signals(StopSignals::Answer::end, leads ? Voice::loud : Voice::silent);
  return run_process(context, launch, [&](Context& own) { return TrainCall(own, state, launch, context.err).run(); });
}

}  // namespace

void add_train(CLI::App& app, Context& context) {
  auto state = std::make_shared<State>();
  CLI::App* command = add_command(
      app, context,
      {"train", "Train a model: from text, or from where a run stopped",
       "Without anything said it trains a small MoE on English text for some minutes. A run that was stopped "
       "is resumed; Ctrl-C saves it. " +
           std::string(kListsHelp),
       "witan train\n"
       "witan train --data my.txt --run mine\n"
       "witan train --config recipes/default.toml --train-iters 1000 --lr 1e-3\n"
       "witan train --mesh replicate=2,shard=2 --micro-batch-size 2 --deterministic\n"
       "witan train --mesh tensor=2,replicate=2 --run tensor\n"
       "witan train @recipes/megatron/dense.args --num-layers 2 --hidden-size 64 --vocab-size 4096 \\\n"
       "  --seq-length 128 --lr-warmup-iters 20 --train-iters 200\n"
       "mpirun -n 2 witan train --run processes\n"
       "witan train --fresh",
       Processes::together},
      [state, &context] { return train_command(context, *state); });
  command->add_flag("--fresh", state->fresh, "archive the run and start anew");
  command
      ->add_option("--debug-rank", state->debug_ranks,
                   "this rank (or several: 1,2) says how to attach gdb, and waits for it before it begins")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("RANK");
  command
      ->add_option("--trace-steps", state->trace_steps,
                   "trace these steps, as 3:5, into trace.json of the run's folder, for ui.perfetto.dev")
      ->type_name("FIRST:LAST");
  add_megatron_flag(*command);
  state->args.emplace(*command, state->config.fields());
}

}  // namespace witan::cli
