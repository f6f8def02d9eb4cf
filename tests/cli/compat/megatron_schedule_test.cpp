// Flags for learning rate and weight decay, and samples that are converted to iterations.
#include "cli/compat/megatron_support.h"
#include "witan/optim/param_groups.h"

namespace witan::test {
namespace {

TEST(Megatron, ConvertsSamplesToIterations) {
  const Words samples = {"--megatron", "--global-batch-size", "4", "--train-samples", "4003", "--lr-decay-samples",
                         "4000",       "--lr-warmup-samples", "40"};
  const RunConfig config = read_config(samples);
  EXPECT_EQ(config.train.train_iters, 1000);  // Megatron-LM: train_samples // global_batch_size
  EXPECT_EQ(config.optimizer.lr_decay_iters, 1000);
  EXPECT_EQ(config.optimizer.lr_warmup_iters, 10);
  EXPECT_TRUE(contains(config_refused({"--megatron", "--global-batch-size", "4", "--lr-warmup-samples", "42"}),
                       "--lr-warmup-samples 42: is not a multiple of --global-batch-size 4, and schedules count whole "
                       "iterations: use 40 or 44"));
  EXPECT_TRUE(contains(config_refused({"--megatron", "--train-samples", "42"}), "needs --global-batch-size as well"));
  EXPECT_TRUE(contains(config_refused({"--megatron", "--global-batch-size", "0", "--train-samples", "42"}),
                       "from 1 on, not 0"));
  EXPECT_TRUE(
      contains(config_refused({"--megatron", "--global-batch-size", "4", "--train-samples", "-4"}), "a whole number"));
}

// Samples remain samples if the batch grows, since iterations then have different sizes.
TEST(Megatron, ARampCountsSamples) {
  const Words ramp = {"--megatron", "--global-batch-size", "8",  "--rampup-batch-size", "2", "2",
                      "10",         "--train-samples",     "60", "--lr-decay-samples",  "50"};
  const auto with = [&](const Words& more) {
    Words words = small(ramp);
    const auto iterations = std::ranges::find(words, "--train-iters");
    words.erase(iterations, iterations + 2);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const RunConfig config = read_words(with({"--lr-warmup-samples", "7", "--lr-wsd-decay-samples", "9"})).config;
  EXPECT_EQ(config.train.rampup_batch_size, "2,2,10");
  EXPECT_EQ(config.train.train_samples, 60);
  EXPECT_EQ(config.optimizer.lr_decay_samples, 50);
  EXPECT_EQ(config.optimizer.lr_warmup_samples, 7);
  EXPECT_EQ(config.optimizer.lr_wsd_decay_samples, 9);
  EXPECT_FALSE(config.train.decrease_batch_size_if_needed);
  EXPECT_TRUE(read_words(with({"--decrease-batch-size-if-needed"})).config.train.decrease_batch_size_if_needed);
  EXPECT_EQ(read_words(with({"--lr-warmup-fraction", "0.1"})).config.optimizer.lr_warmup_samples, 5);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] {
                         read_words(with({"--lr-warmup-fraction", "0.11"}));
                       }),
                       "is 5.5 of 50 samples"));
  EXPECT_TRUE(contains(config_refused({"--megatron", "--rampup-batch-size", "2", "2", "--train-samples", "60"}),
                       "takes three numbers: START INCREMENT SAMPLES"));
  EXPECT_TRUE(contains(config_refused({"--megatron", "--rampup-batch-size", "2", "2", "10", "--train-iters", "60"}),
                       "give --train-samples instead of --train-iters"));
}

TEST(Megatron, WarmUpMayBeAFraction) {
  EXPECT_EQ(read_config({"--lr-decay-iters", "430000", "--lr-warmup-fraction", ".001"}).optimizer.lr_warmup_iters, 430);
  EXPECT_EQ(read_config({"--lr-warmup-fraction", "0.25"}).optimizer.lr_warmup_iters, 2);
  EXPECT_TRUE(contains(config_refused({"--lr-warmup-fraction", "0.3"}), "is 2.4 of 8 iterations"));
  EXPECT_TRUE(contains(config_refused({"--lr-warmup-fraction", "2"}), "from 0 to 1"));
}

// --decoupled-lr applies only to the input and output layers, tied or not.
TEST(Megatron, DecoupledLrAppliesToEmbeddingAndHead) {
  RunConfig config =
      read_config({"--lr", "0.01", "--min-lr", "0.001", "--decoupled-lr", "5e-3", "--decoupled-min-lr", "0"});
  const ParamGroups groups(config.optimizer);
  ASSERT_EQ(groups.size(), 2U);
  for (const char* name : {"embedding.weight", "head.weight"})
    EXPECT_EQ(groups.index_of({.name = name, .shape = {2, 2}}), 1U) << name;
  for (const char* name : {"position_embedding.weight", "layers.0.moe.router.weight"})
    EXPECT_EQ(groups.index_of({.name = name, .shape = {2, 2}}), 0U) << name;
  EXPECT_EQ(groups.all()[1].settings.lr, 5e-3);
  EXPECT_EQ(groups.all()[1].settings.min_lr, 0);
  EXPECT_EQ(groups.all()[0].settings.lr, 0.01);
  const RunConfig inherits = read_config({"--min-lr", "0.001", "--decoupled-lr", "0.005"});
  EXPECT_EQ(ParamGroups(inherits.optimizer).all()[1].settings.min_lr, 0.001);
  EXPECT_TRUE(contains(config_refused({"--decoupled-min-lr", "1e-5"}), "needs --decoupled-lr as well"));
  EXPECT_TRUE(contains(config_refused({"--decoupled-lr", "fast"}), "must be a number from 0 on"));
  EXPECT_TRUE(contains(config_refused({"--decoupled-lr", "1e-5", "--optimizer-groups", "[]"}), "embedding.weight"));
}

TEST(Megatron, WeightDecaySchedulesHaveTwoEnds) {
  for (const Words& decay : {Words{"--weight-decay", "0.5", "--end-weight-decay", "0.2"},
                             {"--end-weight-decay", "0.2", "--weight-decay", "0.5"}}) {
    Words words = {"--bf16", "--weight-decay-incr-style", "linear", "--start-weight-decay", "0.1"};
    words.insert(words.end(), decay.begin(), decay.end());
    const OptimizerConfig optimizer = read_config(words).optimizer;
    EXPECT_EQ(optimizer.start_weight_decay, 0.1);
    EXPECT_EQ(optimizer.weight_decay, 0.2) << "the end value, whatever the constant value is";
  }
  for (const char* end : {"--start-weight-decay", "--end-weight-decay"})
    EXPECT_TRUE(contains(config_refused({"--bf16", "--weight-decay-incr-style", "cosine", end, "0.2"}),
                         "needs --start-weight-decay and --end-weight-decay"));
}

}  // namespace
}  // namespace witan::test
