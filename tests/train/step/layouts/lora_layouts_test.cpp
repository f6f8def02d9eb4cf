// LoRA in every layout: the base keeps its bits, the first step has the base's loss, and no layout changes the training
// of adapters.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "support/message_of.h"
#include "train/step/layouts/one_rank.h"
#include "witan/base/error.h"
#include "witan/nn/lora.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kLoraSteps = testing::steps_of(4, 20);

RunConfig adapted(const char* targets, const char* dtype = "float64") {
  RunConfig config = testing::divisible_config(dtype);
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.optimizer.lr = 1e-2;
  config.model.moe.moe_shared_expert_intermediate_size = 16;
  config.model.moe.moe_layer_freq = "([0]*1+[1]*3)";
  config.model.lora_rank = 3;
  config.model.lora_alpha = 7;
  config.model.lora_target_modules = targets;
  return laid_out(config, {});
}

const std::vector<LaidOut> kLoraLayouts = {
    {"replicate=4"},
    {"shard=4"},
    {"shard=4", "optim_grads"},
    {"shard=4", kFsdp},
    {"context=2"},
    {"tensor=2,expert_tensor=1"},
    {"tensor=4,expert_tensor=1"},
    {"pipeline=2", "auto", 2},
    {"replicate=4,expert=4"},
    {"tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    {"shard=2,context=2,tensor=2,expert=4,expert_tensor=1", kFsdp},
    {.mesh = "shard=2,tensor=2,expert_tensor=1", .strategy = kFsdp, .reshard_after_forward = false},
};

TEST(LoraLayouts, OnAllMatricesEqualsOneRankInFloat64) {
  expect_steps_of_one_rank(adapted(""), kLoraLayouts, kLoraSteps);
}

TEST(LoraLayouts, OnSomeMatricesEqualsOneRankInFloat64) {
  const std::vector<LaidOut> layouts = {kLoraLayouts[3], kLoraLayouts[6], kLoraLayouts[7], kLoraLayouts[10]};
  expect_steps_of_one_rank(adapted("q_proj,v_proj"), layouts, kLoraSteps);
  expect_steps_of_one_rank(adapted("down_proj"), layouts, kLoraSteps);
}

TEST(LoraLayouts, OnLatentAttentionEqualsOneRankInFloat64) {
  RunConfig config = adapted("");
  config.model.attention.multi_latent_attention = true;
  config.model.attention.q_lora_rank = 10;
  config.model.attention.kv_lora_rank = 12;
  config.model.attention.latent_qk_head_dim = 8;
  config.model.attention.qk_pos_emb_head_dim = 4;
  config.model.attention.v_head_dim = 6;
  expect_steps_of_one_rank(config, {kLoraLayouts[3], kLoraLayouts[5], kLoraLayouts[10]}, kLoraSteps);
}

TEST(LoraLayouts, WithBiasesAnUndividedStreamAndSharedGroupsEqualsOneRankInFloat64) {
  RunConfig config = adapted("");
  config.model.attention.add_qkv_bias = true;
  config.model.attention.num_query_groups = 2;
  expect_steps_of_one_rank(config, {{"tensor=4,expert_tensor=1"}}, kLoraSteps);
  config.model.moe.num_experts = 0;
  config.model.moe.moe_layer_freq = "1";
  config.model.moe.moe_shared_expert_intermediate_size = 0;
  config.model.add_bias_linear = true;
  RunConfig whole_stream = laid_out(config, {"tensor=2"});
  whole_stream.parallel.sequence_parallel = false;
  testing::expect_equal(run_engine(laid_out(config, {}), 4), run_engine(whole_stream, 4), 1e-9, "a whole stream");
}

RunConfig with_magnitudes(const char* dtype = "float64") {
  RunConfig config = adapted("", dtype);
  config.model.lora_use_dora = true;
  config.model.moe.num_experts = 0;
  config.model.moe.moe_layer_freq = "1";
  config.model.moe.moe_shared_expert_intermediate_size = 0;
  return laid_out(config, {});
}

TEST(LoraLayouts, OfMagnitudesEqualOneRankInFloat64) {
  const std::vector<LaidOut> layouts = {
      {"replicate=4"},
      {"shard=4", kFsdp},
      {"context=2"},
      {"tensor=2"},
      {"tensor=4"},
      {"pipeline=2", "auto", 2},
      {"shard=2,context=2,tensor=2", kFsdp},
      {.mesh = "shard=2,tensor=2", .strategy = kFsdp, .reshard_after_forward = false}};
  expect_steps_of_one_rank(with_magnitudes(), layouts, kLoraSteps);
  RunConfig config = with_magnitudes();
  config.model.add_bias_linear = true;
  config.model.attention.num_query_groups = 2;
  expect_steps_of_one_rank(config, {{"tensor=4"}}, kLoraSteps);
  RunConfig whole_stream = laid_out(config, {"tensor=2"});
  whole_stream.parallel.sequence_parallel = false;
  testing::expect_equal(run_engine(laid_out(config, {}), 4), run_engine(whole_stream, 4), 1e-9, "a whole stream");
}

TEST(LoraLayouts, OfMagnitudesBesideExpertsEqualOneRankInFloat64) {
  RunConfig config = adapted("q_proj,k_proj,v_proj,o_proj");
  config.model.lora_use_dora = true;
  expect_steps_of_one_rank(config, {kLoraLayouts[8], kLoraLayouts[9], kLoraLayouts[10]}, kLoraSteps);
}

// Dropout masks depend on positions, not on the rank that has them.
TEST(LoraLayouts, DropoutIsTheSameInEveryLayout) {
  RunConfig config = adapted("q_proj,k_proj,v_proj");
  config.model.lora_dropout = 0.3;
  expect_steps_of_one_rank(config, {{"replicate=2"}, {"context=2"}, {"tensor=2,expert_tensor=1"}, {"pipeline=2"}},
                           kLoraSteps);
  RunConfig kept = config;
  kept.model.lora_dropout = 0;
  EXPECT_NE(run_engine(config, 2).norms, run_engine(kept, 2).norms);
}

TEST(Lora, StartsWithTheBasesLossAndKeepsTheBase) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const RunConfig config = adapted("", dtype);
    RunConfig base = config;
    base.model.lora_rank = 0;
    const Trajectory begun = run_engine(config, 0), trained = run_engine(config, 4), of_base = run_engine(base, 1);
    EXPECT_EQ(trained.losses.front(), of_base.losses.front()) << dtype;
    EXPECT_LT(trained.losses.back(), trained.losses.front());
    std::vector<std::string> names;
    for (const ParameterSpec& spec : all_parameters(config.model)) names.push_back(spec.name);
    std::ranges::sort(names);
    ASSERT_EQ(names.size(), trained.weights.size());
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ(begun.weights[i] == trained.weights[i], !is_adapter(names[i])) << names[i];
  }
}

