// Rotary positions of configurations with two kinds of layers (OLMo 3), in all spellings that transformers has used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Json olmo3_with(const Json& changes = Json::object()) {
  Json config = Json::parse(read_file(testing::golden("olmo3_yarn") / kHfConfig));
  config.update(changes);
  return config;
}

ModelConfig olmo3(const Json& changes = Json::object()) {
  return read_hf_config(olmo3_with(changes).dump(), "config.json").model;
}

std::string olmo3_refusal(const Json& changes) {
  return test::message_of<ConfigError>([&] { olmo3(changes); });
}

Json rope_of_types(const Json& full, const Json& sliding) {
  return {{"rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}}}};
}

const Json& stretched() {
  static const Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}};
  return yarn;
}

TEST(HfRope, WindowedLayersUseUnscaledFrequencies) {
  const ModelConfig model = olmo3();
  EXPECT_EQ(model.attention.window_size, "5,0");
  EXPECT_EQ(model.attention.rope_scaling_type, "yarn");
  EXPECT_EQ(model.attention.rotary_scaling_factor, 4);
  EXPECT_EQ(model.attention.original_max_position_embeddings, 16);
  EXPECT_EQ(model.attention.mscale, 1) << "the file's attention_factor is 0.1 ln 4 + 1";
  EXPECT_FALSE(model.attention.window_rope_scaling);
  EXPECT_EQ(model.attention.window_rotary_base, 0);
  const auto layers = model.layers();
  EXPECT_EQ(rotation_of(layers[2].mixer).scaling, kernels::RopeScaling());
  EXPECT_EQ(rotation_of(layers[3].mixer).scaling.type, kernels::RopeScaling::Type::yarn);
  EXPECT_DOUBLE_EQ(rotation_of(layers[3].mixer).scaling.magnitude, 0.1 * std::log(4.0) + 1);
}

// As in the released models, rope_theta has the default value, on which versions of transformers agree.
TEST(HfRope, RopeScalingAppliesToFullAttention) {
  Json scaling = olmo3_with()["rope_parameters"]["full_attention"];
  scaling.erase("rope_theta");
  const ModelConfig before = olmo3({{"rope_parameters", nullptr}, {"rope_theta", 5e5}, {"rope_scaling", scaling}});
  scaling["rope_theta"] = 5e5;
  EXPECT_THAT(differences(before, olmo3(rope_of_types(scaling, Json::object()))), IsEmpty());
  EXPECT_THAT(olmo3_refusal({{"rope_parameters", nullptr}, {"rope_theta", 7e3}}),
              HasSubstr("rope_theta = 7000.0: transformers takes it for all layers before v5"));
  scaling["type"] = scaling["rope_type"];
  scaling.erase("rope_type");
  EXPECT_THAT(olmo3_refusal({{"rope_parameters", nullptr}, {"rope_scaling", scaling}}), HasSubstr("by rope_type"));
  const AttentionConfig plain = olmo3({{"rope_parameters", nullptr}, {"rope_theta", 5e5}}).attention;
  EXPECT_EQ(plain.rope_scaling_type, "none");
  EXPECT_EQ(plain.window_rotary_base, 0);
  EXPECT_TRUE(plain.window_rope_scaling);
  EXPECT_EQ(olmo3({{"rope_parameters", nullptr}}).attention.rotary_base, 5e5) << "Olmo3Config's";
}

TEST(HfRope, WindowedLayersMayHaveAnotherBase) {
  const AttentionConfig other = olmo3(rope_of_types(stretched(), {{"rope_theta", 300.0}})).attention;
  EXPECT_EQ(other.rotary_base, 1e4);
  EXPECT_EQ(other.window_rotary_base, 300);
  EXPECT_FALSE(other.window_rope_scaling);
  const AttentionConfig alike = olmo3(rope_of_types(stretched(), stretched())).attention;
  EXPECT_EQ(alike.window_rotary_base, 0);
  EXPECT_TRUE(alike.window_rope_scaling);
  EXPECT_EQ(alike.rope_scaling_type, "yarn");
  const AttentionConfig one = olmo3({{"rope_parameters", {{"full_attention", stretched()}}}}).attention;
  EXPECT_EQ(one.window_rotary_base, 5e5) << "Olmo3Config's default";
}

