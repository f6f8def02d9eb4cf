#include "witan/convert/hf/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using testing::golden;
using ::testing::HasSubstr;

Json config_of(const std::string& model) {
  return Json::parse(read_file(golden(model) / kHfConfig));
}

// A golden configuration with some keys changed; null removes a key.
Json with(Json config, const Json& changes) {
  for (const auto& [key, value] : changes.items())
    if (value.is_null())
      config.erase(key);
    else
      config[key] = value;
  return config;
}

std::string refusal(const Json& config) {
  return test::message_of<ConfigError>([&] { read_hf_config(config.dump(), "config.json"); });
}

TEST(HfConfig, ReadsMixtral) {
  const HfModel hf = read_hf_config(config_of("mixtral").dump(), "config.json");
  EXPECT_EQ(hf.architecture->name, "MixtralForCausalLM");
  EXPECT_EQ(hf.model.moe.num_experts, 4);
  EXPECT_EQ(hf.model.moe.moe_router_topk, 2);
  EXPECT_EQ(hf.model.mlp.ffn_hidden_size, 12);
  EXPECT_EQ(hf.model.attention.num_query_groups, 2);
  EXPECT_EQ(hf.model.attention.rotary_base, 1e6);
  EXPECT_EQ(hf.model.attention.window_size, "6,0");  // of seven tokens, including the current one
  EXPECT_TRUE(hf.model.untie_embeddings_and_output_weights);
  EXPECT_EQ(hf.positions, 128);
}

// transformers before v5 wrote rope_theta and rope_scaling.
TEST(HfConfig, ReadsOlderRotaryKeys) {
  const Json now = config_of("mixtral"),
             before = with(now, {{"rope_parameters", nullptr}, {"rope_theta", 1e6}, {"rope_scaling", nullptr}});
  EXPECT_THAT(differences(read_hf_config(now.dump(), "a").model, read_hf_config(before.dump(), "b").model),
              ::testing::IsEmpty());
}

std::vector<bool> windowed(const ModelConfig& model) {
  std::vector<bool> layers;
  for (const LayerSpec& layer : model.layers()) layers.push_back(window_of(layer.mixer) > 0);
  return layers;
}
std::vector<bool> with_experts(const ModelConfig& model) {
  std::vector<bool> layers;
  for (const LayerSpec& layer : model.layers()) layers.push_back(layer.moe);
  return layers;
}

// The configuration classes and models of transformers 5.23 define these.
TEST(HfConfig, AbsentKeysHaveTransformersDefaults) {
  const auto model_of = [](const char* name, const Json& changes) {
    return read_hf_config(with(config_of(name), changes).dump(), "config.json").model;
  };
  EXPECT_EQ(model_of("mixtral", {{"rope_parameters", nullptr}}).attention.rotary_base, 1e6);
  EXPECT_EQ(model_of("llama", {{"rope_parameters", nullptr}}).attention.rotary_base, 1e4);
  const Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}};
  const AttentionConfig stretched = model_of("llama", {{"rope_parameters", yarn}}).attention;
  EXPECT_EQ(stretched.original_max_position_embeddings, 128);  // max_position_embeddings
  EXPECT_EQ(stretched.beta_fast, 32);
  EXPECT_EQ(stretched.beta_slow, 1);
  EXPECT_EQ(stretched.rope_scaling_type, "yarn");
  EXPECT_EQ(model_of("gpt2", {{"n_inner", nullptr}}).mlp.ffn_hidden_size, 64);  // four times the width
  const ModelConfig gpt_oss = model_of("gpt_oss", {{"layer_types", nullptr}, {"swiglu_limit", nullptr}});
  EXPECT_EQ(gpt_oss.mlp.activation_func_clamp_value, 7);
  EXPECT_EQ(windowed(gpt_oss), (std::vector<bool>{true, false}));
  const ModelConfig deepseek = model_of("deepseek_v3", {{"norm_topk_prob", nullptr}, {"rope_interleave", nullptr}});
  EXPECT_EQ(deepseek.moe.moe_router_norm_topk_prob, "true");
  EXPECT_TRUE(deepseek.attention.rotary_interleaved);
  EXPECT_EQ(deepseek.moe.moe_router_group_score_topk, 2);
}

