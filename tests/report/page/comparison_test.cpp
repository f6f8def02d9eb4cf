#include "witan/report/page/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/synthetic.h"
#include "witan/report/page/charts.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
