#include "witan/cli/train/train_call.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <set>
#include <string>
#include <string_view>

#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/train/job.h"
#include "witan/cli/train/planning.h"
#include "witan/cli/train/start_checks.h"
#include "witan/cli/train/train_page.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/comm/processes/process_world.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/memory/disk.h"
#include "witan/planner/search/fit.h"
#include "witan/planner/search/layout_choice.h"
#include "witan/report/page/page.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/run_records.h"
#include "witan/train/loop/run_routes.h"
#include "witan/train/loop/start_check.h"
#include "witan/train/loop/trainer.h"
#include "witan/train/signals/signals.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

// Entries of the vocabulary, as known before text is read.
int64_t known_vocabulary(const RunConfig& given, bool fresh) {
  const auto tokenizer = fresh ? std::nullopt : run_tokenizer(given);
  return tokenizer ? tokenizer->vocab_size() : expected_vocabulary(given.data);
}

// The results of evaluations up to the checkpoint that the run resumes from.
ValidationRecord validation_of(const RunStart& start) {
  return start.from ? ValidationRecord::from_json(start.from->scalars) : ValidationRecord();
}

// Whether early stopping, with the present patience, has ended the run at the checkpoint that it would resume from.
bool has_stopped_early(const RunStart& start, const TrainConfig& train) {
  return validation_of(start).stops(train);
}

// Refuses ranks of --debug-rank that do not exist.
void check_debug_ranks(const std::vector<int>& debug_ranks, int64_t ranks) {
  for (const int rank : debug_ranks)
    require<ConfigError>(rank >= 0 && rank < ranks, "--debug-rank ", rank, ": this run has ",
                         ranks == 1 ? cat("one rank, 0") : cat(ranks, " ranks, 0 to ", ranks - 1));
}

// The steps of --trace-steps, for a run that has done `done` steps; nothing without the flag.
std::optional<StepRange> steps_to_trace(const std::string& text, const ResolvedConfig& config, int64_t done) {
  if (text.empty()) return std::nullopt;
  const StepRange range = parse_step_range(text);
  const int64_t steps = config->train.train_iters;
  require<ConfigError>(range.first > done && range.last <= steps, "--trace-steps ", text, ": the run goes from step ",
                       done + 1, " to step ", steps, "; give steps in that range");
  return range;
}

// The steps of `asked` that a run which has done `done` of `steps` steps will still do; nothing if there are none.
std::optional<StepRange> steps_to_come(const std::optional<StepRange>& asked, int64_t done, int64_t steps) {
  if (!asked || asked->last <= done || asked->first > steps) return std::nullopt;
  return StepRange{std::max(asked->first, done + 1), std::min(asked->last, steps)};
}

// The settings that must be equal for all processes of a job. Values that each host fills in do not count.
Settings settings_of_call(const RunConfig& given, const TrainOptions& options) {
  Settings settings = settings_of(given);
  settings.emplace_back("fresh", options.fresh ? "true" : "false");
  settings.emplace_back("debug_rank", fmt::format("{}", fmt::join(options.debug_ranks, ",")));
  settings.emplace_back("trace_steps", options.trace_steps);
  settings.emplace_back(kPeersVariable, value_of(peers_allowed()));
  settings.emplace_back("version of witan", WITAN_VERSION);
  return settings;
}

// The multiply-adds per second of all processes of a job. Collective.
JobCeilings measure_together(ProcessWorld& world, const ResolvedConfig& config) {
  return measure_job(world, config->parallel.ranks_per_process, config->parallel.threads, [](ThreadPool& pool) {
    return kernels::DeviceCeilings{.flops = 1e9 * kernels::measure_fma_gflops(pool)};
  });
}

// The plan's predictions for the process of rank 0.
RunPlan predict(const ResolvedConfig& config, const Plan& plan, const Timing& timing) {
  RunPlan predicted = run_plan(plan);
  if (!config->rollout.rollouts) predicted.step_seconds = timing.step.seconds;  // sampling takes as long as it takes
  predicted.ceiling_gflops = timing.ceilings.fma_flops * 1e-9;
  if (const int64_t ranks = config->parallel.ranks_per_process; ranks > 0) {
    const Plan own = part_of(plan, ranks, ranks);
    predicted.resident_bytes = own.resident_bytes();
    predicted.offload_bytes = own.offload_bytes();
  }
  return predicted;
}