TEST(HfConfig, ReadsPatternsOfLayers) {
  const auto model_of = [](const char* name, const Json& changes) {
    return read_hf_config(with(config_of(name), changes).dump(), "config.json").model;
  };
  const Json four = {{"num_hidden_layers", 4}, {"layer_types", nullptr}, {"max_window_layers", 3}};
  EXPECT_EQ(windowed(model_of("qwen2", four)), (std::vector<bool>{false, false, false, true}));
  const Json sparse = {{"num_hidden_layers", 4}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}};
  EXPECT_EQ(with_experts(model_of("qwen3_moe", sparse)), (std::vector<bool>{false, true, false, false}));
  const Json every_other = {{"num_hidden_layers", 5}, {"moe_layer_freq", 2}, {"first_k_dense_replace", 1}};
  EXPECT_EQ(with_experts(model_of("deepseek_v2", every_other)), (std::vector<bool>{false, false, true, false, true}));
  // YaRN's two mscale factors, which are mostly equal.
  Json rope = config_of("deepseek_v2")["rope_parameters"];
  rope["mscale"] = 0.7;
  const AttentionConfig attention = model_of("deepseek_v2", {{"rope_parameters", rope}}).attention;
  EXPECT_EQ(attention.mscale, 0.7);
  EXPECT_EQ(attention.mscale_all_dim, 0.8);
}

// transformers' Qwen3-MoE uses only use_sliding_window: either all of its layers have a window or none has.
TEST(HfConfig, WindowsOfQwen3MoeApplyToAllLayers) {
  const auto model_of = [](const Json& changes) {
    return read_hf_config(with(config_of("qwen3_moe"), changes).dump(), "config.json").model;
  };
  const Json slides = {{"use_sliding_window", true}, {"sliding_window", 6}, {"max_window_layers", 1}};
  EXPECT_EQ(windowed(model_of(slides)), (std::vector<bool>{true, true}));
  EXPECT_EQ(windowed(model_of(with(slides, {{"layer_types", {"full_attention", "sliding_attention"}}}))),
            (std::vector<bool>{true, true}));
  EXPECT_EQ(windowed(model_of(with(slides, {{"use_sliding_window", false}}))), (std::vector<bool>{false, false}));
  ModelConfig model = model_of(slides);
  const auto written = [&] { return write_hf_config(*find_architecture("qwen3_moe"), model, 128, "float32"); };
  const Json json = Json::parse(written());
  EXPECT_EQ(json["use_sliding_window"], true);
  EXPECT_EQ(json["sliding_window"], 6);
  EXPECT_FALSE(json.contains("layer_types"));
  model.attention.window_attn_skip_freq = "[1,0]";
  EXPECT_THAT(test::message_of<ConfigError>(written), HasSubstr("window_attn_skip_freq = \"none\", not \"[1,0]\""));
}

