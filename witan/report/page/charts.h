// The data of the report's charts for assets/charts.js and assets/heatmap.js.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "witan/report/events/curve.h"
#include "witan/report/events/metrics.h"

namespace witan {

struct Series {
  enum class Style { faint, line, dots, dashed };
  std::string name;
  Style style = Style::line;
  int colour = 1;  // --series-N of assets/style.css
  Curve points;    // at most kMostPoints
  Curve raw = {};  // what `points` is a smoothed form of, where no faint series before it shows that
  int run = 0;     // of which of the page's runs it is
  int dash = 0;    // which of its run's curves in a chart of several runs: each has a pattern of dashes; 0: none
};
constexpr size_t kMostPoints = 2000;

struct Chart {
  enum class Section { learning, layers, activations, experts, speed, gpus };
  Section section = Section::learning;
  std::string title, unit;
  std::vector<Series> series;  // at least one, none empty
  bool zero = false;           // the y axis starts at 0
};

// Every chart with data in the run, in the order of the page.
std::vector<Chart> make_charts(const Metrics& metrics);

struct HeatPanel {
  int64_t layer = 0;
  int64_t experts = 0;
  std::vector<std::vector<int>> load;  // [columns, experts], thousandths of the even share (1000 = 1 / experts)
};
struct HeatMap {
  std::vector<int64_t> steps;     // [columns], the last step of each
  std::vector<HeatPanel> panels;  // one per layer
};

// Nothing for a model without experts. Neighbouring events are averaged if there are too many to show. Events with
// another shape than the last one (a run resumed with another model) are skipped.
std::optional<HeatMap> make_heat_map(const std::vector<ExpertsEvent>& events);

// The charts of several runs over each other: of each of `charts`, one run's, the series that stand for the run, in the
// run's colour and with its name; the second and further ones are dashed. `names` are as many. A smoothed series takes
// its raw one along. Charts with a series for each layer or GPU are left out: a run has one colour.
std::vector<Chart> merge_charts(const std::vector<std::vector<Chart>>& charts, const std::vector<std::string>& names);
constexpr size_t kSeriesColours = 8;  // that assets/style.css has

// A vertical line through all charts: where the run was resumed from, or went back to.
struct Mark {
  int64_t step = 0;
  std::string text;
};

// Maps a run's steps to tokens and time, so that a page can show its curves over either.
struct RunAxis {
  int64_t first = 0, last = 0;  // steps
  int64_t tokens_per_step = 0;  // 0: not known, or not the same in all steps
  Curve clock;                  // seconds of training over steps, not decreasing
  std::vector<Mark> marks;      // by step
};
RunAxis make_run_axis(const Metrics& metrics);

// {"steps": [first, last], "runs": [...], "charts": [...]}: over all of the charts' steps. `runs` are those that
// Series::run counts.
nlohmann::ordered_json plot_data(const std::vector<Chart>& charts, const std::vector<RunAxis>& runs);
// {"steps": [first, last], "runs": [...], "charts": [...], "heat": {...}}.
nlohmann::ordered_json plot_data(const Metrics& metrics, const std::vector<Chart>& charts,
                                 const std::optional<HeatMap>& heat);

}  // namespace witan
