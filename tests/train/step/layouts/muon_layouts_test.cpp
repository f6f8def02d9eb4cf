// Muon and NorMuon update whole matrices; neither their owners nor tensor parallelism change the result.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);
constexpr const char* kGradients = "optim_grads";

RunConfig recipe(const char* dtype, const char* optimizer) {
  RunConfig config = testing::divisible_config(dtype);
  config.model.untie_embeddings_and_output_weights = true;
  config.model.moe.moe_layer_freq = "2";
  config.optimizer.optimizer = optimizer;
  return laid_out(config, {});
}

const std::vector<LaidOut> kLayouts = {
    {"replicate=2"},
    {"shard=3"},
    {"shard=4", kGradients},
    {"shard=4", kFsdp},
    {"replicate=2,shard=2", kFsdp},
    {"shard=4,expert=2"},
    {"shard=4,expert=4", kFsdp},
    {"shard=2,context=2"},
    {"tensor=2,expert_tensor=2"},
    {"tensor=4,expert_tensor=1"},
    {"shard=2,tensor=2,expert_tensor=1"},
    {"shard=2,tensor=2,expert_tensor=2", kFsdp},
    {"shard=2,pipeline=2", "auto", 2},
    {"shard=2,pipeline=2", kFsdp, 2},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
};

class MuonLayouts : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, MuonLayouts, ::testing::Values("muon", "normuon"));

TEST_P(MuonLayouts, EqualOneRankInFloat64) {
  RunConfig config = recipe("float64", GetParam());
  config.train.global_batch_size = 12;
  const Trajectory one = expect_steps_of_one_rank(config, kLayouts, kSteps);
  RunConfig adam = config;
  adam.optimizer.optimizer = "adam";
  EXPECT_NE(run_engine(adam, kSteps).weights, one.weights);
}

TEST_P(MuonLayouts, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = recipe("bfloat16", GetParam());
  config.parallel.deterministic = true;
  expect_bits_of_one_rank(
      config,
      {{"replicate=4,expert=2"}, {"shard=4,expert=2"}, {"shard=4,expert=2", kFsdp}, {"shard=2,pipeline=2", kFsdp, 2}},
      kSteps);
}

TEST_P(MuonLayouts, AreDeterministicOnAnyNumberOfThreads) {
  testing::expect_repeats(laid_out(recipe("bfloat16", GetParam()), {"shard=2,expert=2", kFsdp}), 3);
}

}  // namespace
}  // namespace witan
