#include "witan/report/page/sections.h"

#include <gtest/gtest.h>

#include <regex>

#include "report/synthetic.h"

namespace witan {
namespace {

bool contains(const std::string& text, const std::string& piece) {
  return text.find(piece) != std::string::npos;
}

Metrics steps_with_losses(int64_t count) {
  Metrics m = synthetic::run(count, 0, 0);
  for (StepEvent& e : m.steps) e.loss = e.step % 2 == 0 ? 4 : 2;
  return m;
}

// Losses are smoothed only if labelled so.
TEST(KeyFigures, ShowTheLastLossOfFewSteps) {
  const std::string few = key_figures(steps_with_losses(6));
  EXPECT_TRUE(contains(few, ">4.000</dd><dd class=\"remark\">nats per token, step " +
                                std::to_string(steps_with_losses(6).steps.back().step)))
      << few;
  EXPECT_FALSE(contains(few, "smoothed")) << few;
  for (const int64_t count : {20, 100, 199, 1000}) {
    const std::string many = key_figures(steps_with_losses(count));
    EXPECT_TRUE(contains(many, "nats per token, smoothed")) << count;
    EXPECT_FALSE(contains(many, ">4.000</dd>")) << count << ": " << many;
  }
}

TEST(KeyFigures, ShowTheRewardOfSampledAnswers) {
  Metrics m = steps_with_losses(2);
  EXPECT_FALSE(contains(key_figures(m), "Reward"));
  for (StepEvent& e : m.steps) e.scalars.set(kReward, 0.75);
  const std::string figures = key_figures(m);
  EXPECT_TRUE(contains(figures, ">0.750</dd><dd class=\"remark\">of sampled answers, step ")) << figures;
  EXPECT_TRUE(contains(figures, "surrogate of policy gradients, step ")) << figures;
  EXPECT_FALSE(contains(figures, ">4.000</dd><dd class=\"remark\">nats per token")) << figures;
}

TEST(KeyFigures, ShowTheStepOfAnEvaluation) {
  Metrics m = synthetic::run(50, 0, 0);
  m.evals = {{20, 3.5, 2.0}};
  const std::string figures = key_figures(m);
  EXPECT_TRUE(contains(figures, "nats per token, step 20")) << figures;
  EXPECT_TRUE(contains(figures, "; step 20</dd>")) << figures;
}

TEST(KeyFigures, LimitSpeedsToTheCeiling) {
  Metrics m = synthetic::run(50, 0, 0);
  m.run->ceiling_gflops = 1;
  for (StepEvent& e : m.steps) e.gflops = 30;
  m.steps.back().gflops = 40;
  EXPECT_TRUE(contains(key_figures(m), "30\u00a0GFLOP/s, 75\u00a0% of the ceiling")) << key_figures(m);
}

// On a narrow tile, "59" and "%" must not be on different lines.
TEST(KeyFigures, DoNotBreakBetweenNumberAndUnit) {
  Metrics m = synthetic::run(50, 0, 0);
  m.steps.back().elapsed_s = 659;
  m.evals = {{20, 3.5, 2.0}};
  m.baselines = {{"a bigram", 4.0}};
  m.run->total_steps = 2000;
  const std::string figures = key_figures(m);
  EXPECT_TRUE(contains(figures, ">10\u00a0min 59\u00a0s<")) << "may break after min: " << figures;
  EXPECT_TRUE(contains(figures, "50.0\u00a0% below a bigram")) << figures;
  EXPECT_TRUE(contains(figures, " of 2000<")) << "not a unit: " << figures;
}

TEST(KeyFigures, ShowTheSpeedOfTheMedianStep) {
  Metrics m = synthetic::run(5, 0, 0);
  m.run->ceiling_gflops = 0;
  const double speeds[] = {1000, 31'000, 30'000, 32'000, 15'000};
  for (size_t i = 0; i < 5; ++i) m.steps[i].tokens_per_s = speeds[i], m.steps[i].gflops = speeds[i] / 1000;
  EXPECT_TRUE(
      contains(key_figures(m),
               "<dt>Tokens per second</dt><dd class=\"value\">30.0\u00a0K</dd><dd class=\"remark\">in the median step; "
               "30\u00a0GFLOP/s</dd>"))
      << key_figures(m);
}

TEST(Samples, ShowEscapedSamplesNewestFirst) {
  std::vector<SampleEvent> samples;
  for (int64_t step = 1; step <= 20; ++step) samples.push_back({step, "<b>", "text " + std::to_string(step)});
  const std::string section = sample_section(samples);
  EXPECT_TRUE(contains(section, "The last 12 of 20; samples.jsonl has all")) << section;
  EXPECT_LT(section.find("Step 20,"), section.find("Step 19,"));
  EXPECT_TRUE(contains(section, "Step 9,"));
  EXPECT_FALSE(contains(section, "Step 8,"));
  EXPECT_TRUE(contains(section, "&lt;b&gt;"));
  EXPECT_FALSE(contains(section, "<b>"));
}

std::vector<double> numbers(const std::string& html, const std::string& pattern) {
  std::vector<double> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(html.begin(), html.end(), regex), end; at != end; ++at)
    found.push_back(std::stod((*at)[1]));
  return found;
}

TEST(StillFigures, BarHeightsFollowTheirValues) {
  const std::string html =
      bar_figure({"Bytes", "documents", "median 3"}, {{"1", 10, "ten"}, {"2", 0, ""}, {"4", 40, ""}});
  const auto heights = numbers(html, R"(<rect[^>]* height="([0-9.]+)\")");
  ASSERT_EQ(heights.size(), 3u);
  EXPECT_GT(heights[0], 0);
  EXPECT_EQ(heights[1], 0);
  EXPECT_NEAR(heights[2], 4 * heights[0], 0.02);
  const auto bottoms = numbers(html, R"(<rect x="[0-9.]+" y="([0-9.]+)\")");
  EXPECT_NEAR(bottoms[0] + heights[0], bottoms[2] + heights[2], 0.02) << "on a common baseline";
  EXPECT_NE(html.find("<title>ten</title>"), std::string::npos);
  EXPECT_NE(html.find("median 3"), std::string::npos);
}

TEST(StillFigures, LabelsDoNotOverlap) {
  std::vector<FigureBar> bars;
  for (int i = 0; i < 60; ++i) bars.push_back({std::to_string(100000 + i), 1, ""});
  const std::string html = bar_figure({"Bytes", "", ""}, bars);
  const auto at = numbers(html, "<text x=\"([0-9.]+)\" y=\"[0-9.]+\" text-anchor=\"middle\">1");
  ASSERT_GE(at.size(), 5u);
  for (size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i] - at[i - 1], 6 * 7) << "six digits of seven units";
}

// Narrow screens have larger letters and omit every other label.
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

// Labels of any length leave room for the bars: they have their own column, or row on narrow screens.
TEST(StillFigures, SharesHaveTheirOwnLayout) {
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
  EXPECT_NEAR(number(3) - number(1), number(5) - number(3), 0.02) << "Zipf's law is a line on logarithmic axes";
  EXPECT_NEAR(number(4) - number(2), number(6) - number(4), 0.02);
  EXPECT_GT(number(4), number(2)) << "y grows downwards in SVG";
}

TEST(StillFigures, HandleNoneAndOneValue) {
  EXPECT_EQ(bar_figure({"Bytes", "", ""}, {}).find("<svg"), std::string::npos);
  EXPECT_EQ(log_curve_figure({"Frequency", "", ""}, {}).find("<svg"), std::string::npos);
  EXPECT_EQ(log_curve_figure({"Frequency", "", ""}, {{1, 1}}).find("nan"), std::string::npos);
}

TEST(StillFigures, PagesUseAndAllowNoScript) {
  const std::string page = still_page("<script>", share_figure({"<b>", "", ""}, {{"<i>", 1, "&"}}), "\"my\".jsonl");
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
}

}  // namespace
}  // namespace witan