// If all layers have one type, that type's positions apply.
TEST(HfRope, PositionsOfUnusedLayerTypesAreIgnored) {
  const Json types = rope_of_types(stretched(), {{"rope_theta", 300.0}});
  const auto of_layers = [&](const char* type) {
    Json changes = types;
    changes["layer_types"] = Json::array({type, type, type, type});
    return olmo3(changes).attention;
  };
  const AttentionConfig full = of_layers("full_attention"), windowed = of_layers("sliding_attention");
  EXPECT_EQ(full.rope_scaling_type, "yarn");
  EXPECT_EQ(full.rotary_base, 1e4);
  EXPECT_EQ(windowed.rope_scaling_type, "none");
  EXPECT_EQ(windowed.rotary_base, 300);
  for (const AttentionConfig& one : {full, windowed}) {
    EXPECT_EQ(one.window_rotary_base, 0);
    EXPECT_TRUE(one.window_rope_scaling);
  }
}

TEST(HfRope, RefusesUnsupportedCombinations) {
  EXPECT_THAT(olmo3_refusal({{"rope_parameters", stretched()}}),
              HasSubstr("rope_parameters = {\"factor\":4.0,\"rope_theta\":10000.0,\"rope_type\":\"yarn\"}: this "
                        "architecture has them for each type of layers, full_attention and sliding_attention"));
  EXPECT_THAT(
      olmo3_refusal({{"rope_parameters", {{"full_attention", stretched()}, {"chunked_attention", stretched()}}}}),
      HasSubstr("rope_parameters: chunked_attention = "));
  EXPECT_THAT(olmo3_refusal({{"rope_scaling", stretched()}}), HasSubstr("rope_scaling = "))
      << "in addition to rope_parameters";
  Json other = stretched();
  other["factor"] = 2.0;
  EXPECT_THAT(
      olmo3_refusal(rope_of_types(stretched(), other)),
      HasSubstr("rope_parameters: sliding_attention: frequencies of layers with a window are stretched in Witan as "
                "those of config.json: rope_parameters: full_attention or not at all"));
  EXPECT_THAT(olmo3_refusal(rope_of_types(stretched(), {{"rope_theta", 1e4}, {"rope_type", "proportional"}})),
              HasSubstr("sliding_attention: rope_type = \"proportional\""));
  EXPECT_THAT(olmo3_refusal(rope_of_types({{"factor", 0.5}, {"rope_type", "linear"}}, Json::object())),
              HasSubstr("config.json: factor = 0.5: Witan cannot represent this model: rotary_scaling_factor = 0.5"));
  Json unrounded = stretched();
  unrounded["truncate"] = false;
  EXPECT_THAT(olmo3_refusal(rope_of_types(unrounded, {{"rope_theta", 1e4}})),
              HasSubstr("config.json: truncate = false: models of this type round YaRN's bounds"));
}

// transformers' models of these types ignore the key for unscaled frequencies, and fail for scaled ones.
TEST(HfRope, RefusesPartialRotationThatTransformersIgnores) {
  const Json partial = {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}};
  const std::string why = "partial_rotary_factor = 0.5: transformers' models of this type rotate every channel";
  EXPECT_THAT(olmo3_refusal(rope_of_types(stretched(), partial)), HasSubstr("sliding_attention: " + why));
  for (const char* type : {"llama", "mixtral", "qwen3", "olmo2", "gpt_oss", "deepseek_v3"}) {
    Json config = Json::parse(read_file(testing::golden(type) / kHfConfig));
    const auto refusal = [&] {
      return test::message_of<ConfigError>([&] { read_hf_config(config.dump(), "config.json"); });
    };
    config["rope_parameters"]["partial_rotary_factor"] = 0.5;
    EXPECT_THAT(refusal(), HasSubstr("rope_parameters: " + why)) << type;
    config.erase("rope_parameters");
    config["partial_rotary_factor"] = 0.5;
    EXPECT_THAT(refusal(), HasSubstr(why)) << type;
    ModelConfig model = read_hf_config(read_file(testing::golden(type) / kHfConfig), "config.json").model;
    if (model.attention.multi_latent_attention) continue;
    model.attention.rotary_percent = 0.5;
    EXPECT_THAT(
        test::message_of<ConfigError>([&] { write_hf_config(*find_architecture(type), model, 128, "float32"); }),
        HasSubstr(cat("rotary_percent = 0.5: transformers' models of type ", type, " rotate every channel")));
  }
}

// Phi-3 uses the type "su", stores the original context outside of the object, and has no factor.
TEST(HfRope, LongRopesFactorIsTheRatioOfContexts) {
  const auto longrope = [](const Json& changes) {
    Json config = Json::parse(read_file(testing::golden("llama") / kHfConfig));
    config.update(changes);
    return read_hf_config(config.dump(), "config.json").model.attention;
  };
  const Json lists = {{"type", "su"}, {"short_factor", {1, 1.5}}, {"long_factor", {2, 8}}};
  const AttentionConfig phi3 =
      longrope({{"rope_scaling", lists}, {"rope_parameters", nullptr}, {"original_max_position_embeddings", 32}});
  EXPECT_EQ(phi3.rope_scaling_type, "longrope");
  EXPECT_EQ(phi3.rotary_scaling_factor, 4) << "128 positions from 32";
  EXPECT_EQ(phi3.original_max_position_embeddings, 32);
  EXPECT_EQ(phi3.rope_short_factors, "[1.0,1.5]");
  EXPECT_EQ(phi3.rope_long_factors, "[2.0,8.0]");
  EXPECT_EQ(phi3.rope_attention_factor, 0);
}