RunEvent run_event(const ResolvedConfig& config, const Plan& plan, const RunPlan& predicted) {
  RunConfig copy = config;  // fields() needs one that can be changed
  const std::string toml = write_toml(copy.fields());
  RunEvent event;
  event.name = config->train.run;
  event.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  event.config_hash = hash_hex(toml.data(), toml.size());
  event.world_size = config->parallel.ranks;
  if (event.world_size > 1) event.layout = mesh_text(config);
  event.parameters = plan.counts.exact;
  event.active_parameters = plan.counts.active;
  event.tokens_per_step = plan.tokens_per_step;
  event.total_steps = config->train.train_iters;
  event.ceiling_gflops = predicted.ceiling_gflops;
  return event;
}

// One call of `witan train`, in a single process or in one of several.
class TrainCall {
 public:
  // Parameters are those of run_training().
  TrainCall(Context& context, const TrainOptions& options, const GivenConfig& given,
            const std::optional<Launch>& launch, std::FILE* loud)
      : context_(context), options_(options), given_(given), launch_(launch), loud_(loud) {}

  ExitCode run();

 private:
  // Prints the line, and keeps it for train.log, which is not open yet. "warning: " may precede it.
  void warn(const std::string& line, Progress& progress);
  bool is_rank_zero() const { return !launch_ || launch_->rank == 0; }
  ProcessWorld* world() { return world_ ? &*world_ : nullptr; }
  // Meets the other processes of the job. Each refuses an invalid call by itself, before it meets the others.
  void meet();
  // The facts that are known before text is read. `scheduling`: the configuration of the checkpoint whose schedule is
  // kept.
  Facts gather_facts(const RunConfig& given, const std::optional<RunConfig>& scheduling);
  // Refuses --max-minutes if something else decides the length of the run.
  void check_time_limit() const;
  bool begins_anew() const { return !given_.saved || options_.fresh; }
  // Gives a new run that would take longer than --max-minutes fewer steps, and says so.
  RunConfig within_time_limit(RunConfig given, const ResolvedConfig& expected, Progress& progress);
  // Throws if this machine, or these processes, cannot run the configuration.
  void check(const ResolvedConfig& config);
  // Prints the source of a new run's first weights. Throws if they cannot be loaded.
  void tell_first_weights(const ResolvedConfig& config, Progress& progress);
  // The checks of a start before text is read, which may take long; a dry run makes them too. `done`: the step that the
  // run starts from, in another run's checkpoint if it `branches`. Prints the run's state and returns false if nothing
  // is left to train.
  bool check_start(const ResolvedConfig& expected, int64_t done, bool branches, Progress& progress);
  // A dry run: prints what the run would do, and throws the error that would end it.
  ExitCode try_out(const ResolvedConfig& expected, Facts facts, const RunConfig& given, Progress& progress);
  void announce_dry_run(const ResolvedConfig& config, int64_t done, bool branches, Progress& progress) const;
  // Prepares the run's folder and data. Returns the step that the run starts from; nothing if all steps are done.
  std::optional<int64_t> prepare_together(const ResolvedConfig& expected, Progress& progress);
  std::optional<int64_t> prepare(const ResolvedConfig& expected, Progress& progress);  // on rank 0
  void join(const ResolvedConfig& expected, int64_t step);                             // on other ranks, afterwards
  // Records that the run is finished, in case the process that did its last step was killed before it could.
  void complete_run(const TrainConfig& train, int64_t done, Progress& progress) const;
  void say_done(const ResolvedConfig& config, int64_t done, Progress& progress) const;
  // Throws if memory, or the disk for checkpoints, is too small, rather than let the run be killed later.
  void require_room(const ResolvedConfig& config, const Plan& plan, const DiskState& disk, Progress& progress);
  // The checkpoints of the run's folder, if there is one.
  DiskState disk_state(int64_t done) const;
  RunAids aids(const ResolvedConfig& config, int64_t done) const;
  std::string origin_of_run() const;
  RunResult train_with_report(const ResolvedConfig& config, const Plan& plan, const RunPlan& predicted,
                              Progress& progress);
  void report_failure() const;
  ExitCode train_from(const ResolvedConfig& config, int64_t done, Progress& progress);

  Context& context_;
  const TrainOptions& options_;
  const GivenConfig& given_;
  const std::optional<Launch> launch_;
  std::FILE* const loud_;
  std::optional<ProcessWorld> world_;        // declared before the members that use it
  std::optional<int64_t> gpu_memory_;        // usable bytes of the process with the least, in a job of several
  std::optional<Speeds> speeds_;             // measured once, so that all predictions of a call agree
  std::vector<std::string> early_warnings_;  // warnings so far, for train.log
  bool warned_of_answers_ = false;           // require_room() has warned
  std::optional<RunFolder> folder_;
  std::optional<RunStart> start_;
  std::optional<RunData> data_;
};