// transformers' activations.py has several names for one function; the exported name reads back as the same function.
TEST(HfConfig, ReadsActivationsByName) {
  const auto model_of = [](const char* name, const char* key, const std::string& function) {
    return read_hf_config(with(config_of(name), {{key, function}}).dump(), "config.json").model;
  };
  const auto written = [](const char* type, const ModelConfig& model) {
    return Json::parse(write_hf_config(*find_architecture(type), model, 128, "float32"));
  };
  for (const auto& [name, again] : std::vector<std::pair<std::string, std::string>>{{"swish", "silu"},
                                                                                    {"gelu_python", "gelu"},
                                                                                    {"gelu_new", "gelu_pytorch_tanh"},
                                                                                    {"gelu_fast", "gelu_pytorch_tanh"},
                                                                                    {"quick_gelu", "quick_gelu"},
                                                                                    {"relu2", "relu2"}})
    for (const char* type : {"llama", "mixtral", "qwen3_moe", "deepseek_v3"}) {
      const ModelConfig model = model_of(type, "hidden_act", name);
      EXPECT_EQ(written(type, model)["hidden_act"], again);
      EXPECT_TRUE(model.mlp.gated());
      EXPECT_EQ(model.mlp.geglu, again.starts_with("gelu"));
      EXPECT_EQ(model.mlp.squared_reglu, again == "relu2");
      EXPECT_EQ(model.mlp.gelu_tanh, again == "gelu_pytorch_tanh");
      EXPECT_EQ(model.mlp.glu_activation_scale, name == "quick_gelu" ? 1.702 : 1);
    }
  for (const auto& [name, again] : std::vector<std::pair<std::string, std::string>>{
           {"gelu_pytorch_tanh", "gelu_new"}, {"gelu_python", "gelu"}, {"swish", "silu"}, {"relu2", "relu2"}}) {
    const ModelConfig model = model_of("gpt2", "activation_function", name);
    EXPECT_EQ(written("gpt2", model)["activation_function"], again);
    EXPECT_FALSE(model.mlp.gated());
    EXPECT_EQ(model.mlp.silu, name == "swish");
  }
}

// Newer configurations list layer types for every architecture.
TEST(HfConfig, AcceptsListsOfFullAttention) {
  for (const char* type : {"olmo2", "llama", "mixtral", "olmoe", "deepseek_v3"}) {
    const Json config = config_of(type);
    const int64_t layers = config["num_hidden_layers"];
    const Json full = with(config, {{"layer_types", std::vector<std::string>(layers, "full_attention")}});
    EXPECT_THAT(differences(read_hf_config(full.dump(), "a").model, read_hf_config(config.dump(), "b").model),
                ::testing::IsEmpty());
    const Json sliding = with(config, {{"layer_types", std::vector<std::string>(layers, "sliding_attention")}});
    EXPECT_THAT(refusal(sliding), HasSubstr("transformers' models of this type have one kind of layers"));
  }
}

// DeepSeek's attention without experts: no layer has any, or none are configured.
TEST(HfConfig, DeepSeekMayHaveNoExperts) {
  for (const char* type : {"deepseek_v2", "deepseek_v3"}) {
    const ModelConfig model = read_hf_config(config_of(std::string(type) + "_dense").dump(), "config.json").model;
    EXPECT_EQ(model.moe.num_experts, 0);
    Json unnamed = config_of(std::string(type) + "_dense");
    for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"}) unnamed.erase(key);
    unnamed["n_routed_experts"] = nullptr;
    unnamed["first_k_dense_replace"] = 0;
    EXPECT_THAT(differences(read_hf_config(unnamed.dump(), "a").model, model), ::testing::IsEmpty());
    const Json written = Json::parse(write_hf_config(*find_architecture(type), model, 128, "float32"));
    EXPECT_EQ(written["first_k_dense_replace"], 3);
    EXPECT_FALSE(written.contains("num_experts_per_tok"));
  }
}

// They do not affect what the weights compute, and their loss would go unnoticed.
TEST(HfConfig, TrainingKeysRoundTrip) {
  const auto again = [](const char* name, const Json& changes) {
    const HfModel hf = read_hf_config(with(config_of(name), changes).dump(), "config.json");
    return Json::parse(write_hf_config(*hf.architecture, hf.model, hf.positions, "float32"));
  };
  const Json dropouts = {
      {"resid_pdrop", 0.25}, {"embd_pdrop", 0.25}, {"attn_pdrop", 0.5}, {"initializer_range", 0.125}};
  const Json gpt2 = again("gpt2", dropouts);
  for (const auto& [key, value] : dropouts.items()) EXPECT_EQ(gpt2[key], value) << key;
  const Json changes = {{"attention_dropout", 0.25}, {"initializer_range", 0.125}, {"max_position_embeddings", 100}};
  const Json llama = again("llama", changes);
  for (const auto& [key, value] : changes.items()) EXPECT_EQ(llama[key], value) << key;
  EXPECT_EQ(again("gpt_oss", Json::object())["rope_parameters"]["truncate"], false);
}

