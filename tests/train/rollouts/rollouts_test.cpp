// Whole runs that sample their batches.
#include "witan/train/rollouts/rollouts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>

#include "support/long_form.h"
#include "train/rollouts/rollout_runs.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/train/rollouts/rollout_files.h"

namespace witan {
namespace {

using test::message_of;

// Several ranks, each of which samples.
struct RunLayout {
  const char* run;
  ParallelConfig parallel;
  const char* strategy = "auto";
};
const std::vector<RunLayout>& run_layouts() {
  static const std::vector<RunLayout> all = {RunLayout{"replicas", {2, 1, 1}}, RunLayout{"experts", {2, 2, 1}},
                                             RunLayout{"fsdp", {2, 1, 1}, "optim_grads_params"}};
  return all;
}

class SampledRuns : public testing::RolloutRuns {
 protected:
  // Two digits are the question. Answers are both in any order or, sorted, as they should be.
  void write_digits() const {
    fs::create_directories(folder_ / "plain");
    fs::copy(folder_ / "hf/tokenizer.json", folder_ / "plain/tokenizer.json");
    write_file_atomically(folder_ / "plain/chat_template.jinja",
                          "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}"
                          "{% endfor %}");
    std::ofstream any(folder_ / "any.jsonl"), sorted(folder_ / "sorted.jsonl");
    const Philox rng(7, 0);
    auto draw = [&, i = uint64_t{0}](double below) mutable { return static_cast<int>(below * rng.uniform(i++)); };
    for (int i = 0; i < 1000; ++i) {
      const int a = draw(10), b = draw(10), least = std::min(a, b), most = std::max(a, b);
      const bool swaps = draw(2) == 1;
      for (auto& [file, first, second] :
           {std::tuple{&any, swaps ? b : a, swaps ? a : b}, std::tuple{&sorted, least, most}})
        *file << R"({"messages": [{"role": "user", "content": ")" << a << b
              << R"(="}, {"role": "assistant", "content": ")" << first << second << "\"}]}\n";
    }
  }
  RunConfig of_digits(RunConfig config, const char* data) const {
    config.data.tokenizer = (folder_ / "plain/tokenizer.json").string();
    config.data.data = (folder_ / data).string();
    config.data.seq_length = 8;
    config.model.hidden_size = config.model.mlp.ffn_hidden_size = 64;
    config.model.moe.num_experts = 4;
    config.train.micro_batch_size = 32;
    return config;
  }