ExitCode TrainCall::run() {
  check_time_limit();
  ProgressOptions lines = progress_options(context_.err);
  lines.data = context_.out;
  Progress progress(context_.err, lines);
  if (is_rank_zero())
    announce_run(given_.config,
                 !given_.saved    ? RunBegin::anew
                 : options_.fresh ? RunBegin::archived
                                  : RunBegin::resumed,
                 given_.said("run") || given_.config.train.run != RunConfig().train.run, progress);
  meet();
  if (const std::string warning = binding_warning(world(), launch_); !warning.empty()) warn(warning, progress);
  if (world_ && is_rank_zero()) progress.note("messages     " + format_engine(world_->engine()));
  const auto scheduling = options_.fresh ? std::nullopt : scheduling_checkpoint(given_.config);
  std::vector<std::string> notes;
  RunConfig given = options_.fresh ? given_.config : with_load_options(given_.config, scheduling, notes);
  for (const std::string& note : notes) warn(note, progress);
  Facts facts = gather_facts(given, scheduling);
  ResolvedConfig expected = resolve(given, facts);  // final, except for the vocabulary of an untrained tokenizer
  check(expected);
  if (world_) {
    const cuda::PeerIslands peers = peers_of_job(*world_, expected);
    if (!peers.why.empty() && is_rank_zero()) progress.note("GPU memory   " + peers.why);
    facts.launched->peer_islands = peers.of_rank;
    facts.launched->host_islands = peers.sharing_host_memory;
  }
  given = within_time_limit(given, expected, progress);
  expected = resolve(given, facts);
  for (const std::string& warning : config_warnings(given_, expected)) warn(warning, progress);
  if (options_.dry_run) return try_out(expected, std::move(facts), given, progress);
  const auto done = prepare_together(expected, progress);
  if (!done) return ExitCode::done;
  facts.vocabulary = data_->tokenizer->vocab_size();
  return train_from(resolve(given, facts), *done, progress);
}

void TrainCall::warn(const std::string& line, Progress& progress) {
  constexpr std::string_view kWarning = "warning: ";  // train.log adds it to each line
  progress.note(line);
  early_warnings_.push_back(line.starts_with(kWarning) ? line.substr(kWarning.size()) : line);
}

void TrainCall::meet() {
  if (!launch_) return;
  const int64_t here = ranks_of_process(given_.config, *launch_);
  check_debug_ranks(options_.debug_ranks, launch_->size * here);
  const double seconds = given_.config.parallel.deadline_seconds();
  world_.emplace(*launch_, ProcessWorldOptions{seconds, seconds, static_cast<int>(here), options_.debug_ranks});
  world_->run([&](int rank) { require_same_settings(*world_, rank, settings_of_call(given_.config, options_)); });
}

Facts TrainCall::gather_facts(const RunConfig& given, const std::optional<RunConfig>& scheduling) {
  Facts facts = facts_of_machine();
  facts.launched = launched_ranks(world(), launch_);
  if (is_rank_zero()) facts.vocabulary = known_vocabulary(given, options_.fresh);  // other hosts need not have the file
  if (scheduling) facts.schedule_steps = scheduling->train.train_iters;
  return facts;
}

void TrainCall::check_time_limit() const {
  if (options_.max_minutes == 0) return;
  const std::string asked = fmt::format("--max-minutes {}: ", options_.max_minutes);
  require<UsageError>(!launch_, asked,
                      "each of the processes that a launcher started would measure a time of its own; ",
                      "give the number of steps instead (--train-iters)");
  const TrainConfig& train = given_.config.train;
  require<UsageError>(!given_.said("train_iters"), asked, "it chooses train_iters, which is given too (",
                      given_.place("train_iters"), ": ", train.train_iters, "); leave one of them out");
  require<UsageError>(train.train_samples == 0, asked, "train_samples = ", train.train_samples, " (",
                      given_.place("train_samples"), ") sets how long the run is; leave one of them out");
  require<UsageError>(!begins_anew() || !train.branches(), asked, "with init_state = training the run continues ",
                      train.init_from, " to the step that it was to reach; give another one with --train-iters");
}

