// Tensor-parallel ranks that exchange tokens of one half of a micro-batch while computing the other half
// (tp_comm_overlap) have the results of one rank.
#include <gtest/gtest.h>

#include "support/model_variants.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;

RunConfig config_of(int64_t experts) {
  RunConfig config = testing::divisible_config();
  config.model.moe.num_experts = experts;
  config.train.micro_batch_size = 2;
  return config;
}

RunConfig overlapped(const RunConfig& config, const LaidOut& layout) {
  RunConfig of = laid_out(config, layout);
  of.parallel.tp_comm_overlap = true;
  EXPECT_TRUE(of.overlaps_tensor_exchanges());
  return of;
}

void expect_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts, int64_t steps = 4) {
  const auto one = run_engine(laid_out(config, {}), steps);
  for (const LaidOut& layout : layouts)
    expect_equal(one, run_engine(overlapped(config, layout), steps), 1e-9, testing::described(layout));
}

TEST(TensorOverlap, DenseModelsEqualOneRankInFloat64) {
  expect_one_rank(config_of(0), {{"tensor=2"},
                                 {"tensor=4"},
                                 {.mesh = "tensor=2", .loss_parallel = false},
                                 {"replicate=2,tensor=2", "optim"},
                                 {"shard=2,tensor=2", kFsdp},
                                 {"pipeline=2,tensor=2"},
                                 {"pipeline=2,tensor=2", "auto", 2},
                                 {"context=2,tensor=2"},
                                 {.mesh = "context=2,tensor=2", .comm = "p2p"}});
}

TEST(TensorOverlap, ModelsWithExpertsEqualOneRankInFloat64) {
  RunConfig config = config_of(4);
  const std::vector<LaidOut> layouts = {{"tensor=2,expert=2,expert_tensor=1"},
                                        {"tensor=4,expert=2,expert_tensor=2"},
                                        {"shard=2,tensor=2,expert=4,expert_tensor=1", kFsdp}};
  expect_one_rank(config, layouts);
  config.model.moe.moe_layer_freq = "[0,1,0,0]";
  expect_one_rank(config, layouts);
  config.model.moe.moe_shared_expert_intermediate_size = 16;
  config.model.moe.moe_layer_freq = "[1,0,1,1]";
  expect_one_rank(config, layouts);
}

TEST(TensorOverlap, OtherLayersEqualOneRankInFloat64) {
  RunConfig config = config_of(0);
  config.model.norm_placement = "post";
  config.model.attention.qk_layernorm = true;
  expect_one_rank(config, {{"tensor=2"}, {"shard=2,tensor=2", kFsdp}});
  config.model.norm_placement = "both";
  expect_one_rank(config, {{"tensor=2"}});
  config = config_of(0);
  config.model.add_bias_linear = true;
  config.model.norm.normalization = "LayerNorm";
  config.model.recompute_granularity = "selective";
  config.model.recompute_modules = "layernorm,mlp_act";
  expect_one_rank(config, {{"tensor=2"}});
  config = config_of(0);
  config.train.micro_batch_size = 4;  // several sequences in each half
  config.model.attention.num_query_groups = 2;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  expect_one_rank(config, {{"tensor=4"}, {"context=2,tensor=4"}});
}

TEST(TensorOverlap, HeadsOfTwoSizesAndParallelMlpsEqualOneRankInFloat64) {
  RunConfig dense = config_of(0), experts = config_of(4);
  for (RunConfig* config : {&dense, &experts}) testing::add_gemma4_features(config->model, "5,0");
  expect_one_rank(dense, {{"tensor=2"}, {"tensor=4"}});
  experts.model.moe.moe_layer_freq = "[0,1,1,0]";
  expect_one_rank(experts, {{"tensor=2,expert=2,expert_tensor=1"}});
}

TEST(TensorOverlap, FallsBackForLayersThatCannotOverlap) {
  const auto cannot = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = laid_out(config_of(0), {"tensor=2"});
    config.parallel.tp_comm_overlap = true;
    change(config);
    EXPECT_FALSE(config.overlaps_tensor_exchanges());
    RunConfig plain = config;
    plain.parallel.tp_comm_overlap = false;
    const auto found = run_engine(config, 2), expected = run_engine(plain, 2);
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_EQ(found.weights, expected.weights);
  };
  cannot([](RunConfig& config) { config.train.micro_batch_size = 1; });
  cannot([](RunConfig& config) { config.parallel.sequence_parallel = false; });
  cannot([](RunConfig& config) { config.model.hidden_dropout = 0.1; });
  cannot([](RunConfig& config) { config.model.attention.attention_dropout = 0.1; });
  cannot([](RunConfig& config) { config.model.recompute_granularity = "full"; });
  cannot([](RunConfig& config) { config.log.log_activations = 1; });
  cannot([](RunConfig& config) {
    config.model.recompute_granularity = "selective";
    config.model.recompute_modules = "mlp";
  });
  cannot([](RunConfig& config) { config.model.embedding_residual = true; });
  cannot([](RunConfig& config) {
    config.model.lora_rank = 2;
    config.model.lora_dropout = 0.1;
    config.model.lora_target_modules = "q_proj";
  });
}

}  // namespace
}  // namespace witan
