// Padding is not a token: its amount changes no step, no evaluation and no reported figure.
// layouts/router_layouts_test.cpp tests layouts with padded rows.
#include <gtest/gtest.h>

#include <functional>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"
#include "train/step/layouts/padded_rows.h"
#include "train/step/layouts/router_variants.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::kFsdp;
using testing::kPaddedLength;
using testing::laid_out;
using testing::padded_batches;
using testing::run_engine;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);

RunConfig recipe() {
  RunConfig config = testing::router_recipe();
  config.data.data_packing = "best_fit";
  config.data.seq_length = kPaddedLength;
  return config;
}

RunConfig padded_to(RunConfig config, int64_t length) {
  config.data.seq_length = length;
  return config;
}

// Measures activations and the largest logits.
RunConfig measured() {
  RunConfig config = recipe();
  config.optimizer.optimizer = "muon";
  config.optimizer.qk_clip = true;
  config.log.log_activations = 1;
  return config;
}

class Padding : public ::testing::TestWithParam<testing::RouterVariant> {
 protected:
  static RunConfig config() {
    RunConfig config = recipe();
    GetParam().change(config.model);
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Routers, Padding, ::testing::ValuesIn(testing::router_variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(Padding, AnyLengthTakesTheSameSteps) {
  RunConfig config = Padding::config();
  config.log.log_activations = 1;
  const Trajectory narrow = run_engine(config, kSteps, padded_batches);
  for (const double loss : narrow.losses) EXPECT_TRUE(std::isfinite(loss));
  const Trajectory wide = run_engine(padded_to(config, 3 * kPaddedLength), kSteps, padded_batches);
  expect_equal(narrow, wide, 1e-9, "rows three times as long");
  EXPECT_EQ(narrow.dropped, wide.dropped);
}

// In the first step, which has the same weights, measurements are summed in token order.
TEST(PaddingOfFigures, ChangesNoBit) {
  const RunConfig config = measured();
  const Trajectory of_64 = run_engine(padded_to(config, 64), 1, padded_batches),
                   of_512 = run_engine(padded_to(config, 512), 1, padded_batches);
  ASSERT_FALSE(of_64.activations.empty());
  ASSERT_EQ(of_64.max_logits.size(), 1u);
  EXPECT_EQ(of_64.activations, of_512.activations);
  EXPECT_EQ(of_64.max_logits, of_512.max_logits);
}

// A logit or an activation of padding may exceed all of the tokens', but must not be reported.
TEST(PaddingOfFigures, IgnoresTheContentsOfPadding) {
  const RunConfig config = measured();
  const Trajectory zeros = run_engine(config, 1, padded_batches);
  for (const int32_t token : {5, 17, 40}) {
    const auto filled = [&](const RunConfig& of, const Layout& layout, int rank, int64_t step) {
      std::vector<Batch> batches = padded_batches(of, layout, rank, step);
      for (Batch& batch : batches)
        for (size_t i = 0; i < batch.tokens.size(); ++i)
          if (batch.sequence_ids[i] == kPadding) batch.tokens[i] = token;
      return batches;
    };
    const Trajectory found = run_engine(config, 1, filled);
    EXPECT_EQ(zeros.activations, found.activations) << token;
    EXPECT_EQ(zeros.max_logits, found.max_logits) << token;
    EXPECT_EQ(zeros.losses, found.losses) << token;
  }
}

TEST(PaddingOfFigures, CoverOnlyTokensInEveryLayout) {
  const RunConfig config = measured();
  testing::expect_planned_steps_of_one_rank(
      config,
      {{"context=2"}, {.mesh = "context=4", .comm = "p2p"}, {"tensor=2,expert_tensor=1"}, {"replicate=2,tensor=2"}},
      kSteps, padded_batches);
}

// Losses are summed in token order, to which padding adds zeros; experts compute only tokens.
TEST(PaddingOfEvaluation, ChangesNoBitOfTheLoss) {
  const auto nats = [](const RunConfig& config) {
    Evaluation found;
    testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
      found = engine.evaluate(padded_batches(config, groups.layout(), rank, 0));
    });
    return found;
  };
  const Evaluation of_64 = nats(padded_to(recipe(), 64)), of_512 = nats(padded_to(recipe(), 512));
  EXPECT_GT(of_64.targets, 0);
  EXPECT_EQ(of_64.targets, of_512.targets);
  EXPECT_EQ(of_64.nats, of_512.nats);
}

TEST(PaddingOfRouters, DeterministicLayoutsHaveTheSameBits) {
  RunConfig config = recipe();
  config.model.dtype = "float32";
  config.model.moe.moe_expert_capacity_factor = 1;
  config.parallel.deterministic = true;
  const Trajectory one = run_engine(config, kSteps, padded_batches);
  const Trajectory several =
      run_engine(laid_out(config, {"shard=2,pipeline=2,expert=2", kFsdp}), kSteps, padded_batches);
  EXPECT_EQ(one.losses, several.losses);
  EXPECT_EQ(one.balances, several.balances);
  EXPECT_EQ(one.zs, several.zs);
  EXPECT_EQ(one.norms, several.norms);
  EXPECT_EQ(one.weights, several.weights);
}

// No dispatcher sends padding rows to experts.
TEST(PaddingOfRouters, DispatchersAndBackendsTakeTheSameSteps) {
  const Trajectory one = run_engine(recipe(), kSteps, padded_batches);
  const auto expect_same = [&](const char* what, const std::function<void(MoeConfig&)>& change) {
    RunConfig config = laid_out(recipe(), {"replicate=4,expert=4"});
    change(config.model.moe);
    expect_equal(one, run_engine(config, kSteps, padded_batches), 1e-9, what);
  };
  expect_same("allgather", [](MoeConfig& moe) { moe.moe_token_dispatcher_type = "allgather"; });
  expect_same("block-sparse", [](MoeConfig& moe) { moe.moe_expert_backend = "block_sparse"; });
  expect_same("sequential", [](MoeConfig& moe) { moe.moe_expert_backend = "sequential"; });
  expect_same("bounded pools", [](MoeConfig& moe) { moe.moe_pool_factor = 1; });
  expect_same("bounded sends", [](MoeConfig& moe) { moe.moe_exchange_factor = 1; });
  expect_same("replicas", [](MoeConfig& moe) { moe.moe_replicated_experts = 2; });
}

}  // namespace
}  // namespace witan
