// AdamW and SGD in one model, by elements and by whole matrices, with separate learning rates and decays: no layout
// changes the result.
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

// Groups contain all kinds of parameters, and both optimizers have both policies; q_proj includes the adjacent k_proj
// and v_proj.
const char* const kGroups =
    R"([{match = "*.q_proj.*,*.o_proj.*", shard_by = "matrices", lr_mult = 2, weight_decay = 0.3},
  {kind = "experts", optimizer = "sgd", shard_by = "matrices", lr = 0.05, min_lr = 0.001},
  {kind = "routers,norms", optimizer = "sgd", sgd_momentum = 0, lr_mult = 0.5, decay_norms_and_biases = true},
  {kind = "head,embeddings", adam_beta1 = 0.8, adam_eps = 1e-6}])";

RunConfig grouped(RunConfig config) {
  set_field(config.fields(), "optimizer_groups", kGroups, "test");
  return config;
}

RunConfig recipe(const char* dtype) {
  RunConfig config = testing::divisible_config(dtype);
  config.model.untie_embeddings_and_output_weights = true;
  return laid_out(grouped(config), {});
}

const std::vector<LaidOut> kLayouts = {
    {"replicate=2"},
    {"shard=2"},
    {"shard=3"},
    {"shard=4", kGradients},
    {"shard=4", kFsdp},
    {"replicate=2,shard=2", kFsdp},
    {"shard=4,expert=2"},
    {"shard=4,expert=4", kFsdp},
    {"shard=2,context=2"},
    {"shard=2,tensor=2,expert_tensor=1"},
    {"shard=2,tensor=2,expert_tensor=2", kFsdp},
    {"shard=2,pipeline=2", "auto", 2},
    {"shard=2,pipeline=2", kFsdp, 2},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
    {.mesh = "replicate=2,shard=2,tensor=2,expert=2", .strategy = kFsdp, .reshard_after_forward = false},
};

TEST(ParamGroupLayouts, EqualOneRankInFloat64) {
  RunConfig config = recipe("float64");
  config.train.global_batch_size = 12;
  const Trajectory one = expect_steps_of_one_rank(config, kLayouts, kSteps);
  RunConfig plain = config;
  plain.optimizer.groups.clear();
  EXPECT_NE(run_engine(plain, kSteps).weights, one.weights) << "the groups have no effect";
}

// A dense model with a tied embedding, biases and learned positions, whose MLP matrices have groups too.
TEST(ParamGroupLayouts, DenseModelsEqualOneRankInFloat64) {
  RunConfig config = testing::gpt_run_config();
  config.model.dtype = "float64";
  config.parallel = {1, 1, 1};
  config.optimizer.clip_grad = 0.1;
  set_field(config.fields(), "optimizer_groups",
            R"([{kind = "biases", optimizer = "sgd", shard_by = "matrices"}, {kind = "matrices", shard_by = "matrices"},
                {kind = "embeddings", optimizer = "sgd", shard_by = "matrices"}])",
            "test");
  expect_steps_of_one_rank(config,
                           {{"shard=2"},
                            {"shard=4", kGradients},
                            {"shard=4", kFsdp},
                            {"shard=2,tensor=2"},
                            {"shard=2,tensor=2", kFsdp},
                            {"shard=2,pipeline=2"},
                            {"shard=2,pipeline=2", kFsdp}},
                           kSteps);
}

class ParamGroupBits : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ParamGroupBits, ::testing::Values("float32", "bfloat16"));

TEST_P(ParamGroupBits, EqualOneRankInDeterministicMode) {
  RunConfig config = recipe(GetParam());
  config.parallel.deterministic = true;
  expect_bits_of_one_rank(config,
                          {{"replicate=4,expert=2"},
                           {"shard=2"},
                           {"shard=4,expert=2"},
                           {"shard=8,expert=8"},
                           {"shard=4,expert=2", kGradients},
                           {"shard=4,expert=2", kFsdp},
                           {"replicate=2,shard=2", kFsdp},
                           {"shard=2,pipeline=2", kFsdp, 2},
                           {"replicate=2,shard=2,pipeline=2,expert=2"}},
                          kSteps);
}

TEST(ParamGroupBits, RepeatOnAnyNumberOfThreads) {
  testing::expect_repeats(laid_out(recipe("bfloat16"), {"shard=2,expert=2", kFsdp}), 3);
}

}  // namespace
}  // namespace witan
