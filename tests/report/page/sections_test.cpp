#include "witan/report/page/sections.h"

#include <gtest/gtest.h>

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

// What is called smoothed is.
TEST(KeyFigures, TheLossOfAFewStepsIsThatOfTheLast) {
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

TEST(KeyFigures, AnEvaluationSaysItsStep) {
  Metrics m = synthetic::run(50, 0, 0);
  m.evals = {{20, 3.5, 2.0}};
  const std::string figures = key_figures(m);
  EXPECT_TRUE(contains(figures, "nats per token, step 20")) << figures;
  EXPECT_TRUE(contains(figures, "; step 20</dd>")) << figures;
}

TEST(KeyFigures, NoSpeedIsAboveTheCeiling) {
  Metrics m = synthetic::run(50, 0, 0);
  m.run->ceiling_gflops = 1;
  for (StepEvent& e : m.steps) e.gflops = 30;
  m.steps.back().gflops = 40;
  EXPECT_TRUE(contains(key_figures(m), "30\u00a0GFLOP/s, 75\u00a0% of the ceiling")) << key_figures(m);
}

// A tile is narrow: "59" at the end of a line and "%" at the beginning of the next are two things.
TEST(KeyFigures, NoLineEndsBetweenANumberAndItsUnit) {
  Metrics m = synthetic::run(50, 0, 0);
  m.steps.back().elapsed_s = 659;
  m.evals = {{20, 3.5, 2.0}};
  m.baselines = {{"a bigram", 4.0}};
  m.run->total_steps = 2000;
  const std::string figures = key_figures(m);
  EXPECT_TRUE(contains(figures, ">10\u00a0min 59\u00a0s<")) << "which may be two lines: " << figures;
  EXPECT_TRUE(contains(figures, "50.0\u00a0% below a bigram")) << figures;
  EXPECT_TRUE(contains(figures, " of 2000<")) << "no unit: " << figures;
}

TEST(KeyFigures, TheSpeedIsThatOfTheMedianStepAndSaysSo) {
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

TEST(Samples, TheNewestComeFirstAndAreEscaped) {
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

}  // namespace
}  // namespace witan