TEST(Lora, MagnitudesStartWithTheBasesLossAndChangeTheTraining) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const RunConfig config = with_magnitudes(dtype);
    RunConfig base = config, plain = config;
    base.model.lora_rank = 0;
    base.model.lora_use_dora = plain.model.lora_use_dora = false;
    const Trajectory begun = run_engine(config, 0), trained = run_engine(config, 4);
    EXPECT_EQ(trained.losses.front(), run_engine(base, 1).losses.front()) << dtype;
    EXPECT_LT(trained.losses.back(), trained.losses.front());
    EXPECT_NE(trained.norms.front(), run_engine(plain, 1).norms.front());
    std::vector<std::string> names;
    for (const ParameterSpec& spec : all_parameters(config.model)) names.push_back(spec.name);
    std::ranges::sort(names);
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ(begun.weights[i] == trained.weights[i], !is_adapter(names[i])) << names[i];
    EXPECT_TRUE(std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(kLoraMagnitude); }));
  }
}

TEST(Lora, MagnitudesAreTheSameWithRecomputationAndDeterministicLayouts) {
  RunConfig config = with_magnitudes("float32");
  const Trajectory kept = run_engine(config, 3);
  for (const char* granularity : {"selective", "full"}) {
    config.model.recompute_granularity = granularity;
    EXPECT_EQ(run_engine(config, 3).losses, kept.losses) << granularity;
  }
  config = with_magnitudes("float32");
  config.parallel.deterministic = true;
  config.train.check_states = true;
  expect_bits_of_one_rank(config, {{"replicate=4"}, {"shard=4", kFsdp}, {"pipeline=2", "auto", 2}}, 3);
}

