#include "witan/report/events/metrics_scan.h"

#include <gtest/gtest.h>

#include <fstream>

#include "report/synthetic.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using synthetic::TempFolder;

class MetricsScanTest : public ::testing::Test {
 protected:
  // A run of so many steps, evaluated after every tenth.
  void write(int64_t steps, bool ends) {
    MetricsWriter out(path_);
    out.append(*synthetic::run(20, 2, 4).run);
    for (int64_t n = 1; n <= steps; ++n) {
      out.append(synthetic::step(n, steps, true));
      out.append(synthetic::experts(n, steps, 2, 4));
      if (n % 10 != 0) continue;
      out.append(EvalEvent{n, 3.0 - 0.001 * static_cast<double>(n), 2});
      out.append(EvalEvent{n, 9, 8, "code"});
    }
    if (ends) out.append(EndEvent{"finished"});
  }
  void put(const std::string& text) const { std::ofstream(path_, std::ios::binary | std::ios::app) << text; }

  TempFolder folder_;
  const fs::path path_ = folder_ / "metrics.jsonl";
};

// Against the reader of whole files.
TEST_F(MetricsScanTest, TheEndOfTheFileSaysWhereARunStands) {
  write(57, true);
  const Metrics whole = read_metrics(path_);
  const MetricsStanding standing = read_standing(path_);
  ASSERT_TRUE(standing.run && standing.step && standing.eval && standing.end);
  EXPECT_EQ(standing.run->tokens_per_step, whole.run->tokens_per_step);
  EXPECT_EQ(standing.step->step, 57);
  EXPECT_EQ(standing.step->loss, whole.steps.back().loss);
  EXPECT_EQ(standing.eval->step, 50);
  EXPECT_EQ(standing.eval->loss, whole.evals.back().loss) << "and not that of a set of one's own";
  EXPECT_EQ(standing.end->reason, "finished");
}

TEST_F(MetricsScanTest, WhatComesAfterAnEndIsARunThatWentOn) {
  write(3, true);
  put(format_event(synthetic::step(4, 9, false)) + "\n");
  EXPECT_FALSE(read_standing(path_).end);
  EXPECT_EQ(read_standing(path_).step->step, 4);
}

TEST_F(MetricsScanTest, TheLastSaveIsFoundWhateverFollowsIt) {
  put("");
  EXPECT_FALSE(read_last_save(path_));
  put(format_event(synthetic::step(1, 9, false)) + "\n");
  EXPECT_FALSE(read_last_save(path_));
  put(format_event(SaveEvent{1, 0.5, 0}) + "\n" + format_event(synthetic::step(2, 9, false)) + "\n" +
      format_event(SaveEvent{2, 0.5, 0}) + "\n{\"kind\":\"save\",\"step\":what}\n{\"kind\":\"save\",\"st");
  ASSERT_TRUE(read_last_save(path_));
  EXPECT_EQ(read_last_save(path_)->step, 2);
}

TEST_F(MetricsScanTest, ATornLineIsNotRead) {
  write(3, false);
  put(R"({"kind":"step","step":4,"lo)");
  EXPECT_EQ(read_standing(path_).step->step, 3);
  EXPECT_EQ(read_losses(path_).training.size(), 3u);
}

TEST_F(MetricsScanTest, AnEmptyFileSaysNothing) {
  put("");
  const MetricsStanding standing = read_standing(path_);
  EXPECT_FALSE(standing.run || standing.step || standing.eval || standing.end);
  EXPECT_TRUE(read_losses(path_).training.empty());
  put("\n");
  EXPECT_FALSE(read_standing(path_).step);
}

TEST_F(MetricsScanTest, LossesAreThoseOfTheWholeFile) {
  write(57, true);
  const Metrics whole = read_metrics(path_);
  const LossCurves losses = read_losses(path_);
  ASSERT_EQ(losses.training.size(), whole.steps.size());
  for (size_t i = 0; i < whole.steps.size(); ++i)
    EXPECT_EQ(losses.training[i], (Point{static_cast<double>(whole.steps[i].step), whole.steps[i].loss}));
  ASSERT_EQ(losses.validation.size(), whole.evals.size());
  EXPECT_EQ(losses.validation.back(), (Point{50, whole.evals.back().loss}));
}

// Lines that another program wrote have blanks and another order; losses that are not finite are null.
TEST_F(MetricsScanTest, LinesThatAreWrittenOtherwiseAreParsed) {
  StepEvent bad = synthetic::step(1, 9, false);
  bad.loss = NAN;
  put(format_event(bad) + "\n");
  std::string line = format_event(synthetic::step(2, 9, false));
  line.replace(line.find(R"("step":2)"), 8, R"("step": 2)");
  put(line + "\n" + R"({"kind":"eval","bits_per_byte":1,"loss":2.5,"step":2})" + "\n");
  const LossCurves losses = read_losses(path_);
  ASSERT_EQ(losses.training.size(), 1u);
  EXPECT_EQ(losses.training[0], (Point{2, synthetic::step(2, 9, false).loss}));
  EXPECT_EQ(losses.validation, (Curve{{2, 2.5}}));
}

TEST_F(MetricsScanTest, DamageIsNamedByItsByteAndPassedOver) {
  write(2, false);
  EXPECT_EQ(read_standing(path_).damage, "");
  const std::string at = "byte " + std::to_string(fs::file_size(path_));
  put("{\"kind\":\"step\",\"step\":what}\n");
  const MetricsStanding standing = read_standing(path_);
  EXPECT_NE(standing.damage.find(at), std::string::npos) << standing.damage;
  ASSERT_TRUE(standing.step);
  EXPECT_EQ(standing.step->step, 2);
  const LossCurves losses = read_losses(path_);
  EXPECT_NE(losses.damage.find(at), std::string::npos) << losses.damage;
  EXPECT_EQ(losses.training.size(), 2u);
}

TEST_F(MetricsScanTest, AThinnedFileKeepsItsLastStepAndAllEvaluations) {
  write(57, true);
  const Metrics whole = read_metrics(path_), thinned = read_thinned_metrics(path_, 10);
  EXPECT_LE(thinned.steps.size(), 10u);
  EXPECT_GE(thinned.steps.size(), 9u);
  EXPECT_EQ(thinned.steps.back().step, 57);
  EXPECT_LE(thinned.experts.size(), 10u);
  EXPECT_EQ(thinned.experts.back().step, 57);
  EXPECT_EQ(thinned.evals.size(), whole.evals.size());
  EXPECT_EQ(thinned.end->reason, "finished");
  EXPECT_EQ(read_thinned_metrics(path_, 57).steps.size(), 57u);
  EXPECT_EQ(read_thinned_metrics(path_, 1).steps.size(), 1u);
}

TEST_F(MetricsScanTest, AThinnedFileKeepsItsFirstSteps) {
  write(1000, true);
  const Metrics thinned = read_thinned_metrics(path_, 150);
  ASSERT_LE(thinned.steps.size(), 150u);
  EXPECT_GE(thinned.steps.size(), 130u);
  for (int64_t n = 1; n <= 3; ++n) EXPECT_EQ(thinned.steps[static_cast<size_t>(n - 1)].step, n);
  for (size_t i = 4; i < thinned.steps.size(); ++i)
    EXPECT_EQ(thinned.steps[i].step - thinned.steps[i - 1].step, 7) << i;
  EXPECT_EQ(thinned.steps.back().step, 1000);
}

}  // namespace
}  // namespace witan