// The balancing loss belongs to training, in which transformers adds it.
TEST(HfConfig, ReadsTheBalancingLossOnlyWhereItIsTrainedWith) {
  const auto coefficient = [](const Json& changes) {
    return read_hf_config(with(config_of("mixtral"), changes).dump(), "config.json").model.moe.moe_aux_loss_coeff;
  };
  const auto own = ModelConfig().moe.moe_aux_loss_coeff;
  EXPECT_EQ(coefficient({{"output_router_logits", false}, {"router_aux_loss_coef", 0.25}}), own);
  EXPECT_NE(coefficient({{"output_router_logits", true}, {"router_aux_loss_coef", 0.25}}), own);
  EXPECT_EQ(coefficient({{"output_router_logits", true}, {"router_aux_loss_coef", 0.0}}), own);
}

TEST(HfConfig, PartialRotationIsIgnoredWithoutRotation) {
  const HfModel hf = read_hf_config(config_of("gpt2").dump(), "config.json");
  ModelConfig model = hf.model;
  model.attention.rotary_percent = 0.5;
  EXPECT_THAT(write_hf_config(*hf.architecture, model, hf.positions, "float32"),
              ::testing::StrEq(write_hf_config(*hf.architecture, hf.model, hf.positions, "float32")));
}

// Kimi K2's files have another name for DeepSeek-V3's configuration.
TEST(HfConfig, ReadsEquivalentModelTypes) {
  const Json kimi = config_of("kimi_k2");
  EXPECT_EQ(kimi.at("model_type"), "kimi_k2");
  const HfModel found = read_hf_config(kimi.dump(), "config.json"),
                expected = read_hf_config(with(kimi, {{"model_type", "deepseek_v3"}}).dump(), "config.json");
  EXPECT_EQ(found.architecture, find_architecture("deepseek_v3"));
  EXPECT_THAT(differences(found.model, expected.model), ::testing::IsEmpty());
}

TEST(HfConfig, PublishedMinimaxGivesTheNumberOfRotatedChannels) {
  const Json config = config_of("minimax_m2");
  EXPECT_EQ(read_hf_config(config.dump(), "config.json").model.attention.rotary_percent, 0.5);
  Json published = with(config, {{"rope_parameters", nullptr}});
  EXPECT_EQ(read_hf_config(published.dump(), "config.json").model.attention.rotary_percent, 1);
  published["rotary_dim"] = 2;  // of 8
  EXPECT_EQ(read_hf_config(published.dump(), "config.json").model.attention.rotary_percent, 0.25);
}

// Published folders of Nemotron have a pattern, those of transformers 5 a list of types under one of three keys.
TEST(HfConfig, PartsOfNemotronsLayersHaveSeveralNames) {
  const Json config = config_of("nemotron_h");
  const HfModel listed = read_hf_config(config.dump(), "config.json");
  EXPECT_EQ(listed.model.mamba.hybrid_override_pattern, "ME*-MEM");
  EXPECT_EQ(listed.model.mamba.mamba_dt_min, 0.001);
  const Json older = {"mamba", "moe", "attention", "mlp", "mamba", "moe", "mamba"};
  for (const Json& changes :
       {Json{{"layers_block_type", nullptr}, {"hybrid_override_pattern", "ME*-MEM"}, {"num_hidden_layers", 7}},
        Json{{"layers_block_type", nullptr}, {"layer_types", older}}, Json{{"layers_block_type", older}},
        Json{{"hybrid_override_pattern", "MM"}}})
    EXPECT_THAT(differences(read_hf_config(with(config, changes).dump(), "config.json").model, listed.model),
                ::testing::IsEmpty())
        << changes;
  EXPECT_THAT(refusal(with(config, {{"mlp_bias", true}})), HasSubstr("mlp_bias = true"));
  EXPECT_THAT(refusal(with(config, {{"use_bias", true}})), HasSubstr("use_bias = true"));
  EXPECT_THAT(refusal(with(config, {{"layers_block_type", {"moe", "conv"}}})),
              HasSubstr("types of layers are linear_attention, moe, full_attention and mlp"));
}