RunConfig TrainCall::within_time_limit(RunConfig given, const ResolvedConfig& expected, Progress& progress) {
  if (options_.max_minutes == 0 || !begins_anew()) return given;
  speeds_ = options_.dry_run ? speeds_without_writing(expected) : quick_speeds(expected, std::nullopt);
  if (!speeds_) return given;
  const Timing whole = timing_at(*speeds_, plan_of(expected, nullptr), expected, 0, std::nullopt);
  const auto keeps = [&](const std::string& key) { return given_.said(key); };
  const auto steps = steps_within(60 * options_.max_minutes, whole.step, expected, keeps);
  if (!steps) return given;
  announce_shortened(context_, given_, *steps, whole, progress);
  return with_fewer_steps(std::move(given), *steps, keeps);
}

void TrainCall::check(const ResolvedConfig& config) {
  check_debug_ranks(options_.debug_ranks, config->parallel.ranks);
  steps_to_trace(options_.trace_steps, config, 0);
  require_devices(config, world_ ? std::min(world_->local_size(), cuda::devices()) : config->parallel.ranks);
  if (world_ && config->parallel.on_gpu()) gpu_memory_ = least_gpu_memory(*world_, config);
}

void TrainCall::tell_first_weights(const ResolvedConfig& config, Progress& progress) {
  const FirstWeights weights = check_first_weights(config);
  for (const std::string& warning : weights.warnings) warn("warning: " + warning, progress);
  if (!weights.from.empty()) progress.note("weights      from " + weights.from);
  const FirstWeights reference = check_reference(config);
  for (const std::string& warning : reference.warnings) warn("warning: " + warning, progress);
  if (!reference.from.empty()) progress.note("reference    from " + reference.from);
}

std::optional<int64_t> TrainCall::prepare_together(const ResolvedConfig& expected, Progress& progress) {
  if (!world_) return prepare(expected, progress);
  // Rank 0 changes nothing on disk before all processes have read their configuration.
  const std::string completed = world_->first([&] {
    const auto done = prepare(expected, progress);
    return done ? std::to_string(*done) : "";
  });
  if (completed.empty()) return std::nullopt;
  const int64_t done = std::stoll(completed);
  if (!is_rank_zero()) join(expected, done);
  return done;
}

bool TrainCall::check_start(const ResolvedConfig& expected, int64_t done, bool branches, Progress& progress) {
  const TrainConfig& train = expected->train;
  if (done >= train.train_iters || (start_ && has_stopped_early(*start_, train))) {
    if (!options_.dry_run) complete_run(train, done, progress);
    say_done(expected, done, progress);
    return false;
  }
  require_room(expected, plan_of(expected, nullptr), disk_state(done), progress);
  aids(expected, done);
  if (done == 0 || branches) tell_first_weights(expected, progress);
  open_replayed_routes(expected);
  if (!begins_anew())
    if (const auto warning = schedule_warning(*given_.saved, expected, done)) warn(*warning, progress);
  return true;
}

std::optional<int64_t> TrainCall::prepare(const ResolvedConfig& expected, Progress& progress) {
  using Access = RunFolder::Access;
  const TrainConfig& train = expected->train;
  std::optional<RunFolder> old;  // the run that this one replaces once its own text has been read
  if (options_.fresh) {
    old.emplace(train.runs_folder, train.run);
    if (old->empty()) old.reset();
  }
  folder_.emplace(train.runs_folder, train.run, old ? Access::stage : Access::own);
  start_.emplace(find_start(*folder_, train));
  if (!check_start(expected, start_->step(), start_->branches, progress)) return std::nullopt;
  data_.emplace(prepare_run_data(expected, *folder_, progress));
  if (old) progress.note("archived     " + folder_->replace(*old).string());
  return start_->step();
}

ExitCode TrainCall::try_out(const ResolvedConfig& expected, Facts facts, const RunConfig& given, Progress& progress) {
  const TrainConfig& train = expected->train;
  const fs::path path = fs::path(train.runs_folder) / train.run;
  require_usable_folder(path);
  std::error_code none;
  if (fs::is_directory(path, none) && !options_.fresh) {
    folder_.emplace(train.runs_folder, train.run, RunFolder::Access::share);
    start_.emplace(find_start(*folder_, train));
    for (const std::string& warning : start_->warnings) progress.note("warning: " + warning);
  }
  std::vector<std::string> warnings;  // tell_first_weights() gives them
  const bool branches = start_ ? start_->branches : train.branches();
  const int64_t done = start_ ? start_->step() : branches ? find_branched(train, warnings).step : 0;
  if (!check_start(expected, done, branches, progress)) return ExitCode::done;
  const FoundData data = find_data(expected, path, done > 0 && !branches);
  if (data.tokenizer) facts.vocabulary = data.tokenizer->vocab_size();
  const ResolvedConfig config = resolve(given, facts);
  const Plan plan = plan_of(config, data.tokenizer.get());
  require_room(config, plan, disk_state(done), progress);
  for (const std::string& line : data.lines) progress.note(line);
  if (!speeds_) speeds_ = speeds_without_writing(config);
  if (speeds_)
    announce(config, plan, timing_at(*speeds_, plan, config, done, data.held_out), done, progress);
  else
    progress.note("time         not predicted: `witan doctor` measures the speed of this machine's GPUs first");
  announce_dry_run(config, done, branches, progress);
  return ExitCode::done;
}

