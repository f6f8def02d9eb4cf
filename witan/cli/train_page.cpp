#include "witan/cli/train_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "witan/base/text.h"
#include "witan/optim/lr_schedule.h"
#include "witan/planner/division.h"
#include "witan/planner/layout_choice.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/cuda_survey.h"

namespace witan::cli {
namespace {

std::string command_for(const Context& context, const RunConfig& config, const char* command) {
  const RunConfig defaults;
  std::string line = context.program + " " + command;
  if (config.train.run != defaults.train.run) line += " --run " + config.train.run;
  if (config.train.runs_folder != defaults.train.runs_folder) line += " --runs-folder " + config.train.runs_folder;
  return line;
}

// On GPUs: what a step is, and whose kernels it runs.
void announce_gpus(const Plan& plan, Progress& progress) {
  if (!plan.on_gpu) return;
  progress.note(cat("step         ", format_recording(plan),
                    plan.exchanges_rows && plan.peers ? "; rows of experts " + format_exchange(plan) : ""));
  std::string libraries;
  for (const cuda::LibraryState& library : cuda::libraries()) {
    if (!libraries.empty()) libraries += ", ";
    libraries += library.missing.empty() ? cat(library.name, " ", library.version)
                                         : cat("no ", library.name, " (", library.purpose, ")");
  }
  progress.note("libraries    " + libraries);
}

// Of several ranks: the mesh, as --mesh takes it, and what is divided along it.
void announce_layout(const RunConfig& config, Progress& progress) {
  if (config.parallel.ranks == 1) return;
  progress.note("layout       " + mesh_text(config));
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  if (const std::string divided = division_text(config, layout); !divided.empty())
    progress.note("divided      " + divided);
}

// What the plan promised about memory, beside what came of it.
void summarise_memory(std::FILE* out, const RunPlan& promised, const RunResult& result) {
  int64_t arenas = 0;
  for (const MemoryEvent& rank : result.memory) arenas += rank.peak;
  const auto bytes = [](auto count) { return format_bytes(static_cast<double>(count)); };
  fmt::print(out, "\nmemory       {} used {}, as planned", promised.on_gpu ? "GPUs' arenas" : "arenas", bytes(arenas));
  if (result.peak_resident)
    fmt::print(out, "; the process {} at most, of {} planned", bytes(*result.peak_resident),
               bytes(promised.resident_bytes));
  fmt::print(out, "\n");
}

}  // namespace

void announce_schedule(const RunConfig& before, const RunConfig& now, int64_t done, Progress& progress) {
  if (done == 0) return;
  const double was = learning_rate(before.optimizer, before.train.train_iters, done + 1);
  const double is = learning_rate(now.optimizer, now.train.train_iters, done + 1);
  if (std::abs(is - was) <= 0.1 * std::max(is, was)) return;
  progress.note(
      fmt::format("warning: the learning rate goes from {:.3g} to {:.3g}, as its schedule has changed; "
                  "--lr-decay-iters {} keeps the old one",
                  was, is, before.train.train_iters));
}

void announce(const RunConfig& config, const Plan& plan, const Timing& timing, int64_t done, Progress& progress) {
  progress.note(fmt::format(
      "model        {} parameters, {} active for a token; {} layer{} of width {}{}",
      format_count(static_cast<double>(plan.counts.exact)), format_count(static_cast<double>(plan.counts.active)),
      config.model.num_layers, config.model.num_layers == 1 ? "" : "s", config.model.hidden_size,
      config.model.moe.num_experts > 0
          ? fmt::format(", {} experts, top-{}", config.model.moe.num_experts, config.model.moe.moe_router_topk)
          : ""));
  const auto& parallel = config.parallel;
  const std::string where = config.parallel.on_gpu() ? fmt::format("on {}", cuda::properties(0).name)
                                                     : fmt::format("of {} thread{}", config.parallel.threads,
                                                                   config.parallel.threads == 1 ? "" : "s");
  progress.note(fmt::format("ranks        {} {}; {} of memory each", parallel.ranks, where,
                            format_bytes(static_cast<double>(plan.arena_bytes()))));
  announce_layout(config, progress);
  announce_gpus(plan, progress);
  const double rate = plan.step_flops / timing.step.seconds;
  progress.note(fmt::format(
      "work         {} steps{} of {} tokens, {}FLOP each: about {} at {:.0f} % of this machine's {:.0f} GFLOP/s",
      timing.steps, done > 0 ? " more" : "", plan.tokens_per_step, format_count(plan.step_flops),
      format_duration(timing.run_seconds), 100 * rate / timing.ceilings.fma_flops, timing.ceilings.fma_flops * 1e-9));
}

std::FILE* talk(const Context& context, const RunConfig& config) {
  return config.log.megatron() ? context.err : context.out;
}

void summarise(const Context& context, const RunConfig& config, const RunPlan& promised, const RunResult& result,
               const fs::path& report) {
  std::FILE* out = talk(context, config);
  if (result.bits_per_byte)
    fmt::print(out,
               "\nheld-out     {:.4f} bits per byte at step {}; a Kneser-Ney bigram model of the same tokens: {:.4f}\n",
               *result.bits_per_byte, result.evaluated_at, result.baseline_bits_per_byte.value_or(0));
  if (!result.sample.empty())
    fmt::print(out, "\n{}{}\n", config.train.sample_prompt, replace_invalid_utf8(result.sample));
  summarise_memory(out, promised, result);
  fmt::print(out, "report       {}\n", report.string());
  if (fs::exists(report.parent_path() / "trace.json"))
    fmt::print(out, "trace        {}   (open it at https://ui.perfetto.dev)\n",
               (report.parent_path() / "trace.json").string());
  if (result.finished)
    fmt::print(out, "go on        {} --train-iters {}\n", command_for(context, config, "train"),
               2 * config.train.train_iters);
  else
    fmt::print(out, "go on        {}   (saved at step {} of {})\n", command_for(context, config, "train"), result.step,
               config.train.train_iters);
  fmt::print(out, "write text   {} \"{}\"\n", command_for(context, config, "generate"), config.train.sample_prompt);
  fmt::print(out, "the report   {}\n", command_for(context, config, "report"));
}

void say_unused(std::FILE* out, RunConfig before, RunConfig asked) {
  const Fields was = before.fields(), is = asked.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (was[i].text() != is[i].text())
      fmt::print(out, "not used     {} = {} (the run's: {})\n", is[i].name, is[i].text(), was[i].text());
}

void say_finished(const Context& context, std::FILE* out, const RunConfig& config, const RunFolder& folder,
                  int64_t done) {
  fmt::print(out,
             "The run {} is finished: {} steps are done.\n"
             "report       {}\n"
             "go on        {} --train-iters {}\n"
             "start anew   {} --fresh   (keeps this one as {})\n",
             folder.path().string(), done, folder.report().string(), command_for(context, config, "train"), 2 * done,
             command_for(context, config, "train"), archive_path(config.train.runs_folder, config.train.run).string());
}

}  // namespace witan::cli