  static RunConfig laid_out(RunConfig config, const RunLayout& layout) {
    config.train.run = layout.run;
    config.parallel = layout.parallel;
    config.parallel.deterministic = true;
    config.parallel.data_parallel_sharding_strategy = layout.strategy;
    return config;
  }
};

// A supervised start knows both digits, and sorts them by chance. From there more than 9 of 10 answers become right, in
// other layouts with the same rewards.
TEST_F(SampledRuns, LearnFromRewardsInEveryLayout) {
  write_digits();
  RunConfig config = of_digits(supervised("any"), "any.jsonl");
  config.train.global_batch_size = 64;
  config.train.train_iters = config.optimizer.lr_decay_iters = 250;
  run(config);
  config = of_digits(sampled("one"), "sorted.jsonl");
  config.rollout.num_generations = 8;
  config.rollout.max_completion_length = 4;
  config.train.init_from = "any";
  config.train.global_batch_size = 128;
  config.train.train_iters = config.optimizer.lr_decay_iters = 60;
  config.optimizer.lr = 2e-3;
  config.parallel.deterministic = true;
  run(config);
  const std::vector<double> rewards = figures("one", "reward");
  ASSERT_EQ(rewards.size(), 60);
  EXPECT_NEAR(rewards.front(), 0.55, 0.2);
  EXPECT_GT(std::accumulate(rewards.end() - 10, rewards.end(), 0.0) / 10, 0.9);
  // The weights that sample are those that are trained: ratios are 1 up to the rounding of float32.
  for (const double difference : figures("one", "logprob_difference")) EXPECT_LT(difference, 1e-5);
  for (const RunLayout& layout : run_layouts()) {
    SCOPED_TRACE(layout.run);
    RunConfig other = laid_out(config, layout);
    other.train.train_iters = testing::steps_of(5, 60);
    run(other);
    const std::vector<double> found = figures(layout.run, "reward");
    ASSERT_EQ(std::ssize(found), other.train.train_iters);
    EXPECT_TRUE(std::ranges::equal(found, std::span(rewards).first(found.size())));
  }
}

TEST_F(SampledRuns, HaveTheSameBitsInEveryLayout) {
  RunConfig config = sampled("one");
  config.train.train_iters = 3;
  config.parallel.deterministic = true;
  run(config);
  for (const RunLayout& layout : run_layouts()) {
    const char* name = layout.run;
    SCOPED_TRACE(name);
    run(laid_out(config, layout));
    for (const char* figure : {"reward", "completion_length", "policy_ratio", "clip_fraction_low"})
      EXPECT_EQ(figures(name, figure), figures("one", figure)) << figure;
    EXPECT_EQ(losses(name), losses("one"));
    for (const int64_t step : {1, 2, 3}) EXPECT_EQ(rollouts(name, step), rollouts("one", step));
  }
}

// Also between steps that were sampled together, whose answers are then read from the run's folder.
TEST_F(SampledRuns, ResumeToTheBit) {
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

// Answers that were sampled together are trained on to their end, whatever steps_per_generation a run resumes with.
TEST_F(SampledRuns, ResumeWithOtherStepsPerGeneration) {
  const auto steps = [&](const char* name, std::vector<std::pair<int64_t, int64_t>> parts) {
    RunConfig config = sampled(name);
    config.rollout.reward = "length";
    for (const auto& [until, per_generation] : parts) {
      config.train.train_iters = until;
      config.rollout.steps_per_generation = per_generation;
      run(config);
    }
  };
  steps("whole", {{4, 4}, {6, 2}, {8, 1}});
  steps("halted", {{3, 4}, {5, 2}, {7, 1}, {8, 1}});
  EXPECT_EQ(losses("halted"), losses("whole"));
  for (int64_t step = 1; step <= 8; ++step) EXPECT_EQ(rollouts("halted", step), rollouts("whole", step));
  steps("missing", {{3, 4}});
  fs::remove(folder_ / "missing/rollouts/step-00000004.jsonl");
  const std::string message = message_of<DataError>([&] { steps("missing", {{4, 2}}); });
  EXPECT_NE(message.find("has nothing, where step 4 trains on 16 rows from 48 on, which were sampled before step 1: "
                         "restore the file"),
            std::string::npos)
      << message;
}

TEST_F(SampledRuns, KeepTheirTemperatureUntilTheirAnswersAreTrainedOn) {
  RunConfig config = sampled("warm");
  config.rollout.steps_per_generation = 4;
  config.train.train_iters = 2;
  run(config);
  config.train.train_iters = 6;
  config.rollout.rollout_temperature = 0.5;
  const std::string message = message_of<ConfigError>([&] { run(config); });
  EXPECT_NE(
      message.find("rollout_temperature = 0.5, but step 3 trains on answers that were sampled at 1, with those of "
                   "steps 1 to 4"),
      std::string::npos)
      << message;
  config.rollout.rollout_temperature = 1;
  config.train.train_iters = 4;
  run(config);
  config.rollout.rollout_temperature = 0.5;
  config.train.train_iters = 5;
  EXPECT_EQ(run(config).step, 5);
}

// Answers that are removed are none that a checkpoint resumes with.
TEST_F(SampledRuns, KeepTheAnswersOfTheNewestSteps) {
  RunConfig config = sampled("whole");
  config.rollout.reward = "length";
  config.rollout.steps_per_generation = 3;
  config.train.train_iters = 6;
  run(config);
  config.train.run = "short";
  config.rollout.keep_rollouts = 1;
  config.train.save_interval = 1;
  config.train.keep_last = 1;
  for (const int64_t steps : {2, 5, 6}) {
    config.train.train_iters = steps;
    run(config);
  }
  EXPECT_EQ(losses("short"), losses("whole"));
  int64_t files = 0;
  for ([[maybe_unused]] const auto& file : fs::directory_iterator(folder_ / "short/rollouts")) ++files;
  EXPECT_EQ(files, 1) << "of step 6";
  EXPECT_LE(static_cast<int64_t>(rollouts("short", 6).size()), rollout_file_bytes(config));
}

TEST_F(SampledRuns, WarnOfPromptsWithLittleRoom) {
  RunConfig config = sampled("tight");
  config.train.train_iters = 1;
  run(config);
  EXPECT_EQ(read_file(folder_ / "tight/train.log").find("max_completion_length"), std::string::npos);
  config.train.run = "tighter";
  config.rollout.max_completion_length = 40;
  run(config);
  EXPECT_NE(read_file(folder_ / "tighter/train.log")
                .find("leave less than max_completion_length = 40 tokens for an answer in seq_length + 1 = 49"),
            std::string::npos)
      << read_file(folder_ / "tighter/train.log");
}

// Almost no answer of one token is ended by it.
TEST_F(SampledRuns, StandStillIfAllAnswersAreCutAndMasked) {
  RunConfig config = sampled("masked");
  config.train.global_batch_size = 4;
  config.train.train_iters = 40;
  config.optimizer.lr = 1e-12;
  config.optimizer.min_lr = 0;
  config.rollout.reward = "command";
  config.rollout.reward_command = "awk '{ print NR % 4 }'";
  config.rollout.max_completion_length = 1;
  config.rollout.mask_truncated_completions = true;
  run(config);
  const std::vector<double> cut = figures("masked", "cut_completions");
  EXPECT_EQ(figures("masked", "equal_groups"), std::vector<double>(40, 0));
  EXPECT_GT(std::ranges::count(cut, 1), 20);
  EXPECT_EQ(std::ssize(figures("masked", "policy_entropy")), 40 - std::ranges::count(cut, 1))
      << "a mean over no token is left out";
  EXPECT_NE(read_file(folder_ / "masked/train.log").find("no answer has been trained on for 10 steps"),
            std::string::npos);
  config.train.run = "unmasked";
  config.rollout.mask_truncated_completions = false;
  run(config);
  EXPECT_EQ(figures("unmasked", "policy_entropy").size(), 40);
}

// The optimizer's moments, weight decay and the balance loss would move the weights although there is nothing to learn.
TEST_F(SampledRuns, StandStillWithoutDifferencesOfRewards) {
  RunConfig config = sampled("idle");
  config.rollout.reward = "command";
  config.rollout.reward_command = "awk '{ print 1 }'";
  config.train.train_iters = 1;
  config.train.save_interval = 1;
  config.train.keep_last = 20;
  run(config);
  config.train.train_iters = 11;
  run(config);
  const auto saved = [&](int64_t step) {
    std::string bytes;
    const fs::path folder = folder_ / "idle/checkpoints" / step_folder_name(step);
    std::vector<fs::path> files;
    for (const auto& file : fs::recursive_directory_iterator(folder))
      if (file.path().extension() == ".safetensors") files.push_back(file.path());
    std::ranges::sort(files);
    for (const fs::path& file : files) bytes += read_file(file);
    return bytes;
  };
  EXPECT_FALSE(saved(1).empty());
  EXPECT_EQ(saved(11), saved(1));
  EXPECT_EQ(figures("idle", "equal_groups"), std::vector<double>(11, 1));
  for (const char* figure : {"policy_ratio", "policy_entropy", "clip_fraction_low", "logprob_difference"})
    EXPECT_TRUE(figures("idle", figure).empty()) << figure << " is a mean over no token";
  EXPECT_NE(read_file(folder_ / "idle/train.log").find("have had equal rewards for 10 steps (reward 1,"),
            std::string::npos);
}

TEST_F(SampledRuns, ReplacePromptsOfEqualRewards) {
  RunConfig config = sampled("one");
  config.train.train_iters = 2;
  config.parallel.deterministic = true;
  config.rollout.num_generations = 2;
  // Right for the prompts 3, 6 and 9 in every second answer.
  config.rollout.reward = "command";
  config.rollout.reward_command = R"(awk '{ print /user.n[369]/ && NR % 2 }')";
  run(config);
  const double before = figures("one", "equal_groups").front();
  EXPECT_GT(before, 0);
  EXPECT_TRUE(figures("one", "num_gen_batches").empty());
  config.train.run = "again";
  config.rollout.max_num_gen_batches = 6;
  run(config);
  const double after = figures("again", "equal_groups").front(),
               samplings = figures("again", "num_gen_batches").front();
  EXPECT_LT(after, before);
  EXPECT_GT(samplings, 1);
  EXPECT_LE(samplings, 6);
  int64_t number = 0, discarded = 0, replaced = 0;
  std::string lines = rollouts("again", 1);
  for (size_t begin = 0; begin < lines.size(); begin = lines.find('\n', begin) + 1) {
    const Rollout rollout =
        Rollout::of_line(std::string_view(lines).substr(begin, lines.find('\n', begin) - begin), "x");
    if (rollout.discarded) {
      ++discarded;
      EXPECT_TRUE(rollout.skipped);
      EXPECT_LT(rollout.replaced, 5);
      continue;
    }
    EXPECT_EQ(rollout.row, number++);
    EXPECT_TRUE(!rollout.skipped || rollout.replaced == 5) << "after as many others as there may be";
    replaced += rollout.replaced;
  }
  EXPECT_EQ(number, 16);
  EXPECT_EQ(discarded, replaced) << "every answer is kept";
  RunConfig resumed = config;
  resumed.train.run = "resumed";
  for (const int64_t steps : {1, 2}) {
    resumed.train.train_iters = steps;
    run(resumed);
  }
  EXPECT_EQ(losses("resumed"), losses("again"));
  for (const RunLayout& layout : run_layouts()) {
    SCOPED_TRACE(layout.run);
    run(laid_out(config, layout));
    for (const int64_t step : {1, 2}) EXPECT_EQ(rollouts(layout.run, step), rollouts("again", step));
    EXPECT_EQ(losses(layout.run), losses("again"));
  }
}

// An earlier answer within the sequence would be taken for the last one.
TEST_F(SampledRuns, RefusePromptsWithoutRoomForAnAnswer) {
  std::ofstream rows(folder_ / "long.jsonl");
  for (int i = 0; i < 60; ++i)
    rows << R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "odd"}, )"
         << R"({"role": "user", "content": ")" << std::string(i % 20 == 7 ? 60 : 2, 'x')
         << R"("}, {"role": "assistant", "content": "2"}]})"
         << "\n";
  rows.close();
  RunConfig config = sampled("long");
  config.data.data = (folder_ / "long.jsonl").string();
  config.data.seq_length = 80;
  const std::string message = message_of<DataError>([&] { run(config); });
  EXPECT_NE(message.find("leave no room for an answer in seq_length + 1 = 81 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("raise seq_length, or remove these conversations"), std::string::npos) << message;
}

// Before the first step, in whichever step the conversation would be drawn.
TEST_F(SampledRuns, RefuseConversationsThatBeginWithTheirAnswer) {
  std::ofstream rows(folder_ / "prompted.jsonl");
  for (int i = 0; i < 200; ++i)
    rows << (i % 50 == 7 ? "{\"messages\": [{\"role\": \"assistant\", \"content\": \"1\"}]}\n"
                         : conversation("1", "odd"));
  rows.close();
  write_file_atomically(folder_ / "hf/chat_template.jinja",
                        "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}");
  RunConfig config = sampled("prompted");
  config.data.data = (folder_ / "prompted.jsonl").string();
  config.train.train_iters = 1;
  const std::string message = message_of<DataError>([&] { run(config); });
  EXPECT_NE(message.find(" begins with its answer, so that there is no prompt"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder_ / "prompted/rollouts")) << "nothing was sampled";
}

// References longer than a sequence are compared whole.
TEST_F(SampledRuns, ReadWholeReferences) {
  std::ofstream rows(folder_ / "wordy.jsonl");
  for (int i = 0; i < 60; ++i)
    rows << R"({"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": ")"
         << std::string(100, 'y') << "\"}]}\n";
  rows.close();
  RunConfig config = sampled("wordy");
  config.data.data = (folder_ / "wordy.jsonl").string();
  config.train.train_iters = 1;
  run(config);
  EXPECT_NE(rollouts("wordy", 1).find(cat("\"answer\":\"", std::string(100, 'y'), "\"")), std::string::npos);
}

TEST_F(SampledRuns, SumSeveralRewards) {
  RunConfig config = sampled("sum");
  config.train.train_iters = 1;
  config.rollout.reward = "exact,length";
  config.rollout.reward_weights = "1,0.5";
  run(config);
  const double exact = figures("sum", "reward_exact").front(), length = figures("sum", "reward_length").front();
  EXPECT_DOUBLE_EQ(figures("sum", "reward").front(), exact + 0.5 * length);
  EXPECT_EQ(figures("sum", "reward_std").size(), 1U);
  EXPECT_EQ(figures("sum", "empty_completions").size(), 1U);
}

TEST_F(SampledRuns, KeepTheirStepsWhenRewardsFail) {
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
  EXPECT_NE(message.find("`witan train --run failing --runs-folder "), std::string::npos) << message;
  EXPECT_NE(message.find("` then continues with step 3"), std::string::npos) << message;
  fs::remove(folder_ / "down");
  EXPECT_EQ(run(config).resumed_from, 2);
}

}  // namespace
}  // namespace witan
