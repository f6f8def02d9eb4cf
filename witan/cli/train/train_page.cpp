#include "witan/cli/train/train_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/optim/lr_schedule.h"
#include "witan/planner/pages/layout_page.h"
#include "witan/planner/search/layout_choice.h"
#include "witan/report/events/figures.h"
#include "witan/report/page/page.h"
#include "witan/tensor/cuda.h"
#include "witan/train/state/named_checkpoint.h"

namespace witan::cli {
namespace {

// The command with the flags that name the run, if it is not the default one. With `anywhere` it has the absolute path
// of the runs' folder: a resume command that is given in another folder must not start another run.
enum class Given : uint8_t { here, anywhere };
std::string command_for(const Context& context, const RunConfig& config, std::string_view command,
                        Given given = Given::here) {
  const RunConfig defaults;
  const bool supervised = command == "train" && !context.supervised_by.empty();
  std::string line = cat(context.program, " ", supervised ? context.supervised_by + " " : "", command);
  if (config.train.run != defaults.train.run) line += " --run " + shell_word(config.train.run);
  if (given == Given::anywhere)
    line += " --runs-folder " + shell_word(fs::absolute(config.train.runs_folder).lexically_normal().string());
  else if (config.train.runs_folder != defaults.train.runs_folder)
    line += " --runs-folder " + shell_word(config.train.runs_folder);
  return line;
}

// On GPUs: how a step is captured and experts' rows are exchanged, and the versions of the libraries.
void announce_gpus(const Plan& plan, Progress& progress) {
  if (!plan.on_gpu) return;
  // If rows sent over NCCL are why the step is eager, format_capture() has reported it.
  const bool says_how = plan.exchanges_rows && (plan.peers || plan.why_eager().empty());
  progress.note(
      cat("step         ", format_capture(plan), says_how ? "; rows of experts " + format_exchange(plan) : ""));
  std::string libraries;
  for (const cuda::LibraryState& library : cuda::libraries()) {
    if (!libraries.empty()) libraries += ", ";
    libraries += library.missing.empty() ? cat(library.name, " ", library.version)
                                         : cat("no ", library.name, " (", library.purpose, ")");
  }
  progress.note("libraries    " + libraries);
}

// For several ranks: the mesh, as --mesh takes it, and what is sharded over it.
void announce_layout(const RunConfig& config, Progress& progress) {
  if (config.parallel.ranks == 1) return;
  progress.note("layout       " + mesh_text(config));
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  if (const std::string divided = sharding_text(config, layout); !divided.empty())
    progress.note("sharded      " + divided);
}

// The predicted step's share of the machine's ceiling, which nothing can exceed. Processes of a launcher measure the
// ceiling at every start, so `witan doctor` would not help them.
std::string share_of_machine(const ParallelConfig& parallel, const Plan& plan, const Timing& timing) {
  const double ceiling = timing.ceilings.fma_flops;
  const double share = plan.step_flops / timing.step.seconds / ceiling;
  if (share > 1)
    return "; this machine was busy when its ceiling was measured, so that no share of it is known: `witan doctor` "
           "measures it again";
  return fmt::format(" at {:.0f} % of this machine's {:.0f} GFLOP/s{}", 100 * share, ceiling * 1e-9,
                     !timing.ceilings.busy ? ""
                     : parallel.ranks_per_process > 0 && !parallel.on_gpu()
                         ? ", measured while it was busy"
                         : ", measured while it was busy (`witan doctor` measures again)");
}

// The deviations from planned memory: "rank 1: communication 380416 of 249344 bytes planned".
std::vector<std::string> off_plan(const RunPlan& predicted, const RunResult& result) {
  std::vector<std::string> off;
  for (const MemoryEvent& found : result.memory) {
    const MemoryEvent& planned = predicted.memory[static_cast<size_t>(found.rank)];
    const auto compare = [&](const std::string& what, int64_t took, int64_t of) {
      if (took != of) off.push_back(fmt::format("rank {}: {} {} of {} bytes planned", found.rank, what, took, of));
    };
    compare("arena", found.peak, planned.peak);
    for (const auto& [tag, bytes] : found.tags) compare(tag, bytes, planned.tags.at(tag));
  }
  return off;
}

// The process that prints, in a job of several. It has the arenas of all ranks, but only its own total memory.
std::string name_process(const ParallelConfig& parallel) {
  const int64_t ranks = parallel.ranks_per_process;
  if (ranks == 0 || ranks == parallel.ranks) return "the process";
  return ranks == 1 ? "the process of rank 0" : fmt::format("the process of ranks 0 to {}", ranks - 1);
}

// The memory used, compared with the memory planned.
void summarise_memory(const ParallelConfig& parallel, const RunPlan& predicted, const RunResult& result,
                      Progress& progress) {
  int64_t arenas = 0, planned = 0;
  for (const MemoryEvent& rank : result.memory) {
    arenas += rank.peak;
    planned += predicted.memory[static_cast<size_t>(rank.rank)].peak;
  }
  const auto bytes = [](auto count) { return format_bytes(static_cast<double>(count)); };
  const std::vector<std::string> off = off_plan(predicted, result);
  std::string line =
      fmt::format("memory       {}{} used {}, {}", predicted.on_gpu ? "GPUs' arenas" : "arenas",
                  result.memory.size() > 1 ? fmt::format(" of {} ranks", result.memory.size()) : "", bytes(arenas),
                  off.empty() ? "as planned" : fmt::format("of {} planned", bytes(planned)));
  if (result.peak_resident)
    line += fmt::format("; {} {} at most, of {} planned", name_process(parallel), bytes(*result.peak_resident),
                        bytes(predicted.resident_bytes));
  if (predicted.offload_bytes > 0)
    line += fmt::format("; {} of the host's memory are pinned for activations", bytes(predicted.offload_bytes));
  progress.note(line);
  if (!is_finished(result.end)) return;  // it may not have reached its peak
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(off.size(), kShown); ++i) progress.note("             " + off[i]);
  if (off.size() > kShown) progress.note(cat("             and ", off.size() - kShown, " more, in metrics.jsonl"));
}

bool differs(double a, double b) {
  return std::abs(a - b) > 0.1 * std::max(a, b);
}

// The learning rate of a run of `run_length` steps or samples.
struct Schedule {
  OptimizerConfig optimizer;
  int64_t run_length;
  bool by_samples;
  BatchRamp ramp;

