// witan runs compare: shows how the configurations and results of runs differ.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/config/differences.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/cli/runs/text_figures.h"
#include "witan/report/events/metrics.h"
#include "witan/report/page/charts.h"
#include "witan/report/page/page.h"

namespace witan::cli {
namespace {

struct CompareArgs {
  std::vector<std::string> names;
  std::string runs_folder = "runs";
  std::string report;  // a file; empty: none
  bool json = false;
};

struct Compared {
  RunSummary summary;
  LossCurves losses;
  char letter = 'a';
};

std::vector<Compared> read_runs(const CompareArgs& args, std::FILE* err) {
  require<UsageError>(args.names.size() >= 2 && args.names.size() <= kSeriesColours, "witan runs compare takes 2 to ",
                      kSeriesColours, " runs, and was given ", args.names.size());
  std::set<std::string> once;
  std::vector<Compared> runs;
  std::vector<std::string> unread;
  for (const std::string& name : args.names) {
    require<UsageError>(once.insert(name).second, "the run ", clipped(name), " is named twice");
    Compared one{summarise_run(args.runs_folder, name, unread), {}, static_cast<char>('a' + runs.size())};
    const fs::path metrics = one.summary.folder / "metrics.jsonl";
    if (fs::is_regular_file(metrics)) one.losses = read_losses(metrics);
    const std::string damage = one.losses.damage.empty() ? "" : cat(clipped(name), ": ", one.losses.damage);
    if (!damage.empty() && std::ranges::find(unread, damage) == unread.end()) unread.push_back(damage);
    runs.push_back(std::move(one));
  }
  for (const std::string& line : unread) fmt::print(err, "warning: {}\n", line);
  return runs;
}

// Runs whose configuration cannot be read are compared only by their results.
std::vector<KeyDifference> differences_of(const std::vector<Compared>& runs) {
  std::vector<RunConfig> configs;
  for (const Compared& run : runs)
    if (run.summary.config) configs.push_back(*run.summary.config);
  return configs.size() == runs.size() ? differing_keys(std::move(configs)) : std::vector<KeyDifference>();
}

std::optional<Point> lowest(const Curve& curve) {
  const auto found = std::ranges::min_element(curve, {}, &Point::y);
  return found == curve.end() ? std::nullopt : std::optional(*found);
}

std::optional<Point> last(const Curve& curve) {
  return curve.empty() ? std::nullopt : std::optional(curve.back());
}

std::string point_text(const std::optional<Point>& point) {
  return point ? fmt::format("{:.4f} at step {:.0f}", point->y, point->x) : "-";
}

using CompareRows = std::vector<ComparisonTable::Row>;

CompareRows outcome_rows(const std::vector<Compared>& runs) {
  CompareRows rows;
  const auto add = [&](const char* what, const auto& value_of) {
    ComparisonTable::Row row{what, {}};
    for (const Compared& run : runs) row.values.push_back(value_of(run));
    rows.push_back(std::move(row));
  };
  const auto count = [](const std::optional<int64_t>& value) {
    return value ? format_count(static_cast<double>(*value)) : std::string("-");
  };
  add("state", [](const Compared& run) { return std::string(name_of(run.summary.state)); });
  add("steps", [](const Compared& run) {
    return cat(run.summary.step, " of ", run.summary.steps ? std::to_string(*run.summary.steps) : "?");
  });
  add("tokens", [&](const Compared& run) { return count(run.summary.tokens); });
  add("parameters", [&](const Compared& run) { return count(run.summary.parameters); });
  add("last loss", [](const Compared& run) { return point_text(last(run.losses.training)); });
  add("best loss", [](const Compared& run) { return point_text(lowest(run.losses.training)); });
  add("last validation loss", [](const Compared& run) { return point_text(last(run.losses.validation)); });
  add("best validation loss", [](const Compared& run) { return point_text(lowest(run.losses.validation)); });
  return rows;
}

CompareRows key_rows(const std::vector<KeyDifference>& differences) {
  CompareRows rows;
  for (const KeyDifference& one : differences) rows.push_back({one.key, one.values});
  return rows;
}

void print_rows(std::FILE* out, const char* title, const std::vector<Compared>& runs, const CompareRows& rows) {
  constexpr size_t kWidest = 40;  // columns of a value
  std::vector<std::vector<std::string>> table = {{title}};
  for (const Compared& run : runs)
    table[0].push_back(fmt::format("{}: {}", run.letter, clipped(run.summary.name, kWidest)));
  for (const ComparisonTable::Row& row : rows) {
    table.push_back({"  " + row.what});
    for (const std::string& value : row.values) table.back().push_back(clipped(value, kWidest));
  }
  fmt::print(out, "{}\n", text_table(table, {}));
}

// The smoothed training losses.
std::string loss_picture(const std::vector<Compared>& runs) {
  constexpr size_t kWidth = 78, kHeight = 16;
  std::vector<LetteredCurve> curves;
  for (const Compared& run : runs) {
    const Curve& loss = run.losses.training;
    curves.push_back({run.letter, smooth(loss, smoothing_span(loss.size()))});
  }
  const std::string picture = text_curves(curves, kWidth, kHeight);
  return picture.empty() ? "" : "training loss, smoothed\n" + picture;
}

nlohmann::ordered_json point_json(const std::optional<Point>& point) {
  if (!point) return nullptr;
  return {{"step", static_cast<int64_t>(point->x)}, {"loss", point->y}};
}

std::string compare_json(const std::vector<Compared>& runs, const std::vector<KeyDifference>& differences) {
  nlohmann::ordered_json all{{"runs", nlohmann::ordered_json::array()}, {"keys", nlohmann::ordered_json::object()}};
  for (const Compared& run : runs)
    all["runs"].push_back({{"name", replace_invalid_utf8(run.summary.name)},
                           {"state", name_of(run.summary.state)},
                           {"step", run.summary.step},
                           {"last_loss", point_json(last(run.losses.training))},
                           {"best_loss", point_json(lowest(run.losses.training))},
                           {"last_validation_loss", point_json(last(run.losses.validation))},
                           {"best_validation_loss", point_json(lowest(run.losses.validation))}});
  for (const KeyDifference& one : differences) all["keys"][one.key] = one.json;
  return all.dump(2);
}

OutputFile page_of(const CompareArgs& args) {
  return report_page(args.report, "witan runs compare: --report");
}

void write_page(const OutputFile& page, const std::vector<Compared>& runs,
                const std::vector<KeyDifference>& differences) {
  constexpr int64_t kMostSteps = 20'000;  // steps read of each run: ten times as many as its curves keep
  std::vector<ComparedRun> compared;
  for (const Compared& run : runs) {
    const fs::path metrics = run.summary.folder / "metrics.jsonl";
    compared.push_back(
        {run.summary.name, fs::is_regular_file(metrics) ? read_thinned_metrics(metrics, kMostSteps) : Metrics()});
  }
  page.write(render_comparison(compared, {{"Outcome", outcome_rows(runs)}, {"What differs", key_rows(differences)}}));
}

ExitCode compare(Context& context, const CompareArgs& args) {
  if (!args.report.empty()) page_of(args).require_free();
  const std::vector<Compared> runs = read_runs(args, context.err);
  const std::vector<KeyDifference> differences = differences_of(runs);
  if (!args.report.empty()) write_page(page_of(args), runs, differences);
  if (args.json) {
    fmt::print(context.out, "{}\n", compare_json(runs, differences));
  } else {
    if (differences.empty()) fmt::print(context.out, "no key of their configurations differs\n\n");
    if (!differences.empty()) print_rows(context.out, "what differs", runs, key_rows(differences));
    print_rows(context.out, "outcome", runs, outcome_rows(runs));
    fmt::print(context.out, "{}", loss_picture(runs));
  }
  if (!args.report.empty()) fmt::print(context.err, "report       {}\n", args.report);
  return ExitCode::done;
}

}  // namespace

void add_runs_compare(CLI::App& runs, Context& context) {
  const auto args = std::make_shared<CompareArgs>();
  CLI::App* command = add_command(
      runs, context,
      {"compare", "Show in what runs differ, their losses, and their curves over each other",
       "Keys of the configuration in which they differ, last and best losses, and the training losses as a picture of "
       "letters; --report draws every chart of a run's report with a curve for each run, on one page that needs no "
       "network.",
       "witan runs compare base tuned\nwitan runs compare base tuned mine --report comparison.html"},
      [&context, args] { return compare(context, *args); });
  add_option(*command, "names", args->names, "Names of the runs, 2 to 8").type_name("").required();
  add_runs_folder(*command, args->runs_folder);
  add_option(*command, "--report", args->report,
             "Write the charts of all runs to this HTML file, which is new or an earlier page")
      .type_name("FILE");
  add_flag(*command, "--json", args->json, "Print JSON");
}

}  // namespace witan::cli
