// A page of charts: the report of one run, or a comparison of several. A page is one HTML file that needs no network;
// the live page that `witan watch` serves is the same page, which polls for the parts that have changed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/output_file.h"
#include "witan/report/events/metrics.h"
#include "witan/report/events/metrics_follower.h"
#include "witan/report/page/answers.h"
#include "witan/report/page/charts.h"

namespace witan {

struct ComparedRun {
  std::string name;
  Metrics metrics;
};

// A table with a column for each run.
struct ComparisonTable {
  std::string title;
  struct Row {
    std::string what;
    std::vector<std::string> values;  // one for each run
  };
  std::vector<Row> rows;
};

struct PageParts {
  std::string title;                                               // plain text
  std::string summary;                                             // HTML above the charts
  std::string charts;                                              // HTML placeholders of the charts
  std::string rest;                                                // HTML below the charts
  nlohmann::ordered_json data = nlohmann::ordered_json::object();  // plot_data()
};

// The report of one run from its metrics and config.toml. `name` names the run if its metrics do not; `answers` are
// those that it shows of sampled batches.
PageParts report_parts(const Metrics& metrics, std::string_view config, const std::string& name = "run",
                       const StepAnswers& answers = {});
// Several runs: the tables, and the runs' curves in the same charts. Colours distinguish at most kSeriesColours runs.
PageParts comparison_parts(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables);

// A page without updates. Its content security policy forbids it to load anything except, every `refresh_seconds` if
// above 0, itself.
std::string frozen_page(const PageParts& parts, double refresh_seconds = 0);
// A page that updates itself from its own server. `live` is the JSON that assets/live.js begins with.
std::string live_page(const PageParts& parts, std::string_view live);
// {"summary": HTML, "charts": HTML, "rest": HTML}
nlohmann::ordered_json parts_json(const PageParts& parts);

// The frozen page of comparison_parts().
std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables);

// The page. It loads nothing from the network, and its content security policy forbids that to any text of the run.
std::string render_report(const Metrics& metrics, std::string_view config, double refresh_seconds = 0);

// Renders the report with run_folder/config.toml, if that exists. Throws DataError for a run without a single step or
// evaluation, and IoError.
std::string render_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

// A page of a report or comparison, which `flag` of a command names. The flag follows its command.
OutputFile report_page(fs::path path, std::string flag);

// Follows the metrics that a run's report is written from, while it trains and at its end, in memory that does not grow
// with the run. Each curve has 2000 points at most. Damaged lines are left out.
MetricsFollower follow_for_report(const fs::path& run_folder);

// Reads run_folder/metrics.jsonl so and, if it exists, config.toml; writes run_folder/report.html and returns its path.
// Throws IoError, and DataError for a run without a single step or evaluation.
fs::path write_report(const fs::path& run_folder);
// Writes the report of metrics that were read already. `refresh_seconds`: the page reloads itself after this time, for
// a run that goes on and rewrites its report; 0: never.
fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds = 0);

}  // namespace witan