  double rate(int64_t step) const {
    const int64_t position = by_samples ? ramp.consumed_by(step - 1) : schedule_position(optimizer, step, step - 1);
    return learning_rate(optimizer, run_length, position);
  }
  int64_t length() const { return optimizer.decay_end() > 0 ? optimizer.decay_end() : run_length; }
  // The flag that sets the end of the decay.
  std::string flag() const { return by_samples ? "--lr-decay-samples" : "--lr-decay-iters"; }
  void end_at(int64_t end) { (by_samples ? optimizer.lr_decay_samples : optimizer.lr_decay_iters) = end; }
};

Schedule schedule_of(const RunConfig& config) {
  const bool by_samples = config.train.train_samples > 0;
  Schedule schedule{config.optimizer, config.schedule_length(), by_samples, config.batch_ramp()};
  if (by_samples && config.optimizer.lr_decay_samples == 0) schedule.end_at(schedule.run_length);  // as resolve() does
  return schedule;
}

// The learning rates of step `done` + 1 with the schedule so far and with the present one. Nothing if they are about
// the same, or if the present one continues from the rate of step `done`, as a warm-up does.
std::optional<std::pair<double, double>> jump(const Schedule& before, const Schedule& now, int64_t done) {
  const double was = before.rate(done + 1), is = now.rate(done + 1);
  if (!differs(was, is) || !differs(before.rate(done), is)) return std::nullopt;
  return std::pair(was, is);
}

// The command that continues a run after early stopping has ended it.
std::string past_early_stopping(const Context& context, const RunConfig& config) {
  return command_for(context, config, "train") + " --early-stopping-patience 0";
}

// The command that trains a finished run for as many steps again. A schedule as long as the run would stretch with it,
// and the learning rate would jump back up, so the command keeps the schedule's end. If early stopping would end the
// run at once, the command switches it off.
std::string longer(const Context& context, const RunConfig& config, const ValidationRecord& validation, int64_t done) {
  const Schedule now = schedule_of(config);
  const bool samples = config.train.train_samples > 0;
  const int64_t twice = 2 * (samples ? config.train.train_samples : done);
  Schedule more = now;
  more.run_length = twice;
  if (samples && config.optimizer.lr_decay_samples == config.train.train_samples) more.end_at(twice);  // as resolve()
  const std::string train =
      validation.stops(config.train) ? past_early_stopping(context, config) : command_for(context, config, "train");
  std::string line = fmt::format("{} --train-{} {}", train, samples ? "samples" : "iters", twice);
  if (const auto jumps = jump(now, more, done))
    line += fmt::format(" {} {}   (the learning rate stays at {:.3g}; without {} it goes {} to {:.3g})", now.flag(),
                        now.length(), jumps->first, now.flag(), jumps->second > jumps->first ? "up" : "down",
                        jumps->second);
  return line;
}

// If the weights of the best evaluation are lost, why, and which keys keep them. keep_best chooses among checkpoints;
// it does not save one for an evaluation between two of them.
std::string loss_of_best(const TrainConfig& train, const fs::path& run, int64_t step) {
  if (fs::exists(run / "checkpoints" / step_folder_name(step))) return "";
  const std::string kept = train.keep_best == 0 ? "keep_best = 1" : "";
  if (train.save_interval > 0 && step % train.save_interval == 0)
    return kept.empty() ? "" : cat("; the weights of step ", step, " were deleted: ", kept, " keeps them");
  return cat("; the weights of step ", step, " were not saved: save_interval = ", train.eval_interval,
             kept.empty() ? " saves them" : cat(" with ", kept, " saves and keeps them"));
}

// The checkpoint that NAME@best means, if keep_best keeps one.
std::optional<Checkpoint> kept_best(const TrainConfig& train, const fs::path& run) try {
  if (train.keep_best == 0) return std::nullopt;
  return find_checkpoint(run / "checkpoints", "best");
} catch (const CheckpointError&) {  // no checkpoint was evaluated
  return std::nullopt;
}

// The checkpoint that is kept, and the evaluation with a lower loss whose weights are lost, if there is one.
std::string describe_best(const TrainConfig& train, const ValidationRecord& found, const fs::path& run,
                          const std::optional<Checkpoint>& kept) {
  const double loss = kept ? validation_loss(*kept) : INFINITY;
  std::string line =
      kept ? fmt::format("validation loss {:.4f} at step {}", loss, kept->step) : "no checkpoint was evaluated";
  if (found.best_step > 0 && found.best < loss)
    if (const std::string lost = loss_of_best(train, run, found.best_step); !lost.empty())
      line += fmt::format("; {:.4f} at step {} was {}{}", found.best, found.best_step,
                          kept ? "lower" : "the lowest validation loss", lost);
  return line;
}

// Suggests commands that read the run's weights: the best checkpoint's, if it is not the last one.
void suggest_commands(const Context& context, RunConfig config, bool best, Given given, Progress& progress) {
  const std::string report = command_for(context, config, "report", given);
  if (best) config.train.run += "@best";
  if (config.data.sft)
    progress.note("talk to it   " + command_for(context, config, "chat", given));
  else
    progress.note(fmt::format("write text   {} {}", command_for(context, config, "generate", given),
                              shell_word(config.train.sample_prompt)));
  progress.note("the report   " + report);
}

std::string describe_trained(const TrainedParameters& trained) {
  std::string text = fmt::format("trained      {} of the parameters; the others are frozen",
                                 format_count(static_cast<double>(trained.all)));
  for (const auto& [format, coded] : trained.coded)
    text += fmt::format("; {} kept as {} in {}", format_count(static_cast<double>(coded.elements)), format,
                        format_bytes(static_cast<double>(coded.bytes)));
  return text;
}

}  // namespace

