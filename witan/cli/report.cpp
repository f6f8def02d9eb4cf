// witan report: rewrites a run's report.html and prints its key figures.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/report/events/figures.h"
#include "witan/report/events/metrics.h"
#include "witan/report/page/page.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

// The key figures of a run, one per line, without those that it does not have yet.
void print_figures(std::FILE* out, const Metrics& metrics, RunState state) {
  if (metrics.run)
    fmt::print(out, "model         {} parameters, {} active per token\n",
               format_count(static_cast<double>(metrics.run->parameters)),
               format_count(static_cast<double>(metrics.run->active_parameters)));
  if (!metrics.steps.empty()) {
    const StepEvent& last = metrics.steps.back();
    const std::string total = metrics.run ? cat(" of ", metrics.run->total_steps) : "";
    fmt::print(out, "steps         {}{}, in {}\n", last.step, total, format_duration(last.elapsed_s));
    if (const auto reward = training_reward(metrics))
      fmt::print(out, "reward        {:.4f}{}\n", reward->value, reward->span > 1 ? ", smoothed" : "");
    fmt::print(out, "loss          {:.4f}\n", last.loss);
    const RunSpeed speed = run_speed(metrics);
    fmt::print(out, "speed         {} tokens/s, {:.1f} GFLOP/s in the median step\n", format_count(speed.tokens_per_s),
               speed.gflops);
  }
  const auto print_evaluation = [out](const EvalEvent& last, const std::string& of) {
    fmt::print(out, "validation    loss {:.4f}, {:.4f} bits/byte at step {}{}\n", last.loss, last.bits_per_byte,
               last.step, of);
    if (last.reward) fmt::print(out, "              eval reward {:.4f}\n", *last.reward);
    std::string routers;
    for (const auto& [name, value] : last.router)
      routers += fmt::format("{}{} {:.5g}", routers.empty() ? "" : ", ", name, value);
    if (!routers.empty()) fmt::print(out, "              {}\n", routers);
  };
  if (!metrics.evals.empty()) print_evaluation(metrics.evals.back(), "");
  for (const auto& [set, evaluations] : metrics.set_evals)
    if (!evaluations.empty()) print_evaluation(evaluations.back(), " of " + clipped(set));
  for (const BaselineEvent& baseline : metrics.baselines)
    fmt::print(out, "baseline      {:.4f} bits/byte: {}\n", baseline.bits_per_byte, baseline.name);
  if (!metrics.saves.empty()) {
    double seconds = 0, paused = 0;
    for (const SaveEvent& save : metrics.saves) seconds += save.seconds, paused += save.paused_s;
    fmt::print(out, "checkpoints   {} saved in {:.2f} s, training paused {:.2f} s\n", metrics.saves.size(), seconds,
               paused);
  }
  if (!metrics.anomalies.empty()) {
    const AnomalyEvent& last = metrics.anomalies.back();
    fmt::print(out, "anomalies     {}; the last in step {}: {}\n", metrics.anomalies.size(),
               last.at.value_or(last.step), last.text);
  }
  fmt::print(out, "state         {}\n", metrics.end ? metrics.end->reason : name_of(state));
}

struct ReportArgs : RunArgs {
  std::string output;  // empty: the run's report.html
  bool json = false;
};

// The figures for programs, with the run's state and checkpoints as its folder shows them.
nlohmann::ordered_json report_json(const RunSummary& run, const Metrics& metrics) {
  nlohmann::ordered_json json{
      {"name", replace_invalid_utf8(run.name)},
      {"folder", replace_invalid_utf8(run.folder.string())},
      {"state", name_of(run.state)},
      {"from", run.origin.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(run.origin)},
      {"bytes", run.bytes}};
  json.update(figures_json(metrics));
  auto& checkpoints = json["checkpoints"] = nlohmann::ordered_json::array();
  for (const auto& [step, folder] : step_folders(run.folder / "checkpoints"))
    checkpoints.push_back({{"step", step}, {"folder", replace_invalid_utf8(folder.string())}});
  return json;
}

