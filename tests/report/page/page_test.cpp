#include "witan/report/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/synthetic.h"
#include "witan/report/page/assets.h"
#include "witan/report/page/charts.h"
#include "witan/report/page/markup.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Page, AFrozenOneAsksForNothingAndALiveOneItsServerAlone) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "a = 1\n");
  const std::string frozen = frozen_page(parts), live = live_page(parts, R"({"version":1,"runs":[]})");
  EXPECT_THAT(frozen, Not(HasSubstr("connect-src")));
  EXPECT_THAT(frozen, Not(HasSubstr("fetch(")));
  EXPECT_THAT(live, HasSubstr("default-src 'none'"));
  EXPECT_THAT(live, HasSubstr("; connect-src 'self'\">"));
  EXPECT_THAT(live, HasSubstr("fetch(\"update?"));
  EXPECT_THAT(live, HasSubstr(R"(id="live">{"version":1,"runs":[]}</script>)"));
  for (const std::string_view script : {assets::kControlsJs, assets::kLiveJs})
    EXPECT_EQ(script.find("</script"), std::string_view::npos);
}

TEST(Page, BothHaveTheSamePartsAndControls) {
  const PageParts parts = report_parts(synthetic::run(50, 2, 4), "");
  for (const std::string& page : {frozen_page(parts), live_page(parts, "{}")}) {
    for (const std::string& part : {parts.summary, parts.charts, parts.rest, script_json(parts.data)})
      EXPECT_THAT(page, HasSubstr(part));
    EXPECT_THAT(page, HasSubstr(R"(<div id="controls"></div>)"));
    EXPECT_THAT(page, HasSubstr(std::string(assets::kControlsJs)));
    EXPECT_THAT(page, Not(ContainsRegex(R"(\{\{[a-z_]+\}\})")));
  }
}

TEST(Page, ARunThatRecordedNothingHasItsName) {
  const PageParts parts = report_parts({}, "", "a<b");
  EXPECT_EQ(parts.title, "a<b · Witan");
  EXPECT_THAT(parts.summary, HasSubstr("<h1>a&lt;b</h1>\n<p class=\"facts\">nothing recorded</p>"));
  EXPECT_EQ(report_parts(synthetic::run(5, 0, 0), "", "b").title, "first-light · Witan") << "its metrics tell";
}

// On a narrow screen, where the values of several runs do not fit beside them.
TEST(Page, TheLabelsOfAComparisonStayWhileItsValuesAreScrolled) {
  const Metrics m = synthetic::run(5, 0, 0);
  const PageParts parts = comparison_parts({{"a", m}, {"b", m}}, {{"Latest", {{"step", {"5", "5"}}}}});
  EXPECT_THAT(parts.summary,
              ContainsRegex("<div class=\"card scroll compared\"><table>\n<thead><tr><th></th><th>a</th>"));
  EXPECT_THAT(
      std::string(assets::kStyleCss),
      AllOf(HasSubstr(".scroll th:first-child, .scroll td:first-child { position: sticky; left: 0;"),
            HasSubstr("  .compared th, .compared td { min-width: 92px; padding-left: 8px; white-space: normal;")));
}

TEST(Page, PartsAreJson) {
  Metrics m = synthetic::run(5, 0, 0);
  m.run->name = "\"</div>\xff";
  const auto json = nlohmann::json::parse(parts_json(report_parts(m, "")).dump());
  EXPECT_THAT(json["summary"].get<std::string>(), HasSubstr("&quot;&lt;/div&gt;\xEF\xBF\xBD"));
  EXPECT_THAT(json["charts"].get<std::string>(), HasSubstr("data-chart"));
}

using ::testing::ElementsAre;

nlohmann::json data_of(const std::string& page) {
  const std::string open = R"(id="data">)";
  const size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

const Chart& chart_of(const std::vector<Chart>& charts, const std::string& title) {
  for (const Chart& chart : charts)
    if (chart.title == title) return chart;
  throw std::runtime_error("no chart " + title);
}

TEST(Comparison, ChartsHaveACurveOfEachRunInItsColour) {
  const std::vector<std::vector<Chart>> each = {make_charts(synthetic::run(300, 2, 4)),
                                                make_charts(synthetic::run(40, 0, 0))};
  const std::vector<Chart> charts = merge_charts(each, {"a", "b"});
  const Chart& norm = chart_of(charts, "Gradient norm");
  ASSERT_EQ(norm.series.size(), 2u) << "smoothed alone";
  EXPECT_EQ(norm.series[0].name, "a");
  EXPECT_EQ(norm.series[1].name, "b");
  EXPECT_EQ(norm.series[0].colour, 1);
  EXPECT_EQ(norm.series[1].colour, 2);
  EXPECT_EQ(norm.series[0].points, chart_of(each[0], "Gradient norm").series[1].points);
  const Chart& loss = chart_of(charts, "Loss");
  std::vector<std::string> names;
  for (const Series& series : loss.series) names.push_back(series.name);
  EXPECT_THAT(names, ElementsAre("a", "a validation", "b", "b validation"));
  EXPECT_EQ(chart_of(charts, "Busiest expert").series[0].name, "a") << "which only one of them has";
  for (const Chart& chart : charts)
    for (const Series& series : chart.series) EXPECT_NE(series.style, Series::Style::dashed) << "a baseline is no run";
}

TEST(Comparison, ThePageHasTablesAndStepsOfTheLongestRun) {
  const std::string page =
      render_comparison({{"short <run>", synthetic::run(20, 0, 0)}, {"long", synthetic::run(90, 0, 0)}},
                        {{"Outcome", {{"best loss", {"1.5", "1.25"}}}}, {"Nothing", {}}});
  EXPECT_THAT(page, HasSubstr("<td>best loss</td><td>1.5</td><td>1.25</td>"));
  EXPECT_THAT(page, HasSubstr("<h1>short &lt;run&gt; · long</h1>"));
  EXPECT_THAT(page, HasSubstr("<th>short &lt;run&gt;</th><th>long</th>"));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Nothing</h2>")));
  EXPECT_THAT(page, Not(HasSubstr("{{data}}"))) << "every place is filled";
  const nlohmann::json data = data_of(page);
  EXPECT_EQ(data["steps"], nlohmann::json({1, 90}));
  EXPECT_EQ(data["charts"][0]["series"][0]["name"], "short <run>");
}

TEST(Comparison, OfRunsWithoutAStepThereIsNoChart) {
  const std::string page = render_comparison({{"a", {}}, {"b", {}}}, {});
  EXPECT_EQ(data_of(page)["charts"].size(), 0u);
}

}  // namespace
}  // namespace witan
