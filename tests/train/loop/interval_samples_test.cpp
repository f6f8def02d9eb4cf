#include "witan/train/loop/interval_samples.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class IntervalSamples : public testing::Trainer {
 protected:
  RunConfig sampling(const std::string& name) {
    std::ofstream(folder_ / "prompts.jsonl") << "\"the witan \"\n{\"prompt\": \"\"}\n";
    RunConfig config = this->config(name);
    config.train.sample_interval = 3;
    config.train.sample_prompts = (folder_ / "prompts.jsonl").string();
    return config;
  }
  std::string samples_of(const std::string& name) { return read_file(folder_ / name / "samples.jsonl"); }
};

TEST_F(IntervalSamples, AreInTheFileTheMetricsAndTheLog) {
  run(sampling("a"));
  std::vector<int64_t> steps, seeds;
  std::vector<std::string> prompts;
  size_t longest = 0;
  const Metrics found = read_metrics(folder_ / "a" / "samples.jsonl");
  for (const SampleEvent& sample : found.samples) {
    steps.push_back(sample.step);
    seeds.push_back(*sample.seed);
    prompts.push_back(sample.prompt);
    longest = std::max(longest, sample.text.size());
  }
  EXPECT_THAT(steps, ElementsAre(3, 3, 6, 6, 9, 9, 12, 12));
  EXPECT_THAT(seeds, ElementsAre(1237, 1237, 1240, 1240, 1243, 1243, 1246, 1246));
  EXPECT_THAT(prompts, ElementsAre("the witan ", "", "the witan ", "", "the witan ", "", "the witan ", ""));
  EXPECT_GT(longest, 0u);
  const Metrics metrics = read_metrics(folder_ / "a" / "metrics.jsonl");
  ASSERT_EQ(metrics.samples.size(), 9u) << "and the final one";
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(metrics.samples[i].text, found.samples[i].text);
  EXPECT_THAT(read_file(folder_ / "a" / "train.log"), HasSubstr("sample       step 3: the witan "));
}

// Samples are the same with expert parallelism, replicas, and sharded weights.
TEST_F(IntervalSamples, DoNotChangeTraining) {
  int number = 0;
  for (const bool experts : {true, false})
    for (const bool sharded : {true, false}) {
      const std::string with = cat("with-", number), without = cat("without-", number++);
      for (const std::string& name : {with, without}) {
        RunConfig config = name == with ? sampling(name) : this->config(name);
        config.parallel = {2, experts ? 2 : 1, 1};
        config.parallel.use_distributed_optimizer = sharded;
        if (sharded) config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
        config.model.hidden_dropout = 0.1;
        run(config);
      }
      expect_same_steps(with, without);
      EXPECT_EQ(weights(with, 12), weights(without, 12)) << with;
      EXPECT_FALSE(fs::exists(folder_ / without / "samples.jsonl"));
    }
}

// Samples from after the checkpoint are removed and regenerated.
TEST_F(IntervalSamples, AreTheSameAfterAResume) {
  run(sampling("whole"));
  RunConfig parts = sampling("parts");
  parts.train.train_iters = 10;
  run(parts);
  EXPECT_NE(samples_of("parts"), samples_of("whole"));
  fs::remove_all(checkpoint("parts", 10));
  parts.train.train_iters = 12;
  EXPECT_EQ(run(parts).resumed_from, 8);
  EXPECT_EQ(samples_of("parts"), samples_of("whole"));
  // A run that starts over, as after a kill before the first save, starts a new file.
  fs::remove_all(folder_ / "parts" / "checkpoints");
  fs::remove(folder_ / "parts" / "metrics.jsonl");
  run(parts);
  EXPECT_EQ(samples_of("parts"), samples_of("whole"));
}

TEST_F(IntervalSamples, NeedAWholeModelTokensAndAFile) {
  const auto refusal = [&](auto change) {
    RunConfig config = testing::small_config();
    config.train.sample_interval = 2;
    change(config);
    return message_of<ConfigError>([&] { resolve(config, {}); });
  };
  EXPECT_THAT(refusal([](RunConfig& c) {
                c.parallel = {2, 1, 1};
                c.parallel.tensor_model_parallel_size = 2;
              }),
              HasSubstr("no rank holds the whole model, which generating text needs. Set sample_interval = 0"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.sample_tokens = 0; }), HasSubstr("needs sample_tokens above 0"));
  RunConfig whole = testing::small_config();
  whole.train.sample_interval = 2;
  EXPECT_NO_THROW(resolve(whole, {}));
  TrainConfig train;
  train.sample_prompts = folder_ / "none.txt";
  EXPECT_TRUE(interval_prompts(train).empty()) << "not requested";
  train.sample_interval = 1;
  EXPECT_THROW(interval_prompts(train), Error);
  train.sample_prompts.clear();
  EXPECT_THAT(interval_prompts(train), ElementsAre("The "));
}

}  // namespace
}  // namespace witan