// Published folders of Granite 4 have other names of types than transformers 5.24 writes, and keys that nothing reads.
TEST(HfConfig, GranitesLayersHaveSeveralNames) {
  const Json config = config_of("granitemoehybrid");
  const HfModel listed = read_hf_config(config.dump(), "config.json");
  EXPECT_EQ(listed.model.linear_attention.linear_attention_freq, "[1,0,1,1]");
  EXPECT_EQ(listed.model.attention.position_embedding_type, "none");
  const Json types = {"mamba", "attention", "mamba", "mamba"};
  for (const Json& changes :
       {Json{{"layer_types", types}}, Json{{"layer_types", nullptr}, {"layers_block_type", types}},
        Json{{"position_embedding_type", nullptr}, {"normalization_function", "rmsnorm"}, {"init_method", "mup"}},
        Json{{"mamba_d_head", "auto"}, {"rope_theta", 1e6}}})
    EXPECT_THAT(differences(read_hf_config(with(config, changes).dump(), "config.json").model, listed.model),
                ::testing::IsEmpty())
        << changes;
  const HfModel all = read_hf_config(with(config, {{"layer_types", nullptr}}).dump(), "config.json");
  EXPECT_EQ(all.model.linear_attention.linear_attention_freq, "[1,1,1,1]");
  const HfModel dense = read_hf_config(config_of("granitemoehybrid_dense").dump(), "config.json");
  EXPECT_EQ(dense.model.mamba.mamba_dt_min, 0.5);
  EXPECT_EQ(dense.model.mlp.ffn_hidden_size, 20);
  EXPECT_TRUE(dense.model.attention.rotates());
  for (const auto& [changes, why] : std::vector<std::pair<Json, std::string>>{
           {{{"layer_types", {"mamba", "conv", "mamba", "mamba"}}}, "types of layers are mamba and attention"},
           {{{"layers_block_type", types}}, "layers_block_type = "},
           {{{"position_embedding_type", "alibi"}}, "positions are rope or nope"},
           {{{"mamba_n_heads", 6}}, "heads have mamba_expand times hidden_size channels together"},
           {{{"mamba_proj_bias", true}}, "Witan's projections of Mamba-2 have no biases"},
           {{{"time_step_limit", {0.0, 0.5}}}, "have a lower bound alone"},
           {{{"hidden_act", "gelu"}}, "SiLU behind its convolution"},
           {{{"shared_intermediate_size", 0}}, "each layer has a shared MLP"}})
    EXPECT_THAT(refusal(with(config, changes)), HasSubstr(why)) << changes;
}