// Whether this user can create files in the folder.
bool is_writable(const fs::path& folder) {
  return ::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

void require_trained(const fs::path& run) {
  const std::string flags = flags_of_run(run);
  require<DataError>(!is_imported_only(run), "the run ", run.string(),
                     " was imported and has not been trained, so there is nothing to report yet: measure it with "
                     "`witan eval --run ",
                     flags, " --data FILE`, or train a new run from its weights: `witan train --run NEW --init-from ",
                     flags, "`");
}

// Refuses a run whose metrics.jsonl is missing or has no step.
[[noreturn]] void throw_nothing_recorded(const fs::path& run) {
  const fs::path recorded = run / "metrics.jsonl";
  const std::string lost = lost_metrics(run), flags = flags_of_run(run);
  require<DataError>(!lost.empty(), "the run ", run.string(),
                     " has not begun: no step is recorded in its metrics.jsonl yet, so there is nothing to report; "
                     "train it first (`witan train --run ",
                     flags, "`)");
  throw DataError(
      cat(recorded.string(), " ", lost,
          ": the run was trained, but the record of its steps is lost, so there is nothing to report. Put "
          "back a copy of the file if there is one",
          newest_checkpoint_step(run) == 0
              ? ""
              : cat("; the run's checkpoints can be used without it, as by `witan eval --run ", flags, "`")));
}

OutputFile page_of(const ReportArgs& args) {
  return report_page(args.output, "witan report: --output");
}

// With --json the page is written only if --output names it: a program that polls a run should not write.
ExitCode print_report_json(Context& context, const ReportArgs& args, const RunSummary& summary,
                           const Metrics& metrics) {
  fmt::print(context.out, "{}\n", report_json(summary, metrics).dump(2));
  std::fflush(context.out);
  if (!args.output.empty()) page_of(args).write(render_report(summary.folder, metrics));
  return ExitCode::done;
}

// If another user's run cannot take the page, its figures are shown all the same; a page named by --output must be
// written.
ExitCode write(Context& context, const ReportArgs& args) {
  require<UsageError>(args.output != "-",
                      "witan report: --output is a file, and the page is not printed; --json prints the figures");
  if (!args.output.empty()) page_of(args).require_free();
  const fs::path run = find_run(args.runs_folder, args.run);
  require_trained(run);
  const fs::path page = args.output.empty() ? run / "report.html" : fs::path(args.output);
  DamagedLines damaged;
  const fs::path recorded = run / "metrics.jsonl";
  if (!fs::exists(recorded)) throw_nothing_recorded(run);
  const Metrics metrics = read_undamaged_metrics(recorded, damaged);
  if (damaged.count > 0) fmt::print(context.err, "warning: {}\n", describe(damaged, recorded));
  std::vector<std::string> damaged_files;
  const RunSummary summary = summarise_run(run.parent_path(), run.filename().string(), damaged_files);
  for (const std::string& why : damaged_files) fmt::print(context.err, "warning: {}\n", why);
  if (args.json) return print_report_json(context, args, summary, metrics);
  if (metrics.steps.empty() && metrics.evals.empty()) throw_nothing_recorded(run);
  const std::string html = render_report(run, metrics);
  print_figures(context.out, metrics, summary.state);
  std::fflush(context.out);  // so that the figures precede an error of the page
  try {
    if (args.output.empty())
      write_file_atomically(page, html);
    else
      page_of(args).write(html);
  } catch (const IoError& error) {
    if (!args.output.empty() || is_writable(run)) throw;
    fmt::print(context.err, "warning: report.html was not written: {}; --output FILE writes it elsewhere\n",
               error.what());
    return ExitCode::done;
  }
  fmt::print(context.out, "report        {}\n", page.string());
  return ExitCode::done;
}

constexpr const char* kReportHelp =
    "The report is one file that needs no network: open it in a browser. Of a run in a folder that cannot be written "
    "to the figures are shown all the same, with a warning; --output writes the page elsewhere. --json prints the "
    "figures for programs, and writes the page only with --output.";

}  // namespace

void add_report(CLI::App& app, Context& context) {
  const auto args = std::make_shared<ReportArgs>();
  CLI::App* command = add_command(app, context,
                                  {"report", "Write a run's report.html and show its key figures", kReportHelp,
                                   "witan report\nwitan report my-run\nwitan report my-run --output my-run.html\n"
                                   "witan report my-run --json"},
                                  [&context, args] { return write(context, *args); });
  add_option(*command, "run,--run", args->run, "Name of the run (default: the latest)").type_name("NAME");
  add_runs_folder(*command, args->runs_folder);
  add_option(*command, "--output", args->output,
             "Write the page to this file, which is new or an earlier page (default: the run's report.html)")
      .type_name("FILE");
  add_flag(*command, "--json", args->json, "Print the figures as JSON, and write no page without --output");
}

}  // namespace witan::cli
