#include "witan/planner/search/fit.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tensor/cuda.h"

namespace witan {
namespace {

using test::message_of;
using testing::small_config;

// Activations outweigh everything else, so every way to save memory matters.
RunConfig long_config() {
  RunConfig config = small_config();
  config.model.num_layers = 4;
  config.data.seq_length = 1024;
  config.train.micro_batch_size = 4;
  config.parallel = {2, 2, 1};
  return config;
}

int64_t needed(RunConfig config, const char* recompute) {
  config.model.recompute_granularity = recompute;
  return make_plan(resolve(config, {})).needed_bytes();
}

TEST(Fit, RecomputesTheLeastThatFits) {
  const RunConfig config = long_config();
  const int64_t none = needed(config, "none"), selective = needed(config, "selective"), full = needed(config, "full");
  ASSERT_TRUE(full < selective && selective < none);
  const auto as_it_is = nearest_fitting(resolve(config, {}), none);
  ASSERT_TRUE(as_it_is);
  EXPECT_TRUE(as_it_is->changes.empty());
  const auto little = nearest_fitting(resolve(config, {}), none - 1);
  ASSERT_TRUE(little);
  EXPECT_EQ(little->flags(), "--recompute-granularity selective");
  EXPECT_TRUE(little->same_result);
  EXPECT_EQ(little->needed_bytes, selective);
  const auto more = nearest_fitting(resolve(config, {}), selective - 1);
  ASSERT_TRUE(more);
  EXPECT_EQ(more->flags(), "--recompute-granularity full");
  EXPECT_EQ(more->needed_bytes, full);
}

TEST(Fit, ShardsExpertsFurtherBeforeUsingFewerRanks) {
  RunConfig config = long_config();
  config.data.seq_length = 8;
  config.train.micro_batch_size = 1;
  config.model.mlp.ffn_hidden_size = 4096;  // experts outweigh everything else
  config.parallel = {4, 1, 1};
  const auto divided = nearest_fitting(resolve(config, {}), make_plan(resolve(config, {})).needed_bytes() / 2);
  ASSERT_TRUE(divided);
  EXPECT_EQ(divided->flags(), "--expert-model-parallel-size 4");
  EXPECT_TRUE(divided->same_result);
  config.model.moe.num_experts = 0;  // no experts to shard
  const auto fewer = nearest_fitting(resolve(config, {}), needed(config, "full") * 2 / 3);
  ASSERT_TRUE(fewer);
  EXPECT_TRUE(fewer->same_result);
  EXPECT_LT(fewer->config->parallel.ranks, 4);
  EXPECT_EQ(fewer->config->parallel.ranks * fewer->config->parallel.threads, 4) << "all cores stay in use";
}

// With fewer ranks there are fewer optimizer instances if the previous number is impossible.
TEST(Fit, FewerRanksKeepTheMostOptimizerInstancesPossible) {
  RunConfig config = long_config();
  config.data.seq_length = 8;
  config.train.micro_batch_size = 1;
  config.model.mlp.ffn_hidden_size = 4096;  // weights outweigh everything else
  config.model.moe.num_experts = 0;
  config.parallel = {4, 1, 1};
  config.parallel.use_distributed_optimizer = true;
  config.parallel.num_distributed_optimizer_instances = 4;
  const auto fewer = nearest_fitting(resolve(config, {}), needed(config, "full") * 2 / 3);
  ASSERT_TRUE(fewer);
  EXPECT_TRUE(fewer->same_result);
  EXPECT_LT(fewer->config->parallel.ranks, 4);
  EXPECT_EQ(fewer->config->parallel.num_distributed_optimizer_instances, fewer->config->parallel.ranks);
}

// The number of GPUs is unlimited if they are not this machine's.
TEST(Fit, SuggestsMoreGpus) {
  RunConfig config = long_config();
  config.data.seq_length = 8;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.model.mlp.ffn_hidden_size = 65536;  // experts outweigh communication buffers too
  config.parallel = {.ranks = 1, .expert_model_parallel_size = 1, .threads = 1, .device = "cuda"};
  if (cuda::devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  const int64_t weights = needed(config, "full");
  config.parallel.ranks = config.parallel.expert_model_parallel_size = 4;
  const int64_t quarter = needed(config, "none");
  ASSERT_LT(quarter, weights);
  config.parallel.ranks = config.parallel.expert_model_parallel_size = 1;
  const auto found = nearest_fitting(resolve(config, {}), quarter);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->same_result);
  EXPECT_GT(found->config->parallel.ranks, 1);
  EXPECT_NE(found->flags().find("--ranks"), std::string::npos) << found->flags();
}

TEST(Fit, ChangesNumericsLastAndReportsIt) {
  RunConfig config = long_config();
  config.parallel = {1, 1, 1};
  const int64_t full = needed(config, "full");
  const auto found = nearest_fitting(resolve(config, {}), full - (1 << 20));
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->same_result);
  EXPECT_EQ(found->config->train.micro_batch_size, 2);
  EXPECT_EQ(found->config->data.seq_length, 1024);
  EXPECT_LE(make_plan(found->config).needed_bytes(), full - (1 << 20)) << "verified by a plan";
  config.train.micro_batch_size = 1;
  const auto shorter = nearest_fitting(resolve(config, {}), needed(config, "full") - (1 << 20));
  ASSERT_TRUE(shorter);
  EXPECT_NE(shorter->flags().find("--seq-length 512"), std::string::npos) << shorter->flags();
  EXPECT_FALSE(shorter->same_result);
}

TEST(Fit, NeverRecomputesLess) {
  RunConfig config = long_config();
  config.model.recompute_granularity = "selective";
  const auto found = nearest_fitting(resolve(config, {}), needed(config, "none"));
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->changes.empty()) << found->flags();
}

