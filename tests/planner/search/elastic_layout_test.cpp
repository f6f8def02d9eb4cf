#include "witan/planner/search/elastic_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/planner/search/layout_choice.h"

namespace witan {
namespace {

using testing::small_config;

// The run has 24 micro-batches, 8 experts and 8 layers; nothing is sharded yet.
RunConfig run_of(int64_t ranks) {
  RunConfig config = small_config();
  config.model.num_layers = 8;
  config.model.moe.num_experts = 8;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 24;
  config.parallel.ranks = ranks;
  config.parallel.expert_model_parallel_size = 1;
  return config;
}

std::string found(const RunConfig& config, int64_t most, const LayoutCheck& check = {}) {
  const ResolvedConfig layout = elastic_layout(config, {}, {1, most}, check);
  return cat(layout->parallel.ranks, ": ", mesh_text(layout));
}

TEST(ElasticLayout, UsesTheMostDataParallelRanksThatDivideTheMicroBatches) {
  const RunConfig config = run_of(8);
  EXPECT_EQ(found(config, 8), "8: replicate=8");
  EXPECT_EQ(found(config, 7), "6: replicate=6") << "24 micro-batches are not divisible by 7 ranks";
  EXPECT_EQ(found(config, 5), "4: replicate=4");
  EXPECT_EQ(found(config, 3), "3: replicate=3");
  EXPECT_EQ(found(config, 1), "1: one rank");
}

TEST(ElasticLayout, KeepsSettingsThatAffectTheLoss) {
  RunConfig config = run_of(8);
  config.parallel.tensor_model_parallel_size = config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    const ResolvedConfig layout = elastic_layout(config, {}, {1, ranks});
    EXPECT_EQ(layout->train.global_batch_size, 24);
    EXPECT_EQ(layout->train.micro_batch_size, 1);
    EXPECT_EQ(layout->train.seed, config.train.seed);
    EXPECT_EQ(layout->model.num_layers, 8);
    EXPECT_EQ(layout->parallel.ranks_per_process, 1) << "each is a process";
  }
}

TEST(ElasticLayout, ExpertParallelSizeDividesTheRemainingRanks) {
  RunConfig config = run_of(8);
  config.parallel.expert_model_parallel_size = 8;
  EXPECT_EQ(found(config, 7), "6: replicate=6,expert=2") << "2 is the largest divisor of 8 that divides 6 ranks";
  EXPECT_EQ(found(config, 4), "4: replicate=4,expert=4");
  EXPECT_EQ(found(config, 3), "3: replicate=3");
}

// Memory of a rank decides: if unsharded experts do not fit, fewer ranks that shard them are used.
TEST(ElasticLayout, SkipsLayoutsThatDoNotFit) {
  RunConfig config = run_of(4);
  config.parallel.expert_model_parallel_size = 4;
  const auto needs_division = [](const ResolvedConfig& layout) {
    require<OutOfMemoryError>(layout->parallel.expert_model_parallel_size >= 2, "all experts are too much for a rank");
  };
  EXPECT_EQ(found(config, 3), "3: replicate=3");
  EXPECT_EQ(found(config, 3, needs_division), "2: replicate=2,expert=2");
  try {
    found(config, 1, needs_division);
    FAIL() << "does not fit on one rank";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "no layout of 1 rank trains this run: all experts are too much for a rank");
  }
}

TEST(ElasticLayout, KeepsTensorAndPipelineWhilePossible) {
  RunConfig config = run_of(8);
  config.parallel.tensor_model_parallel_size = config.parallel.pipeline_model_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  EXPECT_EQ(found(config, 7), "4: tensor=2,pipeline=2,expert_tensor=2");
  EXPECT_EQ(found(config, 3), "2: tensor=2,expert_tensor=2")
      << "the pipeline is dropped first, and three is not a multiple of two";
  EXPECT_EQ(found(config, 1), "1: one rank");
  EXPECT_FALSE(elastic_layout(config, {}, {1, 1})->parallel.sequence_parallel) << "without tensor parallelism";
}

TEST(ElasticLayout, SplitsStagesAnew) {
  RunConfig config = run_of(4);
  config.parallel.pipeline_model_parallel_size = 4;
  config.parallel.num_layers_per_virtual_pipeline_stage = 1;
  const ResolvedConfig all = elastic_layout(config, {}, {1, 4}), two = elastic_layout(config, {}, {1, 3});
  EXPECT_EQ(all->parallel.num_layers_per_virtual_pipeline_stage, 1);
  EXPECT_EQ(two->parallel.pipeline_model_parallel_size, 2);
  EXPECT_EQ(two->parallel.ranks, 2);
  EXPECT_EQ(two->parallel.num_layers_per_virtual_pipeline_stage, 0);
}

TEST(ElasticLayout, KeepsShardingAndOptimizerInstances) {
  RunConfig config = run_of(8);
  config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  config.parallel.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(found(config, 8), "8: replicate=2,shard=4");
  EXPECT_EQ(found(config, 4), "4: replicate=2,shard=2");
  EXPECT_EQ(found(config, 3), "3: shard=3") << "two instances do not divide three ranks";
}

// Sums in trees need powers of two.
TEST(ElasticLayout, DeterministicRunsKeepTheirBits) {
  RunConfig config = run_of(4);
  config.train.global_batch_size = 12;
  config.parallel.deterministic = true;
  EXPECT_EQ(found(config, 3), "3: replicate=3") << "four micro-batches each";
  config.train.global_batch_size = 24;
  EXPECT_EQ(found(config, 4), "3: replicate=3") << "six is not a power of two, eight is";
  EXPECT_EQ(found(config, 2), "1: one rank") << "neither is twelve";
}

TEST(ElasticLayout, RefusesFewerRanksThanTheMinimum) {
  RunConfig config = run_of(4);
  config.train.global_batch_size = 4;
  try {
    elastic_layout(config, {}, {3, 3});
    FAIL() << "four micro-batches are not divisible by three ranks";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("no layout of 3 ranks trains this run: global_batch_size / "
                                                    "micro_batch_size = 4 is not divisible by ranks = 3"));
  }
}

TEST(ElasticLayout, IsPassedOnByConfigurationKeys) {
  RunConfig config = run_of(8);
  config.parallel.expert_model_parallel_size = 4;
  const std::string keys = layout_keys(elastic_layout(config, {}, {1, 6}));
  EXPECT_THAT(keys, ::testing::HasSubstr("ranks = 6\n"));
  EXPECT_THAT(keys, ::testing::HasSubstr("expert_model_parallel_size = 2\n"));
  RunConfig other = config;
  parse_toml(other.fields(), keys, "keys");
  EXPECT_EQ(other.parallel.ranks, 6);
  EXPECT_EQ(other.parallel.expert_model_parallel_size, 2);
}

}  // namespace
}  // namespace witan
