// No layout changes the result for any kind of experts: biases, activations, gated shared experts, a latent width, the
// all-gather dispatcher, and recomputed parts of layers.
#include <gtest/gtest.h>

#include <functional>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_same_bits;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(3, 20);

const std::vector<LaidOut> kLayouts = {{"replicate=2,expert=2"},
                                       {"replicate=4,expert=4"},
                                       {"shard=4,expert=2", kFsdp},
                                       {"replicate=2,expert_tensor=2"},
                                       {"shard=4,expert=2,expert_tensor=2", kFsdp},
                                       {"tensor=2,expert=2,expert_tensor=1"},
                                       {"tensor=2,expert_tensor=2"},
                                       {"context=2,pipeline=2,expert=2"}};

struct Variant {
  const char* name;
  std::function<void(ModelConfig&)> change;
};

void gpt_oss(ModelConfig& c) {
  c.moe.moe_expert_add_bias = c.add_bias_linear = true;
  c.mlp.activation_func_clamp_value = 0.05;  // reached even in small models
  c.mlp.glu_activation_scale = 1.702;
  c.mlp.glu_linear_offset = 1;
}

const std::vector<Variant> kVariants = {
    {"expert biases, clamped SwiGLU", gpt_oss},
    {"squared ReLU, biases, sequential",
     [](ModelConfig& c) {
       c.mlp.swiglu = false;
       c.mlp.squared_relu = true;
       c.moe.moe_expert_add_bias = true;
       c.moe.moe_expert_backend = "sequential";
     }},
    {"block-sparse, biases",
     [](ModelConfig& c) {
       c.moe.moe_expert_backend = "block_sparse";
       c.moe.moe_expert_add_bias = true;
     }},
    {"gated shared experts, latent experts",
     [](ModelConfig& c) {
       c.moe.moe_shared_expert_intermediate_size = 8;
       c.moe.moe_shared_expert_gate = true;
       c.moe.moe_latent_size = 6;
     }},
    {"all-gather, biases, latent experts",
     [](ModelConfig& c) {
       c.moe.moe_token_dispatcher_type = "allgather";
       c.moe.moe_expert_add_bias = true;
       c.moe.moe_latent_size = 6;
     }},
    {"all-gather, capacity",
     [](ModelConfig& c) {
       c.moe.moe_token_dispatcher_type = "allgather";
       c.moe.moe_expert_capacity_factor = 0.75;
     }},
};

RunConfig config_of(const Variant& variant) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  variant.change(config.model);
  return config;
}

TEST(ExpertLayouts, EveryVariantEqualsOneRankInFloat64) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    expect_steps_of_one_rank(config_of(variant), kLayouts, kSteps);
  }
}

// Deterministic mode also sums gradients of biases in its tree, so layouts without tensor parallelism have one rank's
// bits. The all-gather dispatcher sums a token's experts in another order and is left out.
TEST(ExpertLayouts, DeterministicLayoutsHaveTheBitsOfOneRank) {
  for (const size_t which : {0U, 2U, 3U}) {
    RunConfig config = config_of(kVariants[which]);
    config.model.dtype = "float32";
    config.parallel.deterministic = true;
    config.train.global_batch_size = 8;
    SCOPED_TRACE(kVariants[which].name);
    expect_bits_of_one_rank(config, {kLayouts[0], kLayouts[1], kLayouts[2]}, 3);
  }
}

TEST(ExpertLayouts, RecomputedModulesChangeNoBit) {
  for (const size_t which : {0U, 3U}) {
    RunConfig config = laid_out(config_of(kVariants[which]), kLayouts[0]);
    config.model.dtype = "float32";
    config.model.moe.moe_layer_freq = "2";
    const Trajectory kept = run_engine(config, 3);
    config.model.recompute_granularity = "selective";
    for (const char* modules :
         {"", "layernorm", "moe_act", "mlp_act,moe_act", "mlp", "moe", "shared_experts,moe_act", "mlp,moe,layernorm"}) {
      config.model.recompute_modules = modules;
      SCOPED_TRACE(modules);
      expect_same_bits(kept, run_engine(config, 3));
    }
  }
}

}  // namespace
}  // namespace witan
