// deterministic = true gives the same bits in every layout.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_same_bits;
using testing::kFsdp;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(4, 100);

RunConfig deterministic_config(const char* dtype) {
  RunConfig config = small_config();
  config.model.dtype = dtype;
  config.train.train_iters = 100;
  config.parallel.deterministic = true;
  config.log.log_activations = 2;
  return config;
}

class Deterministic : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Deterministic, ::testing::Values("float32", "bfloat16"));

void expect_the_bits_of_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts) {
  const Trajectory one = testing::expect_bits_of_one_rank(config, layouts, kSteps);
  EXPECT_LT(one.losses.back(), one.losses.front());
}

TEST_P(Deterministic, ReplicasAndExpertParallelRanksHaveTheBitsOfOneRank) {
  expect_the_bits_of_one_rank(deterministic_config(GetParam()), {{"replicate=2"},
                                                                 {"replicate=2,expert=2"},
                                                                 {"replicate=4"},
                                                                 {"replicate=4,expert=2"},
                                                                 {"replicate=4,expert=4"},
                                                                 {"replicate=8"},
                                                                 {"replicate=8,expert=2"},
                                                                 {"replicate=8,expert=4"},
                                                                 {"replicate=8,expert=8"}});
}

// The embedding has two chunks of 64Ki elements, so shards begin inside a matrix.
RunConfig deep_config(const char* dtype) {
  RunConfig config = deterministic_config(dtype);
  config.model.num_layers = 4;
  config.model.vocab_size = 2100;
  config.data.seq_length = 8;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  return config;
}

TEST_P(Deterministic, DistributedOptimizersHaveTheBitsOfOneRank) {
  expect_the_bits_of_one_rank(deep_config(GetParam()), {{"shard=2"},
                                                        {"shard=4,expert=2"},
                                                        {"shard=8,expert=8"},
                                                        {"replicate=2,shard=2"},
                                                        {"replicate=2,shard=4,expert=2"},
                                                        {"replicate=4,shard=2,expert=8"},
                                                        {"shard=4,expert=2", "optim_grads"}});
}

TEST_P(Deterministic, ShardedParametersHaveTheBitsOfOneRank) {
  expect_the_bits_of_one_rank(
      deep_config(GetParam()),
      {{"shard=2", kFsdp},
       {"shard=4,expert=2", kFsdp},
       {"shard=8,expert=8", kFsdp},
       {"replicate=2,shard=2", kFsdp},
       {"replicate=2,shard=4,expert=2", kFsdp},
       {"shard=2,pipeline=2", kFsdp, 2},
       {"replicate=2,shard=2,pipeline=2,expert=2", kFsdp},
       {.mesh = "replicate=4,shard=2,expert=4", .strategy = kFsdp, .reshard_after_forward = false}});
}

TEST_P(Deterministic, PipelinesHaveTheBitsOfOneRank) {
  expect_the_bits_of_one_rank(deep_config(GetParam()), {{"pipeline=2"},
                                                        {"pipeline=4"},
                                                        {"pipeline=2", "auto", 2},
                                                        {"replicate=2,pipeline=2,expert=2"},
                                                        {"replicate=4,pipeline=2", "auto", 2},
                                                        {"shard=2,pipeline=4,expert=2"},
                                                        {"replicate=2,shard=2,pipeline=2,expert=4", "auto", 2}});
}

TEST_P(Deterministic, ThreadsRecomputationAndSequentialExpertsChangeNoBit) {
  RunConfig config = deterministic_config(GetParam());
  const Trajectory one = run_engine(config, 10);
  for (const int64_t threads : {2, 3}) {
    config.parallel.threads = threads;
    expect_same_bits(one, run_engine(config, 10));
  }
  config.parallel = {4, 2, 2, true};
  config.model.recompute_granularity = "full";
  expect_same_bits(one, run_engine(config, 10));
  config.model.moe.moe_grouped_gemm = false;
  const Trajectory four = run_engine(config, 10);
  config.parallel = {1, 1, 1, true};
  expect_same_bits(four, run_engine(config, 10));
}

TEST_P(Deterministic, DropoutBiasesAndLearnedPositionsHaveTheBitsOfOneRank) {
  RunConfig dense = testing::gpt_run_config(), moe = small_config();
  testing::drop(moe);
  for (RunConfig config : {dense, moe}) {
    config.model.dtype = GetParam();
    config.parallel = {1, 1, 1, true};
    const Trajectory one = run_engine(config, 5);
    for (const int ranks : {2, 8}) {
      SCOPED_TRACE(cat(ranks, " ranks, ", config.model.moe.num_experts, " experts"));
      config.parallel = {ranks, config.model.moe.num_experts > 0 ? 2 : 1, 2, true};
      config.model.recompute_granularity = ranks == 8 ? "full" : "none";
      expect_same_bits(one, run_engine(config, 5));
    }
  }
}

// Without it, these layouts differ by rounding.
TEST(Deterministic, WithoutItLayoutsDifferByRounding) {
  RunConfig config = deterministic_config("float32");
  config.parallel.deterministic = false;
  const Trajectory one = run_engine(config, 10);
  config.parallel.ranks = 2;
  EXPECT_NE(one.weights, run_engine(config, 10).weights);
}

}  // namespace
}  // namespace witan
