#include "witan/report/page/page.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/markup.h"
#include "witan/report/page/sections.h"

namespace witan {
namespace {

std::string chart_sections(const std::vector<Chart>& charts, const std::optional<HeatMap>& heat) {
  using enum Chart::Section;
  return chart_section("Learning", "", charts, learning) + chart_section("Layers", "", charts, layers) +
         chart_section("Activations", "", charts, activations) +
         chart_section("Experts", heat_panels(heat), charts, experts) + chart_section("Speed", "", charts, speed) +
         chart_section("GPUs", "", charts, gpus);
}

std::string table_section(const ComparisonTable& table, const std::vector<ComparedRun>& runs) {
  if (table.rows.empty()) return "";
  std::string out =
      fmt::format("<section>\n<h2>{}</h2>\n<div class=\"card scroll compared\"><table>\n<thead><tr><th></th>",
                  escape_html(table.title));
  for (const ComparedRun& run : runs) out += "<th>" + escape_html(run.name) + "</th>";
  out += "</tr></thead>\n<tbody>\n";
  for (const ComparisonTable::Row& row : table.rows) {
    out += "<tr><td>" + escape_html(row.what) + "</td>";
    for (const std::string& value : row.values) out += "<td>" + escape_html(value) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n</section>\n";
}

// `live` and `live_js` are what a live page has beyond a frozen one, `refresh` is in the head.
std::string fill_page(const PageParts& parts, std::string_view may_ask, std::string_view live, std::string_view live_js,
                      std::string_view refresh) {
  const std::string body = fmt::format(
      "<div data-part=\"summary\">\n{}</div>\n<div id=\"controls\"></div>\n<div data-part=\"charts\">\n{}</div>\n"
      "<div data-part=\"rest\">\n{}</div>",
      parts.summary, parts.charts, parts.rest);
  const std::string data = script_json(parts.data);
  return fill(assets::kPageHtml, {{"title", escape_html(parts.title)},
                                  {"may_ask", may_ask},
                                  {"refresh", refresh},
                                  {"body", body},
                                  {"data", data},
                                  {"live", live},
                                  {"style", assets::kStyleCss},
                                  {"charts_js", assets::kChartsJs},
                                  {"heatmap_js", assets::kHeatmapJs},
                                  {"controls_js", assets::kControlsJs},
                                  {"live_js", live_js},
                                  {"dygraphs_js", assets::kDygraphsJs},
                                  {"dygraphs_css", assets::kDygraphsCss},
                                  {"dygraphs_license", assets::kDygraphsLicense}});
}

}  // namespace

PageParts report_parts(const Metrics& metrics, std::string_view config, const std::string& name,
                       const StepAnswers& answers) {
  const std::vector<Chart> charts = make_charts(metrics);
  const std::optional<HeatMap> heat = make_heat_map(metrics.experts);
  const std::string& shown = metrics.run ? metrics.run->name : name;
  return {.title = shown + " · Witan",
          .summary = header_section(metrics, shown) + key_figures(metrics),
          .charts = chart_sections(charts, heat),
          .rest = anomaly_section(metrics.anomalies) + memory_section(metrics.memory) + answer_section(answers) +
                  sample_section(metrics.samples) + config_section(config, metrics.run),
          .data = plot_data(metrics, charts, heat)};
}

PageParts comparison_parts(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables) {
  std::string title;
  std::vector<std::string> names;
  std::vector<std::vector<Chart>> each;
  std::vector<RunAxis> axes;
  for (const ComparedRun& run : runs) {
    title += (title.empty() ? "" : " · ") + run.name;
    names.push_back(run.name);
    each.push_back(make_charts(run.metrics));
    axes.push_back(make_run_axis(run.metrics));
  }
  const std::vector<Chart> charts = merge_charts(each, names);
  std::string summary =
      fmt::format("<header><p class=\"kicker\">Comparison of runs</p><h1>{}</h1></header>\n", escape_html(title));
  for (const ComparisonTable& table : tables) summary += table_section(table, runs);
  return {.title = title + " · Witan",
          .summary = std::move(summary),
          .charts = chart_sections(charts, std::nullopt),
          .rest = "",
          .data = plot_data(charts, axes)};
}

std::string frozen_page(const PageParts& parts, double refresh_seconds) {
  const std::string refresh =
      refresh_seconds > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{:.0f}\">\n", refresh_seconds) : "";
  return fill_page(parts, "", "null", "", refresh);
}

std::string live_page(const PageParts& parts, std::string_view live) {
  return fill_page(parts, "; connect-src 'self'", live, assets::kLiveJs, "");
}

nlohmann::ordered_json parts_json(const PageParts& parts) {
  return {{"summary", parts.summary}, {"charts", parts.charts}, {"rest", parts.rest}};
}

std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables) {
  return frozen_page(comparison_parts(runs, tables));
}

std::string render_report(const Metrics& metrics, std::string_view config, double refresh_seconds) {
  return frozen_page(report_parts(metrics, config), refresh_seconds);
}

std::string render_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds) {
  require<DataError>(!metrics.steps.empty() || !metrics.evals.empty(), (run_folder / "metrics.jsonl").string(),
                     ": no step is recorded yet, so there is nothing to report; train first");
  constexpr uint64_t kMostConfig = uint64_t{1} << 20;
  const fs::path config = run_folder / "config.toml";
  return frozen_page(report_parts(metrics, fs::exists(config) ? read_file(config, kMostConfig) : "",
                                  run_folder.filename().string(), step_answers(run_folder)),
                     refresh_seconds);
}

OutputFile report_page(fs::path path, std::string flag) {
  constexpr std::string_view kFooter = "<footer>Made by Witan from metrics.jsonl.";  // of page.html
  return {std::move(path), std::move(flag), "page",
          [](std::string_view bytes) { return bytes.find(kFooter) != std::string_view::npos; }};
}

MetricsFollower follow_for_report(const fs::path& run_folder) {
  constexpr MetricsFollower::Most kMost = {
      .steps = 4000, .experts = 125, .layers = 1000, .activations = 500, .gpus = 1000};
  return MetricsFollower(run_folder / "metrics.jsonl", kMost, MetricsFollower::OnDamage::left_out);
}

fs::path write_report(const fs::path& run_folder) {
  const fs::path recorded = run_folder / "metrics.jsonl";
  require<IoError>(fs::exists(recorded), recorded.string(), " does not exist: nothing was recorded of this run");
  MetricsFollower follower = follow_for_report(run_folder);
  follower.read_more();
  return write_report(run_folder, follower.metrics());
}

fs::path write_report(const fs::path& run_folder, const Metrics& metrics, double refresh_seconds) {
  const std::string page = render_report(run_folder, metrics, refresh_seconds);
  write_file_atomically(run_folder / "report.html", page);
  return run_folder / "report.html";
}

}  // namespace witan
