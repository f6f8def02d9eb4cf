// A page of charts: the report of one run, or a comparison of several. A page is one HTML file that needs no network;
// the live page that `witan watch` serves is the same page, which polls for the parts that have changed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "witan/report/events/metrics.h"
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

// The report of one run from its metrics and config.toml. `name` names the run if its metrics do not.
PageParts report_parts(const Metrics& metrics, std::string_view config, const std::string& name = "run");
// Several runs: the tables, and the runs' curves in the same charts. Colours tell apart kSeriesColours runs at most.
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

}  // namespace witan
