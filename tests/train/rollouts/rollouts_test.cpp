// Whole runs that sample their batches.
#include "witan/train/rollouts/rollouts.h"

#include "train/rollouts/rollout_runs.h"

namespace witan {
namespace {

using test::message_of;
using testing::RolloutRuns;

// From a supervised start to more than 9 of 10 right answers, on one rank.
TEST_F(RolloutRuns, LearnFromRewards) {
  RunConfig config = supervised("learned");
  config.train.train_iters = 60;
  run(config);
  config = sampled("learned");
  config.train.train_iters = 180;
  run(config);
  const std::vector<double> rewards = figures("learned", "reward");
  ASSERT_EQ(rewards.size(), 120);
  const auto mean_of_ten = [&](size_t first) {
    double sum = 0;
    for (size_t i = 0; i < 10; ++i) sum += rewards[first + i] / 10;
    return sum;
  };
  EXPECT_LT(mean_of_ten(0), 0.8);
  EXPECT_GT(mean_of_ten(110), 0.9);
  // The weights that sample are those that are trained: ratios are 1 up to the rounding of float32.
  for (const double difference : figures("learned", "logprob_difference")) EXPECT_LT(difference, 1e-5);
}

TEST_F(RolloutRuns, HaveTheSameBitsInEveryLayout) {
  RunConfig config = sampled("one");
  config.train.train_iters = 3;
  config.parallel.deterministic = true;
  run(config);
  struct Other {
    const char* run;
    ParallelConfig parallel;
    const char* strategy = "auto";
  };
  for (const auto& [name, parallel, strategy] :
       {Other{"replicas", {2, 1, 1}}, {"experts", {2, 2, 1}}, {"fsdp", {2, 1, 1}, "optim_grads_params"}}) {
    SCOPED_TRACE(name);
    RunConfig other = config;
    other.train.run = name;
    other.parallel = parallel;
    other.parallel.deterministic = true;
    other.parallel.data_parallel_sharding_strategy = strategy;
    run(other);
    for (const char* figure : {"reward", "completion_length", "policy_ratio", "clip_fraction_low"})
      EXPECT_EQ(figures(name, figure), figures("one", figure)) << figure;
    EXPECT_EQ(losses(name), losses("one"));
    for (const int64_t step : {1, 2, 3}) EXPECT_EQ(rollouts(name, step), rollouts("one", step));
  }
}

// Also between steps that were sampled together, whose answers are then read from the run's folder.
TEST_F(RolloutRuns, ResumeToTheBit) {
  RunConfig config = sampled("whole");
  config.rollout.steps_per_generation = 2;
  config.rollout.rollout_batch_size = 5;
  config.train.train_iters = 6;
  run(config);
  config.train.run = "resumed";
  for (const int64_t steps : {2, 3, 6}) {
    config.train.train_iters = steps;
    run(config);
  }
  EXPECT_EQ(losses("resumed"), losses("whole"));
  EXPECT_EQ(figures("resumed", "reward"), figures("whole", "reward"));
  for (int64_t step = 1; step <= 6; ++step) EXPECT_EQ(rollouts("resumed", step), rollouts("whole", step));
}

TEST_F(RolloutRuns, KeepTheirStepsWhenRewardsFail) {
  RunConfig config = sampled("failing");
  config.train.train_iters = 4;
  config.parallel = {2, 1, 1};
  config.rollout.reward = "command";
  config.rollout.reward_command = cat("test -e ", folder_.path().string(), "/down && exit 7; awk '{print length % 3}'");
  config.train.train_iters = 2;
  run(config);
  std::ofstream(folder_ / "down") << "x";
  config.train.train_iters = 4;
  const std::string message = message_of<Error>([&] { run(config); });
  EXPECT_NE(message.find("it ended with code 7"), std::string::npos) << message;
  fs::remove(folder_ / "down");
  EXPECT_EQ(run(config).resumed_from, 2);
}

TEST(Rollout, SurvivesAFile) {
  const Rollout rollout{.row = 7,
                        .prompt = {1, 2},
                        .completion = {3},
                        .logprobs = {-0.1234567f},
                        .ended = true,
                        .text = {"a \"b\"", "c\n", "d"},
                        .reward = 0.1,
                        .advantage = -1.0 / 3};
  const Rollout read = Rollout::of_line(rollout.to_line(), "here");
  EXPECT_EQ(read.to_line(), rollout.to_line());
  EXPECT_EQ(read.logprobs, rollout.logprobs);
  EXPECT_EQ(read.advantage, rollout.advantage);
  EXPECT_NE(message_of<DataError>([] { Rollout::of_line("{\"row\": 1}", "x.jsonl, line 2"); }).find("x.jsonl, line 2"),
            std::string::npos);
}

TEST(Rollout, BecomesARow) {
  RunConfig config;
  config.data.seq_length = 5;
  config.objective.objective = "policy";
  Rollout one{.prompt = {10, 11}, .completion = {12, 13}, .logprobs = {-1, -2}, .advantage = 0.5}, skipped = one;
  skipped.skipped = true;
  const Batch batch = batch_of({one, skipped}, config);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{10, 11, 12, 0, 0, 10, 11, 12, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{11, 12, 13, 0, 0, 11, 12, 13, 0, 0}));
  EXPECT_EQ(batch.sequence_ids, (std::vector<int32_t>{0, 0, 0, kPadding, kPadding, 0, 0, 0, kPadding, kPadding}));
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 1, 1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(batch.columns[0].values, (std::vector<float>{0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5, 0, 0}));
  EXPECT_EQ(batch.columns[1].values, (std::vector<float>{0, -1, -2, 0, 0, 0, -1, -2, 0, 0}));
  EXPECT_EQ(batch.loss_tokens, 2);
  EXPECT_EQ(batch.loss_sequences, 1);
}

}  // namespace
}  // namespace witan