void TrainCall::announce_dry_run(const ResolvedConfig& config, int64_t done, bool branches, Progress& progress) const {
  const TrainConfig& train = config->train;
  const fs::path path = fs::path(train.runs_folder) / train.run;
  const BatchRamp ramp = config->batch_ramp();
  const int64_t samples = ramp.consumed_by(train.train_iters) - ramp.consumed_by(done);
  std::error_code none;
  const bool archives = options_.fresh && fs::exists(path / "config.toml", none);
  progress.note(fmt::format("dry run      {} would {}{}, to train for {} tokens; nothing was written", path.string(),
                            archives ? "be archived, and a new run would " : "",
                            branches   ? fmt::format("continue from step {} of {}", done, train.init_from)
                            : done > 0 ? fmt::format("resume from step {}", done)
                                       : "start",
                            format_count(static_cast<double>(samples * config->data.seq_length))));
}

void TrainCall::join(const ResolvedConfig& expected, int64_t step) {
  folder_.emplace(expected->train.runs_folder, expected->train.run, RunFolder::Access::share);
  start_.emplace(RunStart{*folder_, {}, {}, {}});
  const fs::path own = folder_->checkpoints() / step_folder_name(step);
  std::vector<std::string> warned;  // rank 0 has printed them
  if (step > 0 && (!expected->train.branches() || fs::exists(own)))
    start_->from = open_checkpoint(own);
  else if (step > 0)
    start_->from = find_branched(expected->train, warned), start_->branches = true;
  data_.emplace(open_prepared_run_data(expected, *folder_));
}

void TrainCall::complete_run(const TrainConfig& train, int64_t done, Progress& progress) const {
  const bool all = done >= (given_.saved ? given_.saved->train.train_iters : train.train_iters);
  if (!all && !has_stopped_early(*start_, train)) return;  // only this call asks for fewer steps
  if (!complete_records(*folder_, done, all ? RunEnd::finished : RunEnd::stopped_early)) return;
  try {
    write_report(folder_->path());
  } catch (const Error& error) {  // the folder may not be writable
    progress.note(cat("warning: there is no report: ", error.what()));
  }
}

void TrainCall::say_done(const ResolvedConfig& config, int64_t done, Progress& progress) const {
  const DoneRun run{done, config->train.train_iters, validation_of(*start_)};
  cli::say_done(context_, given_.saved ? *given_.saved : *config, *folder_, run, progress);
  if (given_.saved) say_unused(*given_.saved, config.given(), progress);
}

void TrainCall::require_room(const ResolvedConfig& config, const Plan& plan, const DiskState& disk,
                             Progress& progress) {
  const Plan here = part_of_host(plan, config, world());
  const int64_t usable = gpu_memory_ ? *gpu_memory_ : usable_memory(config);
  if (usable > 0 && here.needed_bytes() > usable) progress.note(format_memory(here, usable));
  require_fits(config, here, usable);
  require_host_fits(here, usable_host_memory());
  const fs::path folder = fs::path(config->train.runs_folder) / config->train.run;
  const FolderBytes bytes{plan.checkpoint_bytes, plan.anomaly_bytes, plan.reference_disk_bytes};
  const uint64_t free = free_bytes_for(folder);
  require_disk(config->train, bytes, disk, folder, free);
  const std::string answers = warn_of_rollouts(config, bytes, disk, folder, free);
  if (!answers.empty() && !warned_of_answers_) warn("warning: " + answers, progress);
  warned_of_answers_ = warned_of_answers_ || !answers.empty();
}

DiskState TrainCall::disk_state(int64_t done) const {
  if (!folder_) return {done, 0, 0};
  return {done, std::ssize(step_folders(folder_->checkpoints())), std::ssize(step_folders(folder_->anomalies()))};
}

