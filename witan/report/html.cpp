#include "witan/report/html.h"

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/report/assets.h"
#include "witan/report/charts.h"
#include "witan/report/markup.h"
#include "witan/report/sections.h"

namespace witan {

std::string render_report(const Metrics& metrics, std::string_view config) {
  using Section = Chart::Section;
  const std::vector<Chart> charts = make_charts(metrics);
  const std::optional<HeatMap> heat = make_heat_map(metrics.experts);
  const std::string body = header_section(metrics) + key_figures(metrics) +
                           chart_section("Learning", "", charts, Section::learning) +
                           chart_section("Experts", heat_panels(heat), charts, Section::experts) +
                           chart_section("Speed", "", charts, Section::speed) + memory_section(metrics.memory) +
                           sample_section(metrics.samples) + config_section(config, metrics.run);
  const std::string title = escape_html(metrics.run ? metrics.run->name + " · Witan" : "Witan");
  return fill(assets::kPageHtml, {{"title", title},
                                  {"body", body},
                                  {"data", script_json(plot_data(metrics, charts, heat))},
                                  {"style", assets::kStyleCss},
                                  {"charts_js", assets::kChartsJs},
                                  {"heatmap_js", assets::kHeatmapJs},
                                  {"dygraphs_js", assets::kDygraphsJs},
                                  {"dygraphs_css", assets::kDygraphsCss},
                                  {"dygraphs_license", assets::kDygraphsLicense}});
}

fs::path write_report(const fs::path& run_folder) {
  const fs::path source = run_folder / "metrics.jsonl", config = run_folder / "config.toml";
  const Metrics metrics = read_metrics(source);
  require<DataError>(!metrics.steps.empty() || !metrics.evals.empty(), source.string(),
                     ": no step is recorded yet, so there is nothing to report; train first");
  constexpr uint64_t kMostConfig = uint64_t{1} << 20;
  const std::string page = render_report(metrics, fs::exists(config) ? read_file(config, kMostConfig) : "");
  write_file_atomically(run_folder / "report.html", page);
  return run_folder / "report.html";
}

}  // namespace witan
