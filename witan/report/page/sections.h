// The parts of the report that need no scripts: figures, memory, samples, configuration. Each function returns HTML, or
// "" without data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/report/events/curve.h"
#include "witan/report/events/metrics.h"
#include "witan/report/page/charts.h"

namespace witan {

// Figures are SVG inside HTML: bars, shares and curves on logarithmic axes. Their colours are those of
// assets/style.css, light and dark.
struct FigureBar {
  std::string label;  // below the bar, or before it
  double value = 0;   // >= 0
  std::string hint;   // shown when the pointer rests on the bar, or after it
};

struct FigureText {
  std::string title, unit, readout;  // the readout stands at the right of the title
};

// Upright bars side by side, in this order. As many labels are shown as there is room for, and every other
// one of them on a narrow screen.
std::string bar_figure(const FigureText& text, const std::vector<FigureBar>& bars);

// Lying bars below each other, relative to the longest, with their hints after them.
std::string share_figure(const FigureText& text, const std::vector<FigureBar>& bars);

// A curve whose x and y are above 0, on logarithmic axes.
std::string log_curve_figure(const FigureText& text, const Curve& curve);

// A page without scripts. `body` is HTML; `source` says in the footer what the page was made from.
std::string still_page(std::string_view title, std::string_view body, std::string_view source);

std::string header_section(const Metrics& metrics, std::string_view name);
std::string key_figures(const Metrics& metrics);
std::string chart_section(std::string_view title, std::string_view inside, const std::vector<Chart>& charts,
                          Chart::Section section);
std::string heat_panels(const std::optional<HeatMap>& heat);  // to be put inside a chart_section
std::string memory_section(const std::vector<MemoryEvent>& memory);
std::string anomaly_section(const std::vector<AnomalyEvent>& anomalies);
std::string sample_section(const std::vector<SampleEvent>& samples);
std::string config_section(std::string_view config, const std::optional<RunEvent>& run);

}  // namespace witan