TEST(Fit, FindsNothingIfWeightsAloneDoNotFit) {
  EXPECT_FALSE(nearest_fitting(resolve(long_config(), {}), 1 << 20));
}

TEST(Fit, RefusesARunWhoseHostLacksRoomForActivations) {
  RunConfig config = long_config();
  config.model.recompute_granularity = "full";
  config.parallel.device = "cuda";
  const Plan without = make_plan(resolve(config, {}));
  config.parallel.offload_activations = true;
  const Plan plan = make_plan(resolve(config, {}));
  EXPECT_LT(plan.arena_bytes(), without.arena_bytes());
  EXPECT_GT(plan.offload_bytes(), 0);
  EXPECT_EQ(plan.resident_bytes() - without.resident_bytes(), plan.offload_bytes());
  require_host_fits(plan, plan.resident_bytes());
  require_host_fits(plan, 0);  // a machine with unknown memory
  require_host_fits(without, 1);
  const std::string message = message_of<OutOfMemoryError>([&] { require_host_fits(plan, plan.resident_bytes() - 1); });
  for (const std::string& words :
       {std::string("offload_activations = true pins "), format_bytes(static_cast<double>(plan.offload_bytes())),
        std::string("Set offload_activations to false")})
    EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(Fit, ErrorsNameTheFix) {
  const RunConfig config = long_config();
  const Plan plan = make_plan(resolve(config, {}));
  require_fits(resolve(config, {}), plan, plan.needed_bytes());
  require_fits(resolve(config, {}), plan, 0);  // a machine with unknown memory
  const std::string same =
      message_of<OutOfMemoryError>([&] { require_fits(resolve(config, {}), plan, plan.needed_bytes() - 1); });
  for (const char* words : {"the run does not fit: it needs", "arenas", "usable",
                            "The same training fits with --recompute-granularity selective"})
    EXPECT_NE(same.find(words), std::string::npos) << same;
  const std::string other =
      message_of<OutOfMemoryError>([&] { require_fits(resolve(config, {}), plan, needed(config, "full") * 3 / 4); });
  EXPECT_NE(other.find("fits"), std::string::npos) << other;
  const std::string none = message_of<OutOfMemoryError>([&] { require_fits(resolve(config, {}), plan, 1 << 20); });
  EXPECT_NE(none.find("no model fits into less"), std::string::npos) << none;
  RunConfig large = long_config();
  large.model.num_layers = 40;
  large.parallel = {1, 1, 1};
  const Plan of_large = make_plan(resolve(large, {}));
  const std::string small = message_of<OutOfMemoryError>(
      [&] { require_fits(resolve(large, {}), of_large, of_large.reserve_bytes + (1 << 20)); });
  EXPECT_NE(small.find("reduce num_layers"), std::string::npos) << small;
}

}  // namespace
}  // namespace witan