// Published folders of Kimi Linear number layers from 1 on, and have other names of keys than most configurations.
TEST(HfConfig, KimiLinearsLayersHaveSeveralNames) {
  const Json config = config_of("kimi_linear");
  const HfModel listed = read_hf_config(config.dump(), "config.json");
  EXPECT_EQ(listed.model.linear_attention.linear_attention_freq, "[1,0,1,1]");
  EXPECT_EQ(listed.model.moe.moe_layer_freq, "[0,1,1,1]");
  const Json lists = {{"full_attn_layers", {2}},
                      {"kda_layers", {1, 3, 4}},
                      {"num_heads", 4},
                      {"head_dim", 6},
                      {"short_conv_kernel_size", 3}};
  for (const Json& changes :
       {Json{{"layer_types", nullptr}, {"linear_attn_config", lists}, {"linear_num_heads", nullptr}},
        Json{{"mlp_layer_types", nullptr}, {"first_k_dense_replace", 1}, {"moe_layer_freq", 1}},
        Json{{"num_experts", nullptr}, {"num_local_experts", 8}, {"num_expert_group", nullptr}, {"n_group", 4}},
        Json{{"mla_use_nope", true}, {"rope_theta", 1e4}, {"moe_router_activation_func", "sigmoid"}}})
    EXPECT_THAT(differences(read_hf_config(with(config, changes).dump(), "config.json").model, listed.model),
                ::testing::IsEmpty())
        << changes;
  Json twice = lists;
  twice["full_attn_layers"] = {2, 3};
  for (const auto& [changes, why] : std::vector<std::pair<Json, std::string>>{
           {{{"layer_types", nullptr}, {"linear_attn_config", twice}}, "must name each layer once"},
           {{{"layer_types", {"conv", "conv", "conv", "conv"}}}, "linear_attention and full_attention"},
           {{{"mla_use_nope", false}}, "transformers' layers do not rotate"},
           {{{"num_shared_experts", 0}}, "layers with experts have a shared one"}})
    EXPECT_THAT(refusal(with(config, changes)), HasSubstr(why)) << changes;
}

