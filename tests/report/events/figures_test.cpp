// Summary figures of a whole run, as numbers and as JSON.
#include "witan/report/events/figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace witan::test {
namespace {

StepEvent step_with_loss(int64_t number, double loss) {
  StepEvent step;
  step.step = number;
  step.loss = loss;
  return step;
}

Metrics a_run() {
  Metrics metrics;
  RunEvent run;
  run.name = "a";
  run.started = "2026-01-02T03:04:05Z";
  run.config_hash = "c0ffee";
  run.world_size = 2;
  run.layout = "expert=2";
  run.parameters = 1000;
  run.active_parameters = 400;
  run.tokens_per_step = 512;
  run.total_steps = 10;
  run.ceiling_gflops = 50;
  metrics.run = run;
  for (int64_t n = 1; n <= 3; ++n) {
    StepEvent step = step_with_loss(n, 5 - static_cast<double>(n));
    step.lr = 0.5;
    step.grad_norm = 1.5;
    step.tokens_per_s = 100.0 * static_cast<double>(n);
    step.gflops = 20.0 * static_cast<double>(n);
    step.elapsed_s = static_cast<double>(n);
    step.skipped = n == 2;
    metrics.steps.push_back(step);
  }
  metrics.evals = {{1, 4, 2}, {2, 3, 1.5}, {3, 3.5, 1.75}};
  metrics.set_evals["wiki"] = {{3, 6, 3, "wiki"}};
  metrics.baselines = {{"bigram", 2.5}};
  MemoryEvent memory;
  memory.peak = 700;
  memory.tags = {{"weights", 600}};
  metrics.memory = {memory, memory};
  metrics.memory[1].rank = 1;
  metrics.memory[1].peak = 800;
  metrics.saves = {{2, 0.5, 0.125}, {3, 0.25, 0.125}};
  metrics.anomalies = {{2, "nan", "skip", std::nullopt, "a sentence", "anomalies/step-2"}};
  metrics.resumes = {{1, "2026-01-03T00:00:00Z"}};
  metrics.end = EndEvent{"finished", 4096.0, 8192.0};
  return metrics;
}

TEST(FiguresTest, MatchTheEvents) {
  const auto json = figures_json(a_run());
  const auto expected = nlohmann::ordered_json::parse(R"({
    "started": "2026-01-02T03:04:05Z", "end": "finished", "config_hash": "c0ffee", "ranks": 2, "layout": "expert=2",
    "model": {"parameters": 1000, "active_parameters": 400},
    "training": {"step": 3, "total_steps": 10, "loss": 2.0, "smoothed_loss": 2.0, "smoothed_reward": null, "lr": 0.5, "grad_norm": 1.5,
                 "tokens": 1536, "tokens_per_step": 512, "epochs": null, "skipped_steps": 1, "elapsed_s": 3.0},
    "validation": {"last": {"step": 3, "loss": 3.5, "bits_per_byte": 1.75},
                   "best": {"step": 2, "loss": 3.0, "bits_per_byte": 1.5},
                   "sets": {"wiki": {"last": {"step": 3, "loss": 6.0, "bits_per_byte": 3.0},
                                     "best": {"step": 3, "loss": 6.0, "bits_per_byte": 3.0}}},
                   "baselines": [{"name": "bigram", "bits_per_byte": 2.5}]},
    "speed": {"tokens_per_s": 200.0, "gflops": 40.0, "ceiling_gflops": 60.0, "ceiling_share": 0.6666666666666666},
    "memory": {"peak": 800, "planned": [{"rank": 0, "peak": 700, "tags": {"weights": 600}},
                                        {"rank": 1, "peak": 800, "tags": {"weights": 600}}],
               "measured": [], "peak_resident": 4096.0, "promised_resident": 8192.0},
    "saves": {"count": 2, "seconds": 0.75, "paused_s": 0.25},
    "anomalies": [{"step": 2, "what": "nan", "action": "skip", "text": "a sentence", "folder": "anomalies/step-2"}],
    "resumes": [{"step": 1, "time": "2026-01-03T00:00:00Z"}]})");
  EXPECT_EQ(json.dump(1), expected.dump(1));
}