RunAids TrainCall::aids(const ResolvedConfig& config, int64_t done) const {
  auto traced = steps_to_trace(options_.trace_steps, config, done);
  if (!traced) traced = steps_to_come(options_.profiled, done, config->train.train_iters);
  return {options_.debug_ranks, loud_, traced};
}

// A call that resumes a run without naming a preset or file keeps the origin that the run was started with.
std::string TrainCall::origin_of_run() const {
  const std::string said = origin_line(given_.preset, given_.file);
  return said.empty() && given_.saved ? origin_line_of(folder_->config()) : said;
}

// Keeps the report up to date while the run trains, and writes it once more if the run fails, with its error.
RunResult TrainCall::train_with_report(const ResolvedConfig& config, const Plan& plan, const RunPlan& predicted,
                                       Progress& progress) {
  std::optional<LiveReport> report;
  if (is_rank_zero()) report.emplace(folder_->path());
  try {
    return train(config, predicted, *data_, *start_, run_event(config, plan, predicted), progress, world());
  } catch (...) {
    report.reset();
    if (is_rank_zero()) report_failure();
    throw;
  }
}

// An error of the report must not replace the run's own.
void TrainCall::report_failure() const {
  try {
    write_report(folder_->path());
  } catch (const std::exception&) {
  }
}

ExitCode TrainCall::train_from(const ResolvedConfig& config, int64_t done, Progress& progress) {
  const Plan plan = plan_of(config, data_->tokenizer.get());
  RunPlan predicted = run_plan(plan);
  std::optional<JobCeilings> job;
  if (world_ && !config->parallel.on_gpu()) job = measure_together(*world_, config);
  if (is_rank_zero()) {
    require_room(config, plan, disk_state(done), progress);
    const int64_t held_out = data_->held_out ? data_->held_out->per_epoch() : 0;
    if (!speeds_) speeds_ = quick_speeds(config, job);
    const Timing timing = timing_at(*speeds_, plan, config, done, held_out);
    predicted = predict(config, plan, timing);
    announce(config, plan, timing, done, progress);
    if (auto threads = too_many_threads(config->parallel, usable_cores()))
      early_warnings_.push_back(std::move(*threads));
  }
  start_->config = origin_of_run() + config_to_save(config.given(), true);
  start_->aids = aids(config, done);
  start_->early_warnings = std::move(early_warnings_);
  const RunResult result = train_with_report(config, plan, predicted, progress);
  progress.clear();
  if (is_rank_zero()) {
    if (!job) note_speed(config, result.best_gflops);
    MetricsFollower recorded = follow_for_report(folder_->path());
    recorded.read_more();
    if (recorded.damaged().count > 0) progress.note(cat("warning: ", describe(recorded.damaged(), folder_->metrics())));
    const fs::path report = write_report(folder_->path(), recorded.metrics());
    if (result.end == RunEnd::preempted && StopSignals::restarts())
      say_restart(*config, result.step, progress);
    else
      summarise(context_, config, predicted, result, recorded.metrics(), report, progress);
  }
  return exit_code_of(result.end);
}

}  // namespace

ExitCode run_training(Context& context, const TrainOptions& options, const GivenConfig& given,
                      const std::optional<Launch>& launch, std::FILE* loud) {
  return TrainCall(context, options, given, launch, loud).run();
}

std::optional<Supervised> find_supervised() {
  const char *layout = std::getenv(kLayoutVariable), *resumes = std::getenv(kResumeVariable),
             *call = std::getenv(kCallVariable);
  if (layout == nullptr) return std::nullopt;
  return Supervised{layout, resumes != nullptr && std::string_view(resumes) == "1", call == nullptr ? "" : call};
}

TrainOptions options_of(TrainOptions options, const Supervised& supervised) {
  if (!supervised.resumes) return options;
  options.fresh = false;
  options.trace_steps.clear();
  return options;
}

void lay_out(GivenConfig& given, const Supervised& supervised) {
  RunConfig before = given.config;
  const std::set<std::string> keys = parse_toml(given.config.fields(), supervised.layout, kLayoutVariable);
  const Fields was = before.fields(), is = given.config.fields();
  for (size_t i = 0; i < is.size(); ++i) {
    if (!keys.contains(is[i].name) || was[i].text() == is[i].text()) continue;
    given.sources[is[i].name] = ValueSource::flag;
    given.places[is[i].name] = "witan run";
  }
}

}  // namespace witan::cli