TEST(HfConfig, RefusalsNameUnsupportedKeys) {
  const Json mixtral = config_of("mixtral"), llama = config_of("llama"), gpt2 = config_of("gpt2"),
             olmoe = config_of("olmoe"), gpt_oss = config_of("gpt_oss"), qwen2 = config_of("qwen2"),
             lite = config_of("glm4_moe_lite"), minimax = config_of("minimax_m2");
  const auto rope = [&](const Json& value) { return with(llama, {{"rope_parameters", value}}); };
  const std::vector<std::pair<Json, std::string>> cases = {
      {with(llama, {{"model_type", "mamba"}}), "model_type = mamba: Witan cannot represent models of this type"},
      {with(llama, {{"model_type", "phimoe"}}),
       "model_type = phimoe: Witan cannot represent models of this type: it has no SparseMixer"},
      {with(llama, {{"model_type", nullptr}}), "model_type is missing"},
      {with(llama, {{"hidden_act", "relu"}}), "hidden_act = \"relu\": of such functions Witan has silu, swish, gelu"},
      {with(gpt2, {{"activation_function", "quick_gelu"}}), "activation_function = \"quick_gelu\": "},
      {with(mixtral, {{"attention_bias", true}}), "attention_bias = true: transformers' models of this type have no"},
      {with(mixtral, {{"mlp_bias", true}}), "mlp_bias = true: models of this type have no biases in their MLPs"},
      {with(config_of("deepseek_v3"), {{"attention_bias", true}}), "attention_bias = true: Witan's latent attention"},
      {with(llama, {{"some_new_feature", 3}}), "some_new_feature = 3: Witan does not know what this key asks for"},
      {with(llama, {{"hidden_size", "16"}}), "hidden_size = \"16\": must be a whole number"},
      {with(llama, {{"hidden_size", -16}}), "hidden_size = -16: must be a whole number"},
      {with(llama, {{"rope_parameters", {{"rope_type", "linear"}}}}), "rope_parameters: factor is missing"},
      {with(olmoe, {{"clip_qkv", 0}}), "clip_qkv = 0: values are clamped to this bound"},
      {with(gpt_oss, {{"swiglu_limit", 0.0}}), "swiglu_limit = 0.0: values are clamped to this bound"},
      {with(qwen2, {{"use_sliding_window", false}}), "layers of sliding_attention need use_sliding_window = true"},
      {with(llama, {{"layer_types", {"full_attention", "sliding_attention"}}}),
       "one kind of layers, whatever this key says"},
      {rope({{"rope_type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}}),
       "partial_rotary_factor = 0.5: transformers' models of this type rotate every channel"},
      {with(llama, {{"num_key_value_heads", 3}}), "num_query_groups = 3 does not divide num_attention_heads = 4"},
      {rope({{"rope_type", "proportional"}, {"factor", 4.0}}), "rope_parameters: rope_type = \"proportional\": "},
      {rope({{"rope_type", "longrope"}, {"factor", 4.0}}), "rope_parameters: short_factor = absent: longrope needs"},
      {with(mixtral, {{"router_jitter_noise", 0.1}}), "router_jitter_noise = 0.1: "},
      {with(mixtral, {{"sliding_window", 1}}), "sliding_window = 1: "},
      {with(gpt2, {{"scale_attn_weights", false}}), "scale_attn_weights = false: "},
      {with(config_of("phi3"), {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e4}}}}),
       "Phi-3 stretches rotary positions as longrope does, or not at all"},
      {with(gpt2, {{"activation_function", "relu"}}), "activation_function = \"relu\": "},
      {with(gpt2, {{"embd_pdrop", 0.3}}), "embd_pdrop = 0.3: "},
      {with(llama, {{"quantization_config", {{"quant_method", "gptq"}}}}), "quant_method = \"gptq\": "},
      {with(lite, {{"first_k_dense_replace", 2}}), "first_k_dense_replace = 2: transformers makes the layers of"},
      {with(lite, {{"mlp_layer_types", {"dense"}}}), "must have an entry for each of num_hidden_layers"},
      {with(lite, {{"mlp_layer_types", {"dense", "sparse", "moe"}}}), "an entry must be dense or sparse"},
      {with(minimax, {{"num_experts_per_tok", 1}}), "num_experts_per_tok = 1: Witan divides the scores"},
      {with(minimax, {{"rotary_dim", 6}}), "rotary_dim = 6: partial_rotary_factor in rope_parameters says otherwise"},
      {with(config_of("seed_oss"), {{"attention_bias", false}, {"attention_out_bias", true}}),
       "attention_out_bias = true: Witan has no bias of the output projection without"},
      {with(config_of("exaone_moe"), {{"layer_types", nullptr}, {"sliding_window_pattern", "LG"}}),
       "sliding_window_pattern = \"LG\": must be a whole number above 0"},
      {with(config_of("smollm3"), {{"no_rope_layers", {1}}}), "no_rope_layers = [1]: must have an entry for each"},
      {with(config_of("qwen2_moe"), {{"num_experts", 0}}), "num_experts = 0: a model without experts is one of type"},
      {Json::array(), "a config.json is an object, found array"},
  };
  for (const auto& [config, expected] : cases) EXPECT_THAT(refusal(config), HasSubstr(expected));
}

// The error uses the file's keys, although Witan's keys are the invalid ones.
TEST(HfConfig, ErrorsOfWitansKeysNameTheFilesKeys) {
  const Json llama = config_of("llama"), gpt2 = config_of("gpt2"), mixtral = config_of("mixtral"),
             deepseek = config_of("deepseek_v3");
  const auto yarn = [&](const Json& changes) {
    Json rope = {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}};
    return with(llama, {{"rope_parameters", with(rope, changes)}});
  };
  const std::vector<std::pair<Json, std::string>> cases = {
      {with(llama, {{"num_key_value_heads", 3}}),
       "config.json: num_attention_heads = 4, num_key_value_heads = 3: Witan cannot represent this model: "
       "num_query_groups = 3 does not divide num_attention_heads = 4"},
      {with(llama, {{"num_hidden_layers", 0}}),
       "config.json: num_hidden_layers = 0: Witan cannot represent this model: "},
      {with(gpt2, {{"n_embd", 0}}), "config.json: n_embd = 0: Witan cannot represent this model: hidden_size = 0: "},
      {with(gpt2, {{"n_head", 5}}), "n_head = 5: Witan cannot represent this model: num_attention_heads = 5 does not"},
      {with(mixtral, {{"num_experts_per_tok", 9}}),
       "num_local_experts = 4, num_experts_per_tok = 9: Witan cannot represent this model: moe_router_topk = 9 is more "
       "than num_experts = 4"},
      {with(llama, {{"rms_norm_eps", -1.0}}), "rms_norm_eps = -1.0: Witan cannot represent this model: norm_epsilon"},
      {yarn({{"factor", 0.5}}), "factor = 0.5: Witan cannot represent this model: rotary_scaling_factor = 0.5"},
      {yarn({{"beta_fast", 1.0}, {"beta_slow", 2.0}}), "beta_fast = 1.0, beta_slow = 2.0: Witan cannot represent"},
      {with(deepseek, {{"qk_rope_head_dim", 3}, {"qk_head_dim", nullptr}, {"head_dim", nullptr}}),
       "qk_rope_head_dim = 3: Witan cannot represent this model: "},
      {with(deepseek, {{"topk_group", 7}}), "topk_group = 7: Witan cannot represent this model: "},
  };
  for (const auto& [config, expected] : cases) EXPECT_THAT(refusal(config), HasSubstr(expected));
}