// Dynamic frequencies change beyond max_position_embeddings, whatever original context the file gives.
TEST(HfRope, DynamicScalingStartsAtTheContextLength) {
  Json config = Json::parse(read_file(testing::golden("llama") / kHfConfig));
  const Json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  config["rope_parameters"] = dynamic;
  ModelConfig model = read_hf_config(config.dump(), "config.json").model;
  EXPECT_EQ(model.attention.most_positions(), 128);
  config["rope_parameters"]["original_max_position_embeddings"] = 32;
  EXPECT_THAT(differences(read_hf_config(config.dump(), "config.json").model, model), IsEmpty());
  const Json written = Json::parse(write_hf_config(*find_architecture("llama"), model, 4096, "float32"));
  EXPECT_EQ(written["max_position_embeddings"], 128) << "a model trained on more positions needs no more";
}

// transformers reads the original context outside of the object, and other programs inside it.
TEST(HfRope, PhisOriginalContextIsWrittenInBothPlaces) {
  const HfModel hf = read_hf_config(read_file(testing::golden("phi3_longrope") / kHfConfig), "config.json");
  const Json written = Json::parse(write_hf_config(*hf.architecture, hf.model, hf.positions, "float32"));
  EXPECT_EQ(written["original_max_position_embeddings"], 256);
  EXPECT_EQ(written["rope_parameters"]["original_max_position_embeddings"], 256);
}

// attention_factor as an mscale: (factor - 1) / (0.1 ln 4).
TEST(HfRope, AttentionFactorsAreMscales) {
  const auto with_factor = [](const Json& factor, const Json& more = Json::object()) {
    Json full = stretched();
    full["attention_factor"] = factor;
    full.update(more);
    return rope_of_types(full, {{"rope_theta", 1e4}});
  };
  for (const double mscale : {0.0, 0.707, 1.0, 1.3})
    EXPECT_EQ(olmo3(with_factor(0.1 * mscale * std::log(4.0) + 1)).attention.mscale, mscale);
  EXPECT_EQ(olmo3(with_factor(nullptr)).attention.mscale, 1);
  EXPECT_EQ(olmo3(with_factor(1.0, {{"factor", 1.0}})).attention.mscale, 1);
  EXPECT_THAT(olmo3_refusal(with_factor(0.9)), HasSubstr("attention_factor = 0.9: Witan multiplies sines"));
  EXPECT_THAT(olmo3_refusal(with_factor(1.2, {{"factor", 1.0}})), HasSubstr("attention_factor = 1.2: "));
  EXPECT_THAT(olmo3_refusal(with_factor(1.2, {{"mscale", 1.0}, {"mscale_all_dim", 1.0}})),
              HasSubstr("attention_factor = 1.2: Witan computes this factor"));
}

// transformers can read the file, and Witan reads it as the same model.
TEST(HfRope, PositionsAreWrittenForEachLayerType) {
  ModelConfig model = olmo3();
  model.attention.mscale = 0.707;
  model.attention.window_rotary_base = 300;
  const auto written = [&](const char* type) {
    const HfModel hf = read_hf_config(olmo3_with().dump(), "config.json");
    return Json::parse(write_hf_config(*find_architecture(type), model, hf.positions, "float32"));
  };
  const Json config = written("olmo3");
  EXPECT_EQ(config["layer_types"], olmo3_with()["layer_types"]);
  EXPECT_EQ(config["sliding_window"], 6);
  EXPECT_FALSE(config.contains("use_sliding_window"));
  const Json& rope = config["rope_parameters"];
  EXPECT_EQ(rope["sliding_attention"], Json({{"rope_theta", 300.0}, {"rope_type", "default"}}));
  EXPECT_EQ(rope["full_attention"]["rope_type"], "yarn");
  EXPECT_DOUBLE_EQ(rope["full_attention"]["attention_factor"].get<double>(), 0.0707 * std::log(4.0) + 1);
  EXPECT_THAT(differences(read_hf_config(config.dump(), "written").model, model), IsEmpty());
  EXPECT_THAT(test::message_of<ConfigError>([&] { written("olmo2"); }), HasSubstr("window_size = \"none\", not"));
}

}  // namespace
}  // namespace witan
