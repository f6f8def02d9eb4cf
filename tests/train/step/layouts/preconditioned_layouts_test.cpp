// Optimizers that precondition whole matrices: no layout changes the result, although ranks own, divide and gather
// them.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(5, 20);

RunConfig recipe(const char* root) {
  RunConfig config = testing::divisible_config();
  config.model.num_layers = 2;
  config.model.hidden_size = 16;
  config.model.untie_embeddings_and_output_weights = true;
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  config.optimizer.optimizer = "shampoo";
  config.optimizer.shampoo_root = root;
  config.optimizer.precondition_frequency = 2;
  config.optimizer.max_preconditioner_dim = 20;
  config.optimizer.shampoo_eps = 1e-8;
  return laid_out(config, {});
}

const std::vector<LaidOut> kLayouts = {
    {"replicate=2"},
    {"shard=4", "optim_grads"},
    {"shard=4,expert=2", kFsdp},
    {"shard=2,context=2"},
    {"shard=2,tensor=2,expert_tensor=1"},
    {"shard=2,tensor=2,expert_tensor=2", kFsdp},
    {"shard=2,pipeline=2", "auto", 1},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
};

class PreconditionedLayouts : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Roots, PreconditionedLayouts, ::testing::Values("eigen", "newton"));

TEST_P(PreconditionedLayouts, EqualOneRankInFloat64) {
  const RunConfig config = recipe(GetParam());
  const Trajectory one = expect_steps_of_one_rank(config, kLayouts, kSteps);
  RunConfig grafted = config;
  grafted.optimizer.precondition_frequency = 1000;
  EXPECT_NE(run_engine(grafted, kSteps).weights, one.weights) << "preconditioners have no effect";
}

// Gradients of embeddings, routers, experts and shared keys do not have full rank: rounding, which differs between
// layouts, must not determine the vectors of the missing directions.
TEST(PreconditionedRuns, WithSoapEqualOneRankInFloat64) {
  for (const int64_t frequency : {1, 2})
    for (const int64_t experts : {0, 4}) {
      RunConfig config = recipe("eigen");
      config.model.moe.num_experts = experts;
      config.model.hidden_size = 32;
      config.optimizer.optimizer = "soap";
      config.optimizer.shampoo_beta = 0.9;
      config.optimizer.precondition_frequency = frequency;
      config.optimizer.max_preconditioner_dim = 100;  // above all sides, including the vocabulary's
      config = laid_out(config, {});
      SCOPED_TRACE(cat(experts, " experts, bases every ", frequency));
      const Trajectory one = expect_steps_of_one_rank(config, kLayouts, kSteps);
      RunConfig adam = config;
      adam.optimizer.optimizer = "adam";
      EXPECT_NE(run_engine(adam, kSteps).weights, one.weights);
    }
}

TEST(PreconditionedRuns, RepeatBitwise) {
  RunConfig config = recipe("eigen");
  config.model.dtype = "float32";
  config.train.check_states = true;  // factors are equal on tensor-parallel ranks
  testing::expect_repeats(laid_out(config, {"shard=2,tensor=2,expert_tensor=1"}), kSteps);
}

}  // namespace
}  // namespace witan
