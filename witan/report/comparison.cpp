#include "witan/report/comparison.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "witan/report/assets.h"
#include "witan/report/charts.h"
#include "witan/report/markup.h"
#include "witan/report/sections.h"

namespace witan {
namespace {

std::string table_section(const ComparisonTable& table, const std::vector<ComparedRun>& runs) {
  if (table.rows.empty()) return "";
  std::string out = fmt::format("<section>\n<h2>{}</h2>\n<div class=\"card scroll\"><table>\n<thead><tr><th></th>",
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

}  // namespace

std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<ComparisonTable>& tables) {
  using Section = Chart::Section;
  std::string title;
  std::vector<std::string> names;
  std::vector<std::vector<Chart>> each;
  for (const ComparedRun& run : runs) {
    title += (title.empty() ? "" : " · ") + run.name;
    names.push_back(run.name);
    each.push_back(make_charts(run.metrics));
  }
  const std::vector<Chart> charts = merge_charts(each, names);
  std::string body =
      fmt::format("<header><p class=\"kicker\">Comparison of runs</p><h1>{}</h1></header>\n", escape_html(title));
  for (const ComparisonTable& table : tables) body += table_section(table, runs);
  body += chart_section("Learning", "", charts, Section::learning) +
          chart_section("Experts", "", charts, Section::experts) + chart_section("Speed", "", charts, Section::speed);
  return fill(assets::kPageHtml, {{"title", escape_html(title + " · Witan")},
                                  {"body", body},
                                  {"data", script_json(plot_data(charts))},
                                  {"style", assets::kStyleCss},
                                  {"charts_js", assets::kChartsJs},
                                  {"heatmap_js", assets::kHeatmapJs},
                                  {"dygraphs_js", assets::kDygraphsJs},
                                  {"dygraphs_css", assets::kDygraphsCss},
                                  {"dygraphs_license", assets::kDygraphsLicense}});
}

}  // namespace witan