void announce_run(const RunConfig& config, RunBegin begin, bool named, Progress& progress) {
  const fs::path folder = fs::path(config.train.runs_folder) / config.train.run;
  const DataConfig& data = config.data;
  const std::string text = data.reads_shards() ? clipped(data.data_path.empty() ? data.train_data_path : data.data_path)
                           : data.data.empty() ? "the built-in text"
                                               : data.data;
  const auto checkpoints = step_folders(folder / "checkpoints");
  std::string line = "run          ";
  if (begin != RunBegin::resumed)
    line += fmt::format("new run {} on {}{}", folder.string(), text,
                        begin == RunBegin::archived ? "; the present run of this name will be kept" : "");
  else if (checkpoints.empty())
    line += fmt::format("{} from its beginning, on {}: it has saved nothing yet", folder.string(), text);
  else
    line += fmt::format("resuming {} at step {}", folder.string(), checkpoints.front().first);
  const std::string latest = latest_run(config.train.runs_folder);
  if (!named && !latest.empty() && latest != config.train.run)
    line += fmt::format("; the latest run is {}: --run {} resumes that one", latest, shell_word(latest));
  progress.note(line);
}

void announce_shortened(const Context& context, const GivenConfig& given, int64_t steps, const Timing& whole,
                        Progress& progress) {
  const auto says_more = [&](const auto& source) {
    return given.said(source.first) && source.first != "run" && source.first != "runs_folder";
  };
  RunConfig other = given.config;
  other.train.run = "whole";
  progress.note(fmt::format(
      "steps        {} of the recipe's {}, which would take this machine about {}; for all of them: {}", steps,
      whole.steps, format_duration(whole.run_seconds),
      std::ranges::any_of(given.sources, says_more) ? "the same call without --max-minutes, under another --run NAME"
                                                    : command_for(context, other, "train")));
}