TEST(HfConfig, ReportsFloat8Blocks) {
  const Json fp8 = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  const Json config = with(config_of("llama"), {{"quantization_config", fp8}});
  EXPECT_EQ(read_hf_config(config.dump(), "config.json").fp8_block, 128);
  EXPECT_THAT(refusal(with(config, {{"quantization_config", with(fp8, {{"weight_block_size", {128, 64}}})}})),
              HasSubstr("weight_block_size = [128,64]: "));
}

// Latent attention has keys for every head, whatever num_query_groups is; transformers fails with fewer.
TEST(HfConfig, WritesAllHeadsOfLatentAttention) {
  ModelConfig model = read_hf_config(config_of("deepseek_v3").dump(), "config.json").model;
  model.attention.num_query_groups = 2;
  EXPECT_EQ(
      Json::parse(write_hf_config(*find_architecture("deepseek_v3"), model, 128, "float32"))["num_key_value_heads"], 4);
}

// In latent attention v_head_dim = 0 means the number of unrotated query channels.
TEST(HfConfig, WritesValueChannelsOfLatentAttention) {
  ModelConfig model = read_hf_config(config_of("deepseek_v3").dump(), "config.json").model;
  const auto written = [&] {
    return Json::parse(write_hf_config(*find_architecture("deepseek_v3"), model, 128, "float32"))["v_head_dim"];
  };
  EXPECT_EQ(written(), 6);
  model.attention.v_head_dim = 0;
  EXPECT_EQ(written(), 8);
}

// A run of Witan is written as a config.json only if the file gives the same model.
TEST(HfConfig, IsWrittenOnlyIfItDescribesTheModel) {
  ModelConfig model = read_hf_config(config_of("mixtral").dump(), "config.json").model;
  const auto error = [&](const char* type) {
    return test::message_of<ConfigError>([&] { write_hf_config(*find_architecture(type), model, 128, "float32"); });
  };
  model.moe.moe_shared_expert_intermediate_size = 8;
  EXPECT_THAT(error("mixtral"), HasSubstr("moe_shared_expert_intermediate_size = 0, not 8"));
  model.moe.moe_shared_expert_intermediate_size = 0;
  EXPECT_THAT(error("llama"), HasSubstr("cannot be what this one is: window_size = \"none\", not \"6,0\""));
  model.moe.moe_aux_loss_coeff = "0.5";  // belongs to training
  model.moe.moe_router_pre_softmax = true;
  EXPECT_THAT(error("mixtral"), HasSubstr("moe_router_pre_softmax = false, not true"));
  model.moe.moe_router_norm_topk_prob = "true";  // an equivalent spelling
  EXPECT_NO_THROW(write_hf_config(*find_architecture("mixtral"), model, 128, "float32"));
}

}  // namespace
}  // namespace witan
