// A page of charts: the report of one run, or several runs over each other. It is one file that needs no network; the
// live page that `witan watch` serves is the same page, which asks now and then for what is new in its parts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "witan/report/page/charts.h"
#include "witan/report/page/comparison.h"
#include "witan/report/events/metrics.h"

namespace witan {

struct PageParts {
  std::string title;                                               // plain text
  std::string summary;                                             // HTML: what stands above the charts
  std::string charts;                                              // the charts' places
  std::string rest;                                                // what stands below them
  nlohmann::ordered_json data = nlohmann::ordered_json::object();  // plot_data()
};

// Of one run, from its metrics and config.toml. `name` is the run's where its metrics do not tell it.
PageParts report_parts(const Metrics& metrics, std::string_view config, const std::string& name = "run");
// Of several, as render_comparison() shows them.
PageParts comparison_parts(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables);

// A page that never changes. Its content security policy forbids it to load anything. `refresh_seconds` above 0: but
// for itself, every so many seconds, from where it came.
std::string frozen_page(const PageParts& parts, double refresh_seconds = 0);
// A page that updates itself: `live` is the JSON that assets/live.js begins with. It may ask its own server alone.
std::string live_page(const PageParts& parts, std::string_view live);
// {"summary": HTML, "charts": HTML, "rest": HTML}
nlohmann::ordered_json parts_json(const PageParts& parts);

}  // namespace witan