std::optional<std::string> schedule_warning(const RunConfig& saved, const RunConfig& now, int64_t done) {
  if (done == 0) return std::nullopt;
  const Schedule before = schedule_of(saved);
  Schedule after = schedule_of(now);
  const auto jumps = jump(before, after, done);
  if (!jumps) return std::nullopt;
  after.end_at(before.length());  // as the suggested flag would
  const std::string flag = jump(before, after, done) ? "--use-checkpoint-opt-param-scheduler"
                                                     : fmt::format("{} {}", after.flag(), before.length());
  return fmt::format(
      "warning: the learning rate goes from {:.3g} to {:.3g}, as its schedule has changed; {} keeps the old one",
      jumps->first, jumps->second, flag);
}

void announce(const ResolvedConfig& config, const Plan& plan, const Timing& timing, int64_t done, Progress& progress) {
  progress.note(fmt::format(
      "model        {} parameters, {} active for a token; {} layer{} of width {}{}",
      format_count(static_cast<double>(plan.counts.exact)), format_count(static_cast<double>(plan.counts.active)),
      config->model.num_layers, config->model.num_layers == 1 ? "" : "s", config->model.hidden_size,
      config->model.moe.num_experts > 0
          ? fmt::format(", {} experts, top-{}", config->model.moe.num_experts, config->model.moe.moe_router_topk)
          : ""));
  if (plan.trained) progress.note(describe_trained(*plan.trained));
  for (size_t i = 0; i < plan.param_groups.size(); ++i)
    progress.note((i == 0 ? "optimizer    " : "             ") + format_param_groups(plan.param_groups)[i]);
  const auto& parallel = config->parallel;
  const std::string where = config->parallel.on_gpu() ? fmt::format("on {}", cuda::properties(0).name)
                                                      : fmt::format("of {} thread{}", config->parallel.threads,
                                                                    config->parallel.threads == 1 ? "" : "s");
  progress.note(fmt::format("ranks        {} {}; {} of memory each", parallel.ranks, where,
                            format_bytes(static_cast<double>(plan.arena_bytes()))));
  if (const auto threads = too_many_threads(parallel, usable_cores())) progress.note("warning: " + *threads);
  announce_layout(config, progress);
  announce_gpus(plan, progress);
  if (!plan.ramp.empty()) progress.note("ramp         " + plan.ramp);
  progress.note(fmt::format("work         {} steps{} of {}{} tokens, {}FLOP each: about {}{}{}", timing.steps,
                            done > 0 ? " more" : "", plan.ramp.empty() ? "" : "up to ", plan.tokens_per_step,
                            format_count(plan.step_flops), format_duration(timing.run_seconds),
                            share_of_machine(parallel, plan, timing),
                            config->rollout.rollouts ? ", without sampling and rewards" : ""));
}

