// witan report: a run's report.html, written again, and its key figures.
#include <fmt/core.h>

#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/run_args.h"
#include "witan/cli/commands.h"
#include "witan/report/html.h"
#include "witan/report/metrics.h"
#include "witan/train/run/load_run.h"

namespace witan::cli {
#include "witan/report/speed.h"
namespace {

// The standing of a run, a line per figure; figures that a young run does not have yet are left out.
void print_figures(std::FILE* out, const Metrics& metrics) {
  if (metrics.run)
    fmt::print(out, "model         {} parameters, {} active per token\n",
               format_count(static_cast<double>(metrics.run->parameters)),
               format_count(static_cast<double>(metrics.run->active_parameters)));
  if (!metrics.steps.empty()) {
    const StepEvent& last = metrics.steps.back();
    const std::string total = metrics.run ? cat(" of ", metrics.run->total_steps) : "";
    fmt::print(out, "steps         {}{}, in {}\n", last.step, total, format_duration(last.elapsed_s));
    fmt::print(out, "loss          {:.4f}\n", last.loss);
    const RunSpeed speed = run_speed(metrics);
    fmt::print(out, "speed         {} tokens/s, {:.1f} GFLOP/s in the median step\n", format_count(speed.tokens_per_s),
               speed.gflops);
  }
  if (!metrics.evals.empty())
    fmt::print(out, "validation    loss {:.4f}, {:.4f} bits/byte at step {}\n", metrics.evals.back().loss,
               metrics.evals.back().bits_per_byte, metrics.evals.back().step);
  for (const BaselineEvent& baseline : metrics.baselines)
    fmt::print(out, "baseline      {:.4f} bits/byte: {}\n", baseline.bits_per_byte, baseline.name);
  if (!metrics.saves.empty()) {
    double seconds = 0, paused = 0;
    for (const SaveEvent& save : metrics.saves) seconds += save.seconds, paused += save.paused_s;
    fmt::print(out, "checkpoints   {} saved in {:.2f} s, training paused {:.2f} s\n", metrics.saves.size(), seconds,
               paused);
  }
  fmt::print(out, "state         {}\n", metrics.end ? metrics.end->reason : "in progress or killed");
}

ExitCode write(Context& context, const RunArgs& args) {
  const fs::path run = find_run(args.runs_folder, args.run);
  const Metrics metrics = read_metrics(run / "metrics.jsonl");
  const fs::path page = write_report(run, metrics);
  print_figures(context.out, metrics);
  fmt::print(context.out, "report        {}\n", page.string());
  return ExitCode::done;
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  const auto args = std::make_shared<RunArgs>();
  CLI::App* command = add_command(
      app, context,
      {"report", "Write a run's report.html and show its key figures",
       "The report is one file that needs no network: open it in a browser.", "witan report\nwitan report my-run"},
      [&context, args] { return write(context, *args); });
  add_option(*command, "run,--run", args->run, "Name of the run (default: the latest)").type_name("NAME");
  add_option(*command, "--runs-folder", args->runs_folder, "Folder of all runs").type_name("FOLDER").show_default();
}

}  // namespace witan::cli
