#include "witan/report/page/still_figures.h"

#include <gtest/gtest.h>

#include <regex>

namespace witan {
namespace {

std::vector<double> numbers(const std::string& html, const std::string& pattern) {
  std::vector<double> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(html.begin(), html.end(), regex), end; at != end; ++at)
    found.push_back(std::stod((*at)[1]));
  return found;
}

TEST(StillFigures, BarsAreAsHighAsTheirValues) {
  const std::string html =
      bar_figure({"Bytes", "documents", "median 3"}, {{"1", 10, "ten"}, {"2", 0, ""}, {"4", 40, ""}});
  const auto heights = numbers(html, R"(<rect[^>]* height="([0-9.]+)\")");
  ASSERT_EQ(heights.size(), 3u);
  EXPECT_GT(heights[0], 0);
  EXPECT_EQ(heights[1], 0);
  EXPECT_NEAR(heights[2], 4 * heights[0], 0.02);
  const auto bottoms = numbers(html, R"(<rect x="[0-9.]+" y="([0-9.]+)\")");
  EXPECT_NEAR(bottoms[0] + heights[0], bottoms[2] + heights[2], 0.02) << "they stand on one line";
  EXPECT_NE(html.find("<title>ten</title>"), std::string::npos);
  EXPECT_NE(html.find("median 3"), std::string::npos);
}

TEST(StillFigures, LabelsHaveRoom) {
  std::vector<FigureBar> bars;
  for (int i = 0; i < 60; ++i) bars.push_back({std::to_string(100000 + i), 1, ""});
  const std::string html = bar_figure({"Bytes", "", ""}, bars);
  const auto at = numbers(html, "<text x=\"([0-9.]+)\" y=\"[0-9.]+\" text-anchor=\"middle\">1");
  ASSERT_GE(at.size(), 5u);
  for (size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i] - at[i - 1], 6 * 7) << "six digits of seven units";
}

// A narrow screen shows larger letters and leaves those out that stand between others.
TEST(StillFigures, NarrowScreensShowEveryOtherLabel) {
  std::vector<FigureBar> bars;
  for (int i = 0; i < 60; ++i) bars.push_back({std::to_string(100000 + i), 1, ""});
  std::string html = bar_figure({"Bytes", "", ""}, bars);
  EXPECT_NE(html.find("<svg class=\"still\""), std::string::npos);
  html = std::regex_replace(html, std::regex("<g class=\"between\"><text[^>]*>[0-9]*</text>\n</g>"), "");
  const auto at = numbers(html, "<text x=\"([0-9.]+)\" y=\"[0-9.]+\" text-anchor=\"middle\">1");
  ASSERT_GE(at.size(), 3u);
  for (size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i] - at[i - 1], 2 * 6 * 7);
}

// Labels of any length leave room for the bars: they have a column, and on narrow screens a row, of their own.
TEST(StillFigures, SharesHaveALayoutOfTheirOwn) {
  const std::string html = share_figure({"Letters", "", ""}, {{"Latin", 8, "80 %"}});
  EXPECT_NE(html.find("<div class=\"stack shares\">\n<span>Latin</span><span class=\"bar\">"), std::string::npos)
      << html;
}

TEST(StillFigures, SharesAreRelativeToTheLongest) {
  const std::string html = share_figure({"Letters", "by script", ""}, {{"Latin", 8, "80 %"}, {"Han", 2, "20 %"}});
  EXPECT_EQ(numbers(html, "width:([0-9.]+)%"), (std::vector<double>{100, 25}));
}

TEST(StillFigures, CurvesAreLogarithmic) {
  const std::string html = log_curve_figure({"Frequency", "", ""}, {{1, 1000}, {10, 100}, {100, 10}});
  std::smatch path;
  ASSERT_TRUE(std::regex_search(html, path,
                                std::regex(R"(d="M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)\")")));
  const auto number = [&](int i) { return std::stod(path[static_cast<size_t>(i)]); };
  EXPECT_NEAR(number(3) - number(1), number(5) - number(3), 0.02) << "powers of the law of Zipf lie on a line";
  EXPECT_NEAR(number(4) - number(2), number(6) - number(4), 0.02);
  EXPECT_GT(number(4), number(2)) << "y grows downwards in SVG";
}

TEST(StillFigures, TakeNothingAndOne) {
  EXPECT_EQ(bar_figure({"Bytes", "", ""}, {}).find("<svg"), std::string::npos);
  EXPECT_EQ(log_curve_figure({"Frequency", "", ""}, {}).find("<svg"), std::string::npos);
  EXPECT_EQ(log_curve_figure({"Frequency", "", ""}, {{1, 1}}).find("nan"), std::string::npos);
}

TEST(StillFigures, PagesNeedNoScriptAndLetNobodyAddOne) {
  const std::string page = still_page("<script>", share_figure({"<b>", "", ""}, {{"<i>", 1, "&"}}), "\"my\".jsonl");
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
}

}  // namespace
}  // namespace witan
