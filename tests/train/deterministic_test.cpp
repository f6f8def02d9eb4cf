// deterministic = true: the same bits in every layout.
#include <gtest/gtest.h>

#include <array>

#include "train/run_support.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSteps = 4;
#else
constexpr int64_t kSteps = 100;
#endif

RunConfig deterministic_config(const char* dtype) {
  RunConfig config = small_config();
  config.model.dtype = dtype;
  config.train.train_iters = kSteps;
  config.parallel.deterministic = true;
  return config;
}

void expect_same_bits(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_EQ(a.weights[i], b.weights[i]) << "parameter " << i;
}

class Deterministic : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Deterministic, ::testing::Values("float32", "bfloat16"));

TEST_P(Deterministic, EveryLayoutGivesTheBitsOfOneRank) {
  RunConfig config = deterministic_config(GetParam());
  const Trajectory one = run_engine(config, kSteps);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const auto& [ranks, expert] :
       std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}}) {
    SCOPED_TRACE(cat(ranks, " ranks, experts over ", expert));
    config.parallel.ranks = ranks;
    config.parallel.expert_model_parallel_size = expert;
    expect_same_bits(one, run_engine(config, kSteps));
  }
}

TEST_P(Deterministic, DistributedOptimizersToo) {
  const auto config_of = [&](int ranks, int expert, int instances) {
    RunConfig config = testing::sharded_config(ranks, expert, instances);
    config.model.dtype = GetParam();
    config.parallel.deterministic = true;
    return config;
  };
  constexpr int64_t kFew = kSteps < 20 ? kSteps : 20;  // the matrices are large
  RunConfig alone = config_of(1, 1, 1);
  alone.parallel.use_distributed_optimizer = false;
  const Trajectory one = run_engine(alone, kFew);
  for (const auto& [ranks, expert, instances] :
       std::vector<std::array<int, 3>>{{2, 1, 1}, {2, 2, 1}, {4, 2, 1}, {4, 1, 2}, {8, 2, 2}, {8, 8, 4}, {8, 4, 8}}) {
    SCOPED_TRACE(cat(ranks, " ranks, experts over ", expert, ", ", instances, " optimizers"));
    expect_same_bits(one, run_engine(config_of(ranks, expert, instances), kFew));
  }
}

TEST_P(Deterministic, ThreadsRecomputationAndSequentialExpertsToo) {
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

TEST_P(Deterministic, DropoutBiasesAndLearnedPositionsToo) {
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

// What it is for: without it these layouts differ, as rounding has it.
TEST(Deterministic, WithoutItLayoutsDifferByRounding) {
  RunConfig config = deterministic_config("float32");
  config.parallel.deterministic = false;
  const Trajectory one = run_engine(config, 10);
  config.parallel.ranks = 2;
  EXPECT_NE(one.weights, run_engine(config, 10).weights);
}

}  // namespace
}  // namespace witan