TEST(Lora, RecomputationAndSequentialExpertsChangeNothing) {
  RunConfig config = adapted("", "float32");
  const Trajectory kept = run_engine(config, 3);
  for (const char* granularity : {"selective", "full"}) {
    config.model.recompute_granularity = granularity;
    EXPECT_EQ(run_engine(config, 3).losses, kept.losses) << granularity;
  }
  config = adapted("");
  const Trajectory grouped = run_engine(config, 3);
  for (const char* backend : {"sequential", "block_sparse"}) {
    config.model.moe.moe_expert_backend = backend;
    testing::expect_equal(grouped, run_engine(config, 3), 1e-9, backend);
  }
}

TEST(Lora, DeterministicLayoutsGiveTheSameBits) {
  RunConfig config = adapted("", "float32");
  config.parallel.deterministic = true;
  config.train.check_states = true;
  expect_bits_of_one_rank(config, {{"replicate=4,expert=2"}, {"shard=4,expert=4", kFsdp}, {"pipeline=2", "auto", 2}},
                          3);
}

TEST(Lora, RefusesUnsupportedMatrices) {
  const auto message = [](const RunConfig& config) {
    return test::message_of<ConfigError>([&] { make_plan(resolve(config, {})); });
  };
  EXPECT_EQ(message(laid_out(adapted("down_proj"), {"replicate=2,expert_tensor=2"})),
            "expert_tensor_parallel_size = 2 divides experts' matrices, and their adapters are whole; set "
            "expert_tensor_parallel_size = 1, or lora_target_modules without gate_proj, up_proj and down_proj");
  EXPECT_EQ(message(adapted("gate_proj")),
            "lora_target_modules: gate_proj and up_proj of experts are one matrix, with one adapter; name both, or "
            "neither");
  RunConfig config = adapted("");
  config.model.lora_use_dora = true;
  EXPECT_EQ(message(config),
            "lora_use_dora = true: experts' matrices have no magnitudes (PEFT has none of them either); set "
            "lora_target_modules without gate_proj, up_proj and down_proj, or lora_use_dora = false");
  config = with_magnitudes();
  config.model.lora_dropout = 0.1;
  EXPECT_EQ(message(config),
            "lora_use_dora = true with lora_dropout = 0.1: dropped inputs would need a second product with each "
            "matrix; set lora_dropout = 0, or lora_use_dora = false");
  config = adapted("");
  config.model.lora_dropout = 0.1;
  EXPECT_EQ(message(config),
            "lora_dropout = 0.1: rows of experts lie where the layout puts them, so that what is dropped would depend "
            "on it; set lora_dropout = 0, or lora_target_modules without gate_proj, up_proj and down_proj");
  config = laid_out(adapted("o_proj"), {"tensor=2,expert_tensor=1"});
  config.model.lora_dropout = 0.1;
  EXPECT_EQ(message(config),
            "lora_dropout = 0.1: tensor-parallel ranks each have some inputs of layers.0.attention.o_proj; set "
            "lora_dropout = 0, tensor_model_parallel_size = 1, or leave it out of lora_target_modules");
}

}  // namespace
}  // namespace witan
