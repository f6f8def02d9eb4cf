// Whole runs that sample their batches.
#include "witan/train/rollouts/rollouts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/report/events/metrics.h"
#include "witan/tokenizer/training/bpe_trainer.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/trainer.h"

namespace witan {
namespace {

using test::message_of;

constexpr const char* kRolloutTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class RolloutRuns : public ::testing::Test {
 protected:
  RolloutRuns() {
    fs::create_directories(folder_ / "hf");
    BpeTrainerConfig bytes;
    bytes.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    bytes.vocab_size = 256 + 3;
    BpeTrainer(bytes).train().save(folder_ / "hf/tokenizer.json");
    write_file_atomically(folder_ / "hf/chat_template.jinja", kRolloutTemplate);
    std::ofstream rows(folder_ / "chat.jsonl");
    for (int i = 0; i < 60; ++i)
      rows << R"({"messages": [{"role": "user", "content": ")" << i % 10 << R"("}, {"role": "assistant", "content": ")"
           << (i % 2 ? "odd" : "even") << "\"}]}\n";
  }

  // Supervised fine-tuning with the sizes of the runs that sample.
  RunConfig supervised(const std::string& run) const {
    RunConfig config = testing::small_config();
    config.model.vocab_size = 0;
    config.data.sft = true;
    config.data.packing = "none";
    config.data.data = (folder_ / "chat.jsonl").string();
    config.data.tokenizer = (folder_ / "hf/tokenizer.json").string();
    config.data.seq_length = 48;
    config.data.held_out_fraction = 0.1;
    config.train.run = run;
    config.train.runs_folder = folder_.path().string();
    config.train.micro_batch_size = 4;
    config.train.global_batch_size = 16;
    config.train.eval_iters = 0;
    config.train.save_interval = 0;
    config.train.sample_tokens = 0;
    config.optimizer.lr_decay_iters = 200;
    config.optimizer.lr_warmup_iters = 0;
    config.optimizer.lr = 5e-3;
    config.parallel = {1, 1, 1};
    return config;
  }
  RunConfig sampled(const std::string& run) const {
    RunConfig config = supervised(run);
    config.objective.objective = "policy";
    config.rollout.rollouts = true;
    config.rollout.num_generations = 4;
    config.rollout.max_completion_length = 6;
    return config;
  }

  RunResult run(const RunConfig& config) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> quiet(std::fopen("/dev/null", "w"), std::fclose);
    Progress progress(quiet.get(), progress_options(quiet.get()));
    const RunFolder folder(config.train.runs_folder, config.train.run);
    const RunData data = prepare_run_data(config, folder, progress);
    const ResolvedConfig resolved = resolve(config, {.cores = 2, .vocabulary = data.tokenizer->vocab_size()});
    write_file_atomically(folder.config(), config_to_save(resolved));
    const Plan plan = make_plan(resolved);
    const RunResult result = train(resolved, run_plan(plan), data, find_start(folder, config.train),
                                   RunEvent{.name = config.train.run,
                                            .started = "2026-01-01T00:00:00Z",
                                            .config_hash = "h",
                                            .total_steps = config.train.train_iters},
                                   progress);
    for (const MemoryEvent& memory : result.memory) EXPECT_GT(memory.peak, 0);
    return result;
  }
  std::vector<double> figures(const std::string& run, const std::string& key) const {
    std::vector<double> values;
    for (const StepEvent& step : read_metrics(folder_ / run / "metrics.jsonl").steps)
      if (const auto value = step.scalars.get(key)) values.push_back(*value);
    return values;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> values;
    for (const StepEvent& step : read_metrics(folder_ / run / "metrics.jsonl").steps) values.push_back(step.loss);
    return values;
  }
  std::string rollouts(const std::string& run, int64_t step) const {
    return read_file(folder_ / run / "rollouts" / fmt::format("step-{:08}.jsonl", step));
  }

  test::TempFolder folder_;
};

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
