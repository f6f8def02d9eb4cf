#include "witan/report/events/step_scalars.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/report/events/events.h"
#include "witan/report/page/charts.h"
#include "witan/report/progress/log_lines.h"
#include "witan/report/progress/train_line.h"

namespace witan {
namespace {

constexpr StepScalar kTest{.key = "a_test",
                           .tensorboard = StepScalar::Tag{"a-test"},
                           .chart = StepScalar::Curve{"A test's chart", "units", "series", 1},
                           .progress = StepScalar::Text{"test ", "{:.2f}", " units"},
                           .megatron = StepScalar::Text{"test: ", "{:.1f}"}};

std::vector<std::string> keys_of(const auto& values) {
  std::vector<std::string> keys;
  for (const auto& value : values) keys.emplace_back(value.key);
  return keys;
}

StepScalars all_scalars() {
  StepScalars scalars;
  scalars.set(kTest, 42.25);
  double value = 1;
  for (const StepScalar* declared : kStepScalars) scalars.set(*declared, value *= 2);
  return scalars;
}

using Keys = std::vector<std::string>;

// Files and lines had these orders before scalars were declared.
TEST(StepScalars, AreOrderedPerOutput) {
  const StepScalars scalars = all_scalars();
  EXPECT_EQ(keys_of(scalars.all()), (Keys{"params_norm",
                                          "num_zeros",
                                          "megatron_tflops",
                                          "loss_scale",
                                          "max_attention_logit",
                                          "reward",
                                          "reward_std",
                                          "completion_length",
                                          "equal_groups",
                                          "cut_completions",
                                          "empty_completions",
                                          "num_gen_batches",
                                          "turns",
                                          "inserted_tokens",
                                          "cut_by_turns",
                                          "rewritten_answers",
                                          "prompt_tokens_read",
                                          "sampling_s",
                                          "reward_s",
                                          "policy_entropy",
                                          "policy_ratio",
                                          "clip_fraction_low",
                                          "clip_fraction_high",
                                          "logprob_difference",
                                          "kl_loss",
                                          "reward_accuracy",
                                          "reward_margin",
                                          "reward_chosen",
                                          "reward_rejected",
                                          "chosen_loss",
                                          "pool_overflows",
                                          "exchange_overflows",
                                          "a_test"}));
  EXPECT_EQ(keys_of(scalars.shown(&StepScalar::tensorboard)), (Keys{"megatron_tflops",
                                                                    "loss_scale",
                                                                    "max_attention_logit",
                                                                    "params_norm",
                                                                    "num_zeros",
                                                                    "reward",
                                                                    "reward_std",
                                                                    "completion_length",
                                                                    "equal_groups",
                                                                    "cut_completions",
                                                                    "empty_completions",
                                                                    "num_gen_batches",
                                                                    "policy_entropy",
                                                                    "policy_ratio",
                                                                    "clip_fraction_low",
                                                                    "clip_fraction_high",
                                                                    "logprob_difference",
                                                                    "kl_loss",
                                                                    "sampling_s",
                                                                    "reward_s",
                                                                    "prompt_tokens_read",
                                                                    "turns",
                                                                    "inserted_tokens",
                                                                    "cut_by_turns",
                                                                    "rewritten_answers",
                                                                    "reward_accuracy",
                                                                    "reward_margin",
                                                                    "reward_chosen",
                                                                    "reward_rejected",
                                                                    "chosen_loss",
                                                                    "a_test"}));
  EXPECT_EQ(keys_of(scalars.shown(&StepScalar::progress)),
            (Keys{"reward", "params_norm", "num_zeros", "megatron_tflops", "equal_groups", "policy_entropy", "kl_loss",
                  "sampling_s", "turns", "reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected",
                  "chosen_loss", "a_test"}));
  EXPECT_EQ(keys_of(scalars.shown(&StepScalar::megatron)), (Keys{"num_zeros", "params_norm", "reward", "a_test"}));
}

TEST(StepScalars, KeepTheLastValueSet) {
  StepScalars scalars, later;
  EXPECT_FALSE(scalars.get(kTest));
  scalars.set(kTest, 1);
  scalars.set(kLossScale, 2);
  later.set(kTest, 3);
  later.set("unheard_of", 4);
  scalars.update(later);
  EXPECT_EQ(scalars.get("a_test"), 3);
  EXPECT_EQ(scalars.get(kLossScale), 2);
  EXPECT_EQ(keys_of(scalars.all()), (Keys{"loss_scale", "a_test", "unheard_of"}));
}

// E.g. a loss of a custom module. Megatron-LM's line lists losses separately.
TEST(StepScalars, UseTheKeyAsNameIfUndeclared) {
  StepScalars scalars;
  scalars.set("a_loss", 0.125);
  scalars.set(kLossScale, 2);
  EXPECT_EQ(keys_of(scalars.shown(&StepScalar::tensorboard)), (Keys{"loss_scale", "a_loss"}));
  EXPECT_STREQ(scalars.shown(&StepScalar::tensorboard).back().where.name, "a_loss");
  EXPECT_TRUE(scalars.shown(&StepScalar::megatron).empty());
  TrainStatus status;
  status.scalars = scalars;
  EXPECT_NE(format_train_line(status, 0, false).find("  a_loss 0.125"), std::string::npos);
  EXPECT_TRUE(is_step_figure("loss"));
  EXPECT_TRUE(is_step_figure("loss_scale"));
  EXPECT_FALSE(is_step_figure("a_loss"));
  EXPECT_FALSE(is_step_figure("kl_loss")) << "an objective may record it";
}

TEST(StepScalars, AreWrittenAmongTheFieldsOfALine) {
  StepEvent step;
  step.step = 3;
  step.scalars = all_scalars();
  step.dropped_share = 0.5;
  const std::string line = format_event(step);
  EXPECT_NE(line.find(R"("grad_norm":0.0,"params_norm":2.0,"num_zeros":4.0,"megatron_tflops":8.0,"loss_scale":16.0,)"
                      R"("max_attention_logit":32.0,"reward":64.0,"reward_std":128.0,"completion_length":256.0,)"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find(R"("logprob_difference":16777216.0,"kl_loss":33554432.0,"reward_accuracy":67108864.0,)"
                      R"("reward_margin":134217728.0,"reward_chosen":268435456.0,"reward_rejected":536870912.0,)"
                      R"("chosen_loss":1073741824.0,"a_test":42.25,"tokens_per_s")"),
            std::string::npos)
      << line;
  EXPECT_NE(
      line.find(R"("dropped_share":0.5,"pool_overflows":2147483648.0,"exchange_overflows":4294967296.0,"skipped")"),
      std::string::npos)
      << line;
  const StepEvent read = std::get<StepEvent>(*parse_event(line, "here"));
  EXPECT_EQ(read.scalars, step.scalars);
  EXPECT_EQ(format_event(read), line) << "undeclared scalars are passed on";
}

TEST(StepScalars, MustBeNumbers) {
  const auto read = [](const char* value) {
    StepEvent step;
    step.scalars.set(kLossScale, 8);
    std::string line = format_event(step);
    line.replace(line.find("8.0"), 3, value);
    return std::get<StepEvent>(*parse_event(line, "here")).scalars.get(kLossScale);
  };
  EXPECT_EQ(read("4"), 4);
  EXPECT_TRUE(std::isnan(read("null").value()));
  EXPECT_THROW(read("\"four\""), CorruptionError);
}

TEST(StepScalars, HaveChartsAsDeclared) {
  Metrics m = synthetic::run(20, 2, 4);
  for (StepEvent& step : m.steps) step.scalars.set(kTest, 1), step.scalars.set("unheard_of", 2);
  const std::vector<Chart> charts = make_charts(m);
  const auto chart = std::ranges::find(charts, "A test's chart", &Chart::title);
  ASSERT_NE(chart, charts.end());
  EXPECT_EQ(chart->unit, "units");
  EXPECT_EQ(chart->section, Chart::Section::learning);
  EXPECT_EQ(chart->series.front().name, "series");
  const auto of_file = std::ranges::find(charts, "Unheard of", &Chart::title);
  ASSERT_NE(of_file, charts.end()) << "in the words of its key";
  EXPECT_EQ(of_file->series.front().points.back().y, 2);
}

TEST(StepScalars, ShareAChartOfOneTitle) {
  Metrics m = synthetic::run(20, 2, 4);
  for (StepEvent& step : m.steps)
    step.scalars.set(kReward, 0.5), step.scalars.set(kRewardStd, 0.25), step.scalars.set(kCompletionLength, 9);
  const std::vector<Chart> charts = make_charts(m);
  EXPECT_EQ(std::ranges::count(charts, "Reward", &Chart::title), 1);
  const auto chart = std::ranges::find(charts, "Reward", &Chart::title);
  ASSERT_EQ(chart->series.size(), 2U);
  EXPECT_EQ(chart->series[0].points.back().y, 0.5);
  EXPECT_EQ(chart->series[1].points.back().y, 0.25);
  EXPECT_EQ(std::ranges::find(charts, "Length of answers", &Chart::title)->series.size(), 1U);
}

TEST(StepScalars, AppearInLogLines) {
  TrainStatus status;
  status.scalars = all_scalars();
  EXPECT_NE(format_train_line(status, 0, false)
                .find("params norm 2.000  zero gradients 4  8 TFLOP/s/rank  equal groups 512.00  "
                      "entropy 1048576.000  KL 33554432.0000  sampling 262144.00 s  turns 8192.00  "
                      "accuracy 67108864.000  margin 134217728.000  chosen 268435456.000  rejected 536870912.000  "
                      "loss of chosen 1073741824.000  test 42.25 units"),
            std::string::npos)
      << format_train_line(status, 0, false);
  megatron_log::Interval interval;
  interval.scalars = all_scalars();
  EXPECT_NE(
      megatron_log::format_interval(interval).find(
          " grad norm: 0.000 | num zeros: 4.0 | params norm: 2.000 | reward: 64.000 | test: 42.2 | number of skipped"),
      std::string::npos)
      << megatron_log::format_interval(interval);
}

}  // namespace
}  // namespace witan
