#include "witan/planner/plan.h"

#include <gtest/gtest.h>

#include "train/run_support.h"

namespace witan {
namespace {

using testing::run_engine;
using testing::small_config;

// The plan is a promise: the arena of a real run ends at the very byte.
TEST(Plan, PredictsTheArenaOfTheRun) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* granularity : {"none", "selective", "full"})
      for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {4, 2}})
        for (const int64_t experts : {int64_t{0}, int64_t{8}}) {
          RunConfig config = small_config();
          config.model.dtype = dtype;
          config.model.recompute_granularity = granularity;
          config.model.moe.num_experts = experts;
          config.train.sample_tokens = 0;
          config.parallel = {ranks, experts == 0 ? 1 : expert, 1};
          EXPECT_EQ(make_plan(config).arena_bytes(), run_engine(config, 3).arena_high_water)
              << dtype << ", recompute " << granularity << ", " << ranks << " ranks, experts over " << expert << ", "
              << experts << " experts";
        }
}

TEST(Plan, PredictsTheArenaWithDropoutBiasesAndLearnedPositions) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* granularity : {"none", "selective", "full"})
      for (const int ranks : {1, 2}) {
        RunConfig dense = testing::gpt_run_config(), moe = small_config();
        testing::drop(moe);
        for (RunConfig* config : {&dense, &moe}) {
          config->model.dtype = dtype;
          config->model.recompute_granularity = granularity;
          config->train.sample_tokens = 0;
          config->parallel = {ranks, 1, 1};
          EXPECT_EQ(make_plan(*config).arena_bytes(), run_engine(*config, 3).arena_high_water)
              << dtype << ", recompute " << granularity << ", " << ranks << " ranks, " << config->model.moe.num_experts
              << " experts";
        }
      }
}

// A sample ends with the learned positions, however long the prompt and the wish.
TEST(Plan, SamplesEndWithTheLearnedPositions) {
  RunConfig config = testing::gpt_run_config();
  for (const std::string prompt : {"", "a prompt", "a prompt that has far more bytes than the model has positions"}) {
    config.train.sample_prompt = prompt;
    config.train.sample_tokens = 1000;
    EXPECT_GT(make_plan(config).arena_bytes(), 0) << prompt;
  }
}

// Masks are drawn again, not kept: what dropout needs is one tensor [B, S, D] for a moment, however deep the model.
TEST(Plan, DropoutKeepsNoMasks) {
  for (const int64_t layers : {2, 6}) {
    RunConfig config = small_config();
    config.model.num_layers = layers;
    const int64_t before = make_plan(config).ranks[0].tags.at("activations");
    testing::drop(config);
    const int64_t tensor = 2 * 12 * 32 * 4;
    EXPECT_LE(make_plan(config).ranks[0].tags.at("activations"), before + tensor) << layers << " layers";
  }
}

TEST(Plan, PredictsTheArenaWithACapacityAndItIsSmaller) {
  for (const char* granularity : {"none", "full"})
    for (const auto& [ranks, expert] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {4, 4}}) {
      RunConfig config = small_config();
      config.model.recompute_granularity = granularity;
      config.train.sample_tokens = 0;
      config.parallel = {ranks, expert, 1};
      const int64_t dropless = make_plan(config).arena_bytes();
      for (const char* policy : {"probs", "position"}) {
        config.model.moe.moe_expert_capacity_factor = 0.5;
        config.model.moe.moe_token_drop_policy = policy;
        const int64_t planned = make_plan(config).arena_bytes();
        EXPECT_EQ(planned, run_engine(config, 3).arena_high_water)
            << policy << ", recompute " << granularity << ", experts over " << expert;
        EXPECT_LT(planned, dropless);
      }
    }
}

TEST(Plan, RecomputingTakesLessMemory) {
  RunConfig config = small_config();
  config.model.num_layers = 6;
  std::vector<int64_t> bytes;
  for (const char* granularity : {"none", "selective", "full"}) {
    config.model.recompute_granularity = granularity;
    bytes.push_back(make_plan(config).arena_bytes());
  }
  EXPECT_GT(bytes[0], bytes[1]);
  EXPECT_GT(bytes[1], bytes[2]);
}

TEST(Plan, PrintsCountsPartsMemoryAndTraffic) {
  RunConfig config = small_config();
  config.parallel = {2, 2, 1};
  const std::string page = format_plan(make_plan(config));
  for (const char* word : {"exact", "active for one token", "as Megatron-LM counts", "experts", "attention", "router",
                           "optimizer", "weights", "arena", "all_to_all", "all_reduce"})
    EXPECT_NE(page.find(word), std::string::npos) << word << " is missing in\n" << page;
}

TEST(Plan, FlopsAreThoseOfTheMatrices) {
  RunConfig config = small_config();
  config.model.moe.num_experts = 0;
  const Plan plan = make_plan(config);
  // 6 FLOP for every weight that multiplies and token, and the causal half of attention, with its backward 3.5 times.
  const auto& m = config.model;
  const double tokens = static_cast<double>(plan.tokens_per_step);
  const double weights = static_cast<double>(m.num_layers * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 24 * 32) + 61 * 32);
  const double pairs = 16.0 * 12 * 13 / 2;
  const double attention = 3.5 * 4 * pairs * 32 * static_cast<double>(m.num_layers);
  EXPECT_NEAR(plan.step_flops / (6 * weights * tokens + attention), 1.0, 0.25);
  EXPECT_GT(plan.step_flops, 6 * weights * tokens + attention);
}

// Ranks divide the work; only the update is each one's own.
TEST(Plan, FlopsAreThoseOfAllRanks) {
  RunConfig config = small_config();
  const double one = make_plan(config).step_flops;
  config.parallel = {2, 2, 1};
  EXPECT_NEAR(make_plan(config).step_flops / one, 1.0, 0.05);
}

}  // namespace
}  // namespace witan