void summarise(const Context& context, const ResolvedConfig& config, const RunPlan& predicted, const RunResult& result,
               const Metrics& recorded, const fs::path& report, Progress& progress) {
  progress.note("");
  if (result.bits_per_byte)
    progress.note(fmt::format(
        "validation   {:.4f} bits per byte at step {}; a Kneser-Ney bigram model of the same tokens: {:.4f}\n",
        *result.bits_per_byte, result.evaluated_at, result.baseline_bits_per_byte.value_or(0)));
  if (!result.sample.empty()) {
    const std::string prompt =
        config->data.sft ? cat("> ", config->train.sample_prompt, "\n") : config->train.sample_prompt;
    const std::string text = prompt + replace_invalid_utf8(result.sample);
    config->log.prints_lines() ? progress.note(text) : progress.print(text);
    progress.note("");
  }
  if (!recorded.steps.empty())
    progress.note(fmt::format("speed        {} tokens/s in the median step; {} steps in {}",
                              format_count(run_speed(recorded).tokens_per_s), recorded.steps.back().step,
                              format_duration(recorded.steps.back().elapsed_s)));
  summarise_memory(config->parallel, predicted, result, progress);
  const ValidationRecord& validation = result.validation;
  const fs::path run = report.parent_path();
  const std::optional<Checkpoint> best = kept_best(config->train, run);
  if (config->train.keep_best > 0 && (best || validation.best_step > 0))
    progress.note("best         " + describe_best(config->train, validation, run, best));
  if (result.end == RunEnd::stopped_early)
    progress.note(fmt::format(
        "stopped      at step {} of {}: no evaluation was better than that of step {}, {:.4f}, {} "
        "times in a row (early_stopping_patience){}",
        result.step, config->train.train_iters, validation.best_step, validation.best, validation.since_best,
        config->train.keep_best == 0 ? loss_of_best(config->train, run, validation.best_step) : ""));
  progress.note("report       " + report.string());
  if (const fs::path trace = run / "trace.json"; fs::exists(trace))
    progress.note(cat("trace        ", trace.string(), "   (open it at https://ui.perfetto.dev)"));
  if (result.end == RunEnd::stopped_early)
    progress.note("continue     " + past_early_stopping(context, config));
  else if (result.end == RunEnd::finished)
    progress.note("continue     " + longer(context, config, validation, config->train.train_iters));
  else
    progress.note(fmt::format("resume       {}   (saved at step {} of {})",
                              command_for(context, config, "train", Given::anywhere), result.step,
                              config->train.train_iters));
  const bool complete = result.end == RunEnd::finished || result.end == RunEnd::stopped_early;
  suggest_commands(context, *config, best && best->step != result.step, complete ? Given::here : Given::anywhere,
                   progress);
}

void say_restart(const RunConfig& config, int64_t step, Progress& progress) {
  progress.note(
      fmt::format("saved        at step {} of {}; the ranks end to be started again", step, config.train.train_iters));
}

void say_unused(RunConfig saved, RunConfig given, Progress& progress) {
  const Fields was = saved.fields(), is = given.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (is[i].section != "load" && was[i].text() != is[i].text())
      progress.note(cat("not used     ", is[i].name, " = ", is[i].text(), " (the run's: ", was[i].text(), ")"));
}

void say_done(const Context& context, const RunConfig& config, const RunFolder& folder, const DoneRun& run,
              Progress& progress) {
  const auto& [done, asked, validation] = run;
  const std::string train = command_for(context, config, "train"), path = folder.path().string();
  const int64_t steps = config.train.train_iters;
  std::string more = validation.stops(config.train) ? past_early_stopping(context, config) : train;
  if (done < asked) {
    progress.note(
        fmt::format("The run {} was stopped early, after {} of {} steps: its validation loss did not fall any more.",
                    path, done, steps));
    more = done < steps ? past_early_stopping(context, config) : longer(context, config, validation, done);
  } else if (done < steps) {
    progress.note(fmt::format("The run {} has done {} of {} steps, and train_iters = {} asks for no more.", path, done,
                              steps, asked));
  } else {
    progress.note(fmt::format("The run {} is finished: {} steps are done.", path, done));
    more = longer(context, config, validation, done);
  }
  progress.note("report       " + folder.report().string());
  progress.note("continue     " + more);
  progress.note(fmt::format("start over   {} --fresh   (keeps this one as {})", train,
                            archive_path(config.train.runs_folder, config.train.run).string()));
}

using Clock = std::chrono::steady_clock;

LiveReport::LiveReport(fs::path folder, double seconds)
    : folder_(std::move(folder)),
      seconds_(seconds),
      recorded_(follow_for_report(folder_)),
      due_(Clock::now()),
      ticker_(seconds, [this] { write(); }) {}

void LiveReport::write() {
  const auto begin = Clock::now();
  if (begin < due_) return;
  try {
    recorded_.read_more();
    write_report(folder_, recorded_.metrics(), seconds_);
  } catch (const std::exception&) {  // no step yet, or a full disk, which must not end the run
  }
  due_ = begin + 100 * (Clock::now() - begin);
}

}  // namespace witan::cli
