#include "witan/train/config/trained_parameters.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/model/counts.h"

namespace witan {
namespace {

ModelConfig model_of(const char* freeze, const char* targets = "", int64_t rank = 0) {
  ModelConfig model;
  model.vocab_size = 64;
  model.freeze = freeze;
  model.lora_rank = rank;
  model.lora_target_modules = targets;
  return model;
}

std::string refusal(const ModelConfig& model) {
  return test::message_of<ConfigError>([&] { check_trained(model); });
}

TEST(TrainedParameters, ExcludeParametersMatchingAPattern) {
  const ModelConfig model = model_of("embeddings, layers.[12].*,*.router.*");
  check_trained(model);
  for (const ParameterSpec& spec : all_parameters(model)) {
    const bool frozen = spec.kind == ParameterKind::embeddings || spec.kind == ParameterKind::routers ||
                        spec.name.starts_with("layers.1.") || spec.name.starts_with("layers.2.");
    EXPECT_EQ(spec.frozen, frozen) << spec.name;
  }
  const TrainedParameters counts = count_trained(model);
  EXPECT_EQ(counts.held, count_parameters(model).exact);
  EXPECT_LT(counts.all, counts.held);
}

TEST(TrainedParameters, OfAnAdaptedModelAreItsAdapters) {
  for (const char* targets : {"", "q_proj,o_proj", "up_proj,gate_proj", "down_proj"}) {
    ModelConfig model = model_of("", targets, 4);
    model.moe.moe_shared_expert_intermediate_size = 24;
    model.moe.moe_layer_freq = "([0]*1+[1]*3)";
    check_trained(model);
    for (const ParameterSpec& spec : all_parameters(model))
      EXPECT_EQ(spec.frozen, spec.name.find(".lora_") == std::string::npos) << spec.name;
    EXPECT_EQ(count_trained(model).held, count_parameters(model).exact) << targets;
    EXPECT_EQ(count_trained(model).held_experts, count_parameters(model).experts) << targets;
  }
}

TEST(TrainedParameters, OfLatentAttentionAreCounted) {
  ModelConfig model = model_of("", "", 4);
  model.attention.multi_latent_attention = true;
  model.attention.q_lora_rank = 10;
  model.attention.kv_lora_rank = 12;
  model.attention.latent_qk_head_dim = 8;
  model.attention.qk_pos_emb_head_dim = 4;
  EXPECT_EQ(count_trained(model).held, count_parameters(model).exact);
  model.attention.q_lora_rank = 0;
  EXPECT_EQ(count_trained(model).held, count_parameters(model).exact);
}

TEST(TrainedParameters, RefusePatternsThatMatchNothingOrEverything) {
  EXPECT_TRUE(refusal(model_of("embedings")).starts_with("freeze = embedings: embedings matches no parameter"));
  EXPECT_NE(refusal(model_of("embedings")).find("embeddings"), std::string::npos);
  EXPECT_NE(refusal(model_of("embeddings,layers.7.*")).find("layers.7.* matches no parameter"), std::string::npos);
  EXPECT_EQ(refusal(model_of("*")),
            "freeze = * freezes every parameter, so that nothing is left to train: leave some out");
  EXPECT_EQ(
      refusal(model_of("*.lora_*", "", 4)),
      "freeze = *.lora_* with lora_rank freezes every parameter, so that nothing is left to train: leave some out");
}

TEST(TrainedParameters, RefuseTargetsThatTheModelLacks) {
  EXPECT_EQ(
      refusal(model_of("", "q_a_proj", 4)),
      "lora_target_modules: this model has no q_a_proj; it has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
      "down_proj");
  EXPECT_NE(test::message_of<ConfigError>([] { model_of("", "q_pro", 4).validate(); }).find("there is no q_pro"),
            std::string::npos);
  EXPECT_NE(test::message_of<ConfigError>([] { model_of("", "q_proj").validate(); }).find("set lora_rank"),
            std::string::npos);
}

}  // namespace
}  // namespace witan