// Programs find every key in every run: null, 0 or an empty list where data is missing.
TEST(FiguresTest, HaveTheSameKeysWithoutEvents) {
  const auto full = figures_json(a_run()), empty = figures_json(Metrics());
  for (const auto& [key, value] : full.items()) {
    ASSERT_TRUE(empty.contains(key)) << key;
    if (!value.is_object()) continue;
    for (const auto& [inner, unused] : value.items()) EXPECT_TRUE(empty[key].contains(inner)) << key << "." << inner;
  }
  EXPECT_TRUE(empty["training"]["loss"].is_null());
  EXPECT_TRUE(empty["training"]["tokens"].is_null());
  EXPECT_TRUE(empty["validation"]["last"].is_null());
  EXPECT_TRUE(empty["end"].is_null());
  EXPECT_EQ(empty["saves"]["count"], 0);
  EXPECT_EQ(empty["training"]["skipped_steps"], 0);
  EXPECT_TRUE(nlohmann::json::parse(empty.dump())["speed"]["tokens_per_s"].is_null()) << "JSON has no NaN";
}

// Steps of equal rewards alone have no figures of the policy.
TEST(FiguresTest, HaveTheRewardOfSampledAnswers) {
  Metrics metrics;
  metrics.steps = {step_with_loss(1, 0)};
  EXPECT_FALSE(training_reward(metrics));
  EXPECT_STREQ(unit_of_loss(metrics), "nats per token");
  metrics.steps[0].scalars.set(kReward, 0.25);
  metrics.steps.push_back(step_with_loss(2, 0));
  EXPECT_EQ(training_reward(metrics)->value, 0.25);
  EXPECT_EQ(training_reward(metrics)->step, 1);
  EXPECT_STREQ(unit_of_loss(metrics), "surrogate of policy gradients");
  EXPECT_EQ(figures_json(metrics)["training"]["smoothed_reward"], 0.25);
  metrics.evals = {EvalEvent{1, 3, 2}};
  EXPECT_FALSE(figures_json(metrics)["validation"]["last"].contains("reward"));
  metrics.evals[0].reward = 0.75;
  EXPECT_EQ(figures_json(metrics)["validation"]["last"]["reward"], 0.75);
  metrics.steps = {step_with_loss(1, 0.7)};
  metrics.steps[0].scalars.set("reward_accuracy", 0.5);
  EXPECT_STREQ(unit_of_loss(metrics), "of preferences");
}

TEST(FiguresTest, IgnoreNonFiniteLossesForTheBest) {
  EXPECT_FALSE(best_eval({{1, NAN, 1}}));
  EXPECT_EQ(best_eval({{1, 2, 1}, {2, NAN, 1}, {3, 2, 1}, {4, 2.5, 1}})->step, 3) << "the later of equal losses";
  Metrics metrics;
  metrics.steps = {step_with_loss(1, NAN)};
  EXPECT_FALSE(training_loss(metrics));
  metrics.steps.push_back(step_with_loss(2, 3));
  metrics.steps.push_back(step_with_loss(3, NAN));
  EXPECT_EQ(training_loss(metrics)->value, 3);
  EXPECT_EQ(training_loss(metrics)->step, 2);
  EXPECT_TRUE(nlohmann::json::parse(figures_json(metrics).dump())["training"]["loss"].is_null());
}

Metrics steps_of(const std::vector<double>& speeds) {
  Metrics metrics;
  for (const double speed : speeds) {
    StepEvent& step = metrics.steps.emplace_back();
    step.step = std::ssize(metrics.steps);
    step.tokens_per_s = speed;
    step.gflops = 2 * speed;
  }
  return metrics;
}

TEST(RunSpeed, IsTheSpeedOfTheMedianStep) {
  const RunSpeed speed = run_speed(steps_of({1, 30, 32, 31, 15}));
  EXPECT_EQ(speed.tokens_per_s, 30);
  EXPECT_EQ(speed.gflops, 60);
}

TEST(RunSpeed, OmitsMissingValues) {
  EXPECT_EQ(run_speed(steps_of({NAN, 7, INFINITY})).tokens_per_s, 7);
  EXPECT_TRUE(std::isnan(run_speed({}).tokens_per_s));
  EXPECT_TRUE(std::isnan(run_speed(steps_of({NAN})).gflops));
}

}  // namespace
}  // namespace witan::test
