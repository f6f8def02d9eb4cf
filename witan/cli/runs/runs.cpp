// witan runs: lists the runs of a folder with their states, and asks a run for a snapshot of its memory.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/cli/runs/text_figures.h"
#include "witan/report/progress/progress.h"
#include "witan/train/record/memory.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct RunsArgs {
  std::string runs_folder = "runs";
  bool json = false;
};

std::string coloured(RunState state, bool colour) {
  const char* const name = name_of(state);
  if (!colour) return name;
  switch (state) {
    case RunState::running:
      return fmt::format("\x1b[32m{}\x1b[0m", name);
    case RunState::failed:
      return fmt::format("\x1b[31m{}\x1b[0m", name);
    case RunState::interrupted:
      return fmt::format("\x1b[33m{}\x1b[0m", name);
    default:
      return name;
  }
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "-";
}

std::string count_or_dash(const std::optional<int64_t>& count) {
  return count ? format_count(static_cast<double>(*count)) : "-";
}

std::string runs_table(const std::vector<RunSummary>& runs, bool colour) {
  using enum Align;
  std::vector<std::vector<std::string>> rows = {
      {"run", "state", "step", "of", "loss", "validation", "tokens", "parameters", "age", "on disk", "from"}};
  for (const RunSummary& run : runs)
    rows.push_back({clipped(run.name, 40), coloured(run.state, colour),
                    run.state == RunState::imported ? "-" : std::to_string(run.step),
                    run.steps ? std::to_string(*run.steps) : "-", loss_text(run.loss), loss_text(run.validation_loss),
                    count_or_dash(run.tokens), count_or_dash(run.parameters),
                    format_duration(static_cast<double>(std::max<int64_t>(run.age.count(), 1))),
                    format_bytes(static_cast<double>(run.bytes)), run.origin.empty() ? "-" : clipped(run.origin, 40)});
  return text_table(rows, {left, left, right, right, right, right, right, right, right, right, left});
}

// Every run has every key; values are null where `witan report --json` has null.
nlohmann::ordered_json json_of(const RunSummary& run) {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  return {{"name", replace_invalid_utf8(run.name)},
          {"state", name_of(run.state)},
          {"step", or_null(run.step > 0 ? std::optional(run.step) : std::nullopt)},
          {"total_steps", or_null(run.steps)},
          {"loss", or_null(run.loss)},
          {"validation_loss", or_null(run.validation_loss)},
          {"tokens", or_null(run.tokens)},
          {"parameters", or_null(run.parameters)},
          {"age_s", run.age.count()},
          {"bytes", run.bytes},
          {"from", or_null(run.origin.empty() ? std::nullopt : std::optional(run.origin))}};
}

ExitCode list_all(Context& context, const RunsArgs& args) {
  std::vector<std::string> skipped, damaged;
  const std::vector<RunSummary> runs = summarise_runs(args.runs_folder, skipped, damaged);
  for (const std::string& line : skipped) fmt::print(context.err, "skipped      {}\n", line);
  for (const std::string& line : damaged) fmt::print(context.err, "damaged      {}\n", line);
  if (args.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const RunSummary& run : runs) all.push_back(json_of(run));
    fmt::print(context.out, "{}\n", all.dump(2));
    return ExitCode::done;
  }
  if (runs.empty() && skipped.empty())
    fmt::print(context.err, "there is no run in {} yet: `witan train` makes one\n", args.runs_folder);
  if (!runs.empty()) fmt::print(context.out, "{}", runs_table(runs, progress_options(context.out).colour));
  return ExitCode::done;
}

struct SnapshotArgs {
  std::string name;
  std::string runs_folder = "runs";
};

ExitCode snapshot(Context& context, const SnapshotArgs& args) {
  const fs::path folder = find_run(args.runs_folder, args.name);
  require<UsageError>(is_training(folder), "the run ", clipped(args.name),
                      " is not training, and has no memory to show: ask while it trains");
  request_snapshot(folder);
  fmt::print(context.err, "asked        each rank writes {} in its next step\n",
             (folder / "memory" / "step-S-rank-N.json").string());
  return ExitCode::done;
}

void add_runs_snapshot(CLI::App& runs, Context& context) {
  const auto args = std::make_shared<SnapshotArgs>();
  CLI::App* command = add_command(runs, context,
                                  {"snapshot", "Have a run that is training write what its memory holds",
                                   "In its next step each rank writes RUN/memory/step-S-rank-N.json: every live block "
                                   "of its memory, with its bytes, "
                                   "kind, dtype and shape, and the layer and op that allocated it. Training goes on.",
                                   "witan runs snapshot my-run"},
                                  [&context, args] { return snapshot(context, *args); });
  add_option(*command, "name", args->name, "Name of the run").type_name("").required();
  add_runs_folder(*command, args->runs_folder);
}

}  // namespace

void add_runs(CLI::App& app, Context& context) {
  const auto args = std::make_shared<RunsArgs>();
  CLI::App* command = add_command(
      app, context,
      {"runs", "List the runs of a folder, compare some of them, or remove them",
       "Each with its state, steps, losses of the last step and the last evaluation, tokens, age since something was "
       "last recorded, and size; the latest first. A run without an end is `failed`: it was killed, or an error ended "
       "it (train.log says which). Nothing is written, and runs are listed while they train.",
       "witan runs\nwitan runs --json\nwitan runs compare base tuned"},
      [&context, args] { return list_all(context, *args); });
  add_runs_folder(*command, args->runs_folder);
  add_flag(*command, "--json", args->json, "Print JSON");
  add_runs_compare(*command, context);
  add_runs_remove(*command, context);
  add_runs_snapshot(*command, context);
}

}  // namespace witan::cli
