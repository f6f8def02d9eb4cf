#include "witan/nn/attention/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/kernels/attention/rope.h"

namespace witan {
namespace {

using test::message_of;

template <class Change>
std::string refused(Change&& change, int64_t hidden_size = 32, int64_t num_layers = 4) {
  AttentionConfig config;
  change(config);
  return message_of<ConfigError>([&] { config.validate(hidden_size, num_layers); });
}

// The specs of a model whose layers are all of one kind.
template <class Spec = MultiHeadSpec>
std::vector<Spec> layers_of(const AttentionConfig& config, int64_t hidden_size, int64_t num_layers) {
  std::vector<Spec> specs;
  for (const MixerSpec& mixer : config.layers(hidden_size, num_layers)) specs.push_back(std::get<Spec>(mixer));
  return specs;
}

TEST(AttentionConfig, ErrorsExplainImpossibleSizes) {
  EXPECT_EQ(refused([](AttentionConfig& c) { c.num_query_groups = 3; }),
            "num_query_groups = 3 does not divide num_attention_heads = 4");
  EXPECT_EQ(refused([](AttentionConfig&) {}, 30),
            "num_attention_heads = 4 does not divide hidden_size = 30; set kv_channels");
  EXPECT_EQ(refused([](AttentionConfig& c) { c.rotary_percent = 1.5; }), "rotary_percent = 1.5: a share is at most 1");
  const std::string odd = "rope rotates pairs of channels: the head size 8 times rotary_percent 0.3 must be even";
  EXPECT_EQ(refused([](AttentionConfig& c) { c.rotary_percent = 0.3; }), odd);
  EXPECT_EQ(refused([](AttentionConfig& c) { c.kv_channels = 7; }),
            "rope rotates pairs of channels: the head size 7 times rotary_percent 1 must be even");

  AttentionConfig fine;
  fine.kv_channels = 7;
  fine.position_embedding_type = "none";
  fine.validate(30, 1);
  EXPECT_EQ(fine.qk_head_dim(30), 7);
  EXPECT_EQ(fine.value_head_dim(30), 7);
  fine.v_head_dim = 5;
  EXPECT_EQ(fine.value_head_dim(30), 5);
  fine.kv_channels = 0;
  EXPECT_EQ(fine.qk_head_dim(32), 8);
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"num_attention_heads", "0"},
                                                        {"num_query_groups", "0"},
                                                        {"kv_channels", "-1"},
                                                        {"v_head_dim", "-1"},
                                                        {"position_embedding_type", "learned"},
                                                        {"rotary_base", "1"},
                                                        {"rotary_percent", "0"}})
    EXPECT_THROW(set_field(fine.fields(), key, text, "test"), ConfigError) << key << " = " << text;
}

TEST(AttentionConfig, LongRopeHasShortAndLongFactors) {
  AttentionConfig config;
  config.kv_channels = 4;
  config.rope_scaling_type = "longrope";
  config.rotary_scaling_factor = 4;
  config.original_max_position_embeddings = 16;
  config.rope_short_factors = "[1.0, 1.5]";
  config.rope_long_factors = "[2,8e1]";
  config.validate(32, 2);
  EXPECT_EQ(config.most_positions(), 16);
  const auto scaling = [&] { return layers_of(config, 32, 2)[1].rope.scaling; };
  EXPECT_EQ(scaling().factors, (std::vector<double>{1, 1.5}));
  EXPECT_DOUBLE_EQ(scaling().magnitude, std::sqrt(1.5)) << "ln 4 is half of ln 16";
  config.rope_long_context = true;
  config.rope_attention_factor = 1.25;
  EXPECT_EQ(config.most_positions(), std::nullopt);
  EXPECT_EQ(scaling().factors, (std::vector<double>{2, 80}));
  EXPECT_EQ(scaling().magnitude, 1.25);
  for (const char* bad : {"none", "[1.0]", "[1.0,1.5,2]"}) {
    config.rope_long_factors = bad;
    EXPECT_EQ(message_of<ConfigError>([&] { config.validate(32, 2); }),
              cat("rope_long_factors = ", bad,
                  ": rope_scaling_type = longrope needs a factor for each of 2 pairs of channels, as in [1.0,1.5]"));
  }
  for (const char* bad : {"", "1,2", "[]", "[1,-2]", "[1,]", "[1;2]", "[1,2]]", "[1,nan]"}) {
    config.rope_long_factors = bad;
    EXPECT_EQ(message_of<ConfigError>([&] { config.validate(32, 2); }),
              cat("rope_long_factors = ", bad, ": must be a list of positive numbers, as in [1.0,1.5]"));
  }
}

TEST(AttentionConfig, DynamicScalingEndsAtTheOriginalContext) {
  AttentionConfig config;
  config.rope_scaling_type = "dynamic";
  config.rotary_scaling_factor = 4;
  config.original_max_position_embeddings = 64;
  config.validate(32, 2);
  EXPECT_EQ(config.most_positions(), 64);
  EXPECT_EQ(layers_of(config, 32, 2)[0].rope.scaling, kernels::RopeScaling());
}

TEST(AttentionConfig, LayersMayScaleByTheirNumbers) {
  AttentionConfig config;
  config.kv_channels = 16;
  config.scale_attn_by_inverse_layer_idx = true;
  EXPECT_DOUBLE_EQ(layers_of(config, 32, 3)[0].scale, 1.0 / 4);
  EXPECT_DOUBLE_EQ(layers_of(config, 32, 3)[2].scale, 1.0 / 12);
  config.softmax_scale = 3;
  EXPECT_DOUBLE_EQ(layers_of(config, 32, 3)[2].scale, 1);
}

TEST(AttentionConfig, NormsClippingBiasesAndSinksApplyToEveryLayer) {
  AttentionConfig config;
  EXPECT_EQ(layers_of(config, 32, 2)[1].qk_norm, QkNorm::none);
  EXPECT_EQ(layers_of(config, 32, 2)[1].clip_qkv, 0);
  EXPECT_FALSE(layers_of(config, 32, 2)[1].sinks || layers_of(config, 32, 2)[1].qkv_bias);
  config.qk_layernorm = config.add_qkv_bias = true;
  config.clip_qkv = 8;
  config.softmax_type = "learnable";
  config.validate(32, 2);
  for (const MultiHeadSpec& layer : layers_of(config, 32, 2)) {
    EXPECT_EQ(layer.qk_norm, QkNorm::per_head);
    EXPECT_EQ(layer.clip_qkv, 8);
    EXPECT_TRUE(layer.sinks && layer.qkv_bias);
  }
  EXPECT_FALSE(layers_of(config, 32, 2)[0].output_bias);
  config.add_qkv_bias = false;
  config.add_attention_bias = true;
  EXPECT_TRUE(layers_of(config, 32, 2)[1].qkv_bias && layers_of(config, 32, 2)[1].output_bias);
  config.qk_layernorm_full_width = true;
  EXPECT_EQ(layers_of(config, 32, 2)[0].qk_norm, QkNorm::full_width);
  config.qk_layernorm_full_width = false;
  config.qk_layernorm_after_rope = true;
  EXPECT_EQ(layers_of(config, 32, 2)[0].qk_norm, QkNorm::per_head_rotated);
  for (const bool normalised : {false, true})
    EXPECT_THAT(refused([&](AttentionConfig& c) {
                  c.qk_layernorm = c.qk_layernorm_full_width = normalised;
                  c.qk_layernorm_after_rope = true;
                }),
                ::testing::HasSubstr("qk_layernorm_after_rope = true needs qk_layernorm = true"));
  EXPECT_EQ(refused([](AttentionConfig& c) { c.qk_layernorm_full_width = true; }),
            "qk_layernorm_full_width = true says how queries and keys are normalized, and qk_layernorm = false that "
            "they are not: set qk_layernorm = true");
  EXPECT_THROW(set_field(config.fields(), "softmax_type", "off-by-one", "test"), ConfigError);
}

std::vector<int64_t> windows(const std::string& size, const std::string& skip_freq, int64_t num_layers) {
  AttentionConfig config;
  config.window_size = size;
  config.window_attn_skip_freq = skip_freq;
  config.validate(32, num_layers);
  std::vector<int64_t> windows;
  for (const MultiHeadSpec& layer : layers_of(config, 32, num_layers)) windows.push_back(layer.window);
  return windows;
}

using Windows = std::vector<int64_t>;

// Megatron-LM's is_layer_window_attention(), whose layers are counted from 1: full attention if N divides the number,
// or where a list has a 0. A window (left, 0) shows `left` earlier tokens besides a token's own.
TEST(AttentionConfig, WindowsMatchMegatron) {
  EXPECT_EQ(windows("none", "none", 2), Windows({0, 0}));
  for (const char* spelling : {"7", "7,0", "(7, 0)", "[7,0]", " 7,0 "})
    EXPECT_EQ(windows(spelling, "none", 2), Windows({8, 8})) << spelling;
  EXPECT_EQ(windows("7,0", "3", 7), Windows({8, 8, 0, 8, 8, 0, 8}));
  EXPECT_EQ(windows("7,0", "9", 3), Windows({8, 8, 8}));
  EXPECT_EQ(windows("7,0", "[0,1,0]", 3), Windows({0, 8, 0}));
  EXPECT_EQ(windows("7,0", "([1]*2+[0])*2", 6), Windows({8, 8, 0, 8, 8, 0}));
  EXPECT_EQ(windows("-1,0", "none", 1), Windows({0})) << "-1 is Megatron-LM's word for all earlier tokens";
}

TEST(AttentionConfig, ErrorsExplainImpossibleWindows) {
  const auto size = [](const char* text) { return refused([&](AttentionConfig& c) { c.window_size = text; }); };
  const std::string read =
      ": must be how many earlier tokens a token sees, as in 4095 or 4095,0, or none for all of them";
  for (const char* bad : {"", "seven", "7,", ",7", "7,0,0", "7.5", "[7,0", "7x", "99999999999999999999"})
    EXPECT_EQ(size(bad), cat("window_size = ", bad, read));
  EXPECT_EQ(size("7,3"), "window_size = 7,3: tokens never see later ones: the second number must be 0, as in 4095,0");
  for (const char* bad : {"0", "0,0", "-2,0"})
    EXPECT_EQ(size(bad), cat("window_size = ", bad,
                             ": a window must reach back to at least 1 earlier token; set it to none for full "
                             "attention"));
  const auto freq = [](const char* text, const char* window) {
    return refused([&](AttentionConfig& c) {
      c.window_size = window;
      c.window_attn_skip_freq = text;
    });
  };
  EXPECT_EQ(freq("2", "none"),
            "window_attn_skip_freq = 2 chooses among layers with a window, and window_size = none gives none: set "
            "window_size, as 4095,0");
  for (const char* all : {"1", "[0,0,0,0]"})
    EXPECT_EQ(freq(all, "7"), cat("window_attn_skip_freq = ", all,
                                  " leaves no layer a window; full attention in every layer is window_size = none"));
  for (const char* bad : {"0", "[1,0]", "[1,2,1,0]", "often"})
    EXPECT_EQ(freq(bad, "7"), cat("window_attn_skip_freq = ", bad,
                                  ": must be a whole number, or a pattern of 0 and 1 for each of the 4 layers, as in "
                                  "[1,0]"));
}

TEST(AttentionConfig, SomeLayersMayHaveNoAttention) {
  AttentionConfig config;
  config.no_attention_freq = "[0,1,0]";
  config.window_size = "3,0";
  config.softmax_scale = 0.12;
  config.qk_l2_norm = true;
  config.validate(32, 3);
  const auto layers = config.layers(32, 3);
  EXPECT_TRUE(std::holds_alternative<NoMixer>(layers[1]));
  EXPECT_EQ(window_of(layers[1]) + rotation_of(layers[1]).dims, 0);
  for (const size_t layer : {0U, 2U}) {
    EXPECT_EQ(std::get<MultiHeadSpec>(layers[layer]).scale, 0.12);
    EXPECT_EQ(std::get<MultiHeadSpec>(layers[layer]).qk_norm, QkNorm::l2);
  }
  EXPECT_EQ(refused([](AttentionConfig& c) { c.no_attention_freq = "1"; }),
            "no_attention_freq = 1 leaves no layer with attention, so that no token would see another; keep it in "
            "some layer");
}

TEST(AttentionConfig, HalfOfTheFrequenciesMayBeZero) {
  AttentionConfig config;
  config.rotary_half_truncated = true;
  EXPECT_TRUE(layers_of(config, 32, 1).front().rope.half_truncated);
  const auto why = [](auto&& change) {
    return refused([&](AttentionConfig& c) {
      c.rotary_half_truncated = true;
      change(c);
    });
  };
  const std::string needs =
      "rotary_half_truncated = true rotates half of the pairs of channels, at least two: it needs "
      "position_embedding_type = rope and a multiple of 4 channels that rotate, at least 8, but there are ";
  EXPECT_EQ(why([](AttentionConfig& c) { c.kv_channels = 10; }), needs + "10");
  EXPECT_EQ(why([](AttentionConfig& c) { c.rotary_percent = 0.5; }), needs + "4");
  EXPECT_EQ(why([](AttentionConfig& c) { c.position_embedding_type = "none"; }), needs + "0");
}

TEST(AttentionConfig, SomeLayersMayHaveNoRotaryPositions) {
  AttentionConfig config;
  config.rotary_percent = 0.5;
  const auto dims = [&](const char* freq) {
    config.no_rope_freq = freq;
    config.validate(32, 5);
    std::vector<int64_t> rotated;
    for (const MultiHeadSpec& layer : layers_of(config, 32, 5)) rotated.push_back(layer.rope.dims);
    return rotated;
  };
  EXPECT_EQ(dims("none"), Windows({4, 4, 4, 4, 4}));
  EXPECT_EQ(dims("2"), Windows({4, 0, 4, 0, 4}));
  EXPECT_EQ(dims("[1,0,0,1,0]"), Windows({0, 4, 4, 0, 4}));
  EXPECT_EQ(refused([](AttentionConfig& c) { c.no_rope_freq = "[1,1,1,1]"; }),
            "no_rope_freq = [1,1,1,1] leaves no layer its rotary positions; that is position_embedding_type = none");
  EXPECT_EQ(refused([](AttentionConfig& c) {
              c.no_rope_freq = "2";
              c.position_embedding_type = "none";
            }),
            "no_rope_freq = 2 chooses among layers with rotary positions, and position_embedding_type = none has none: "
            "set it to rope, or no_rope_freq to none");
  EXPECT_NE(refused([](AttentionConfig& c) { c.no_rope_freq = "[1]"; }).find("each of the 4 layers"),
            std::string::npos);
}

// "key=value;key=value"
AttentionConfig config_with(const std::string& settings) {
  AttentionConfig config;
  std::istringstream words(settings);
  for (std::string word; std::getline(words, word, ';');) {
    const size_t equals = word.find('=');
    set_field(config.fields(), word.substr(0, equals), word.substr(equals + 1), "golden");
  }
  return config;
}

TEST(AttentionConfig, FrequenciesMatchHuggingFace) {
  std::ifstream file(std::filesystem::path(WITAN_SOURCE_DIR) / "tests/golden/nn/rope.tsv");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    std::string settings;
    double magnitude = 0;
    words >> settings >> magnitude;
    SCOPED_TRACE(settings);
    const AttentionConfig config = config_with(settings);
    config.validate(32, 1);
    const kernels::RopeArgs rope = layers_of(config, 32, 1).front().rope;
    EXPECT_NEAR(rope.scaling.magnitude, magnitude, 1e-14);
    for (const double frequency : rope_frequencies(rope)) {
      double expected = 0;
      ASSERT_TRUE(words >> expected);
      EXPECT_NEAR(frequency / expected, 1, 1e-12);
    }
    EXPECT_FALSE(words >> magnitude) << "as many pairs";
  }
  EXPECT_EQ(lines, 11);
}

TEST(AttentionConfig, ScalingChangesOnlyRotatingLayers) {
  AttentionConfig config = config_with("rope_scaling_type=yarn;rotary_scaling_factor=4;no_rope_freq=2");
  const auto layers = layers_of(config, 32, 2);
  EXPECT_EQ(layers[0].rope.scaling.type, kernels::RopeScaling::Type::yarn);
  EXPECT_EQ(layers[1].rope.dims, 0);
  EXPECT_EQ(layers_of(AttentionConfig(), 32, 1).front().rope.scaling, kernels::RopeScaling());
}

// Gemma 3's windowed layers have a base of their own, and OLMo 3's are not scaled.
TEST(AttentionConfig, WindowedLayersMayHaveTheirOwnRotation) {
  const std::string yarn = "rope_scaling_type=yarn;rotary_scaling_factor=4;window_size=3,0;window_attn_skip_freq=2";
  const auto rotating = [](const std::string& settings) {
    const AttentionConfig config = config_with(settings);
    config.validate(32, 2);
    return layers_of(config, 32, 2);
  };
  const auto alike = rotating(yarn);
  EXPECT_EQ(alike[0].rope, alike[1].rope);
  const auto apart = rotating(yarn + ";window_rope_scaling=false");
  EXPECT_EQ(apart[0].window, 4);
  EXPECT_EQ(apart[0].rope, layers_of(AttentionConfig(), 32, 1).front().rope);
  EXPECT_EQ(apart[1].window, 0);
  EXPECT_EQ(apart[1].rope, alike[1].rope);
  const auto based = rotating(yarn + ";window_rotary_base=500");
  EXPECT_EQ(based[0].rope.base, 500);
  EXPECT_EQ(based[0].rope.scaling.type, kernels::RopeScaling::Type::yarn);
  EXPECT_NE(based[0].rope.scaling, alike[0].rope.scaling) << "the ramp's ends are pairs of other frequencies";
  EXPECT_EQ(based[1].rope, alike[1].rope);
  EXPECT_EQ(rotating("window_rotary_base=500")[0].rope.base, 10000) << "no layer has a window";
  EXPECT_EQ(rotating(yarn + ";window_rope_scaling=false;no_rope_freq=[1,0]")[0].rope.dims, 0);
  EXPECT_EQ(refused([](AttentionConfig& c) { c.window_rotary_base = 0.5; }),
            "window_rotary_base = 0.5 must be above 1, as rotary_base; 0 takes rotary_base itself");
}

// Gemma 4's windowed layers have heads of another size and number, all of whose channels turn, and values of their own.
TEST(AttentionConfig, WindowedLayersMayHaveTheirOwnHeads) {
  const AttentionConfig config = config_with(
      "num_attention_heads=4;num_query_groups=1;kv_channels=10;window_kv_channels=6;window_num_query_groups=2;"
      "window_size=3,0;window_attn_skip_freq=2;rotary_percent=0.5;rotary_proportional=true;window_rotary_percent=1;"
      "attention_k_eq_v=true;v_l2_norm=true");
  config.validate(32, 2);
  const auto layers = layers_of<MultiHeadSpec>(config, 32, 2);
  EXPECT_EQ(layers[0].qk_head_dim, 6);
  EXPECT_EQ(layers[0].v_head_dim, 6);
  EXPECT_EQ(layers[0].num_query_groups, 2);
  EXPECT_EQ(layers[0].rope.dims, 6);
  EXPECT_EQ(layers[0].rope.turning_pairs, 0);
  EXPECT_FALSE(layers[0].values_from_keys);
  EXPECT_TRUE(layers[0].v_norm);
  EXPECT_EQ(layers[1].qk_head_dim, 10);
  EXPECT_EQ(layers[1].num_query_groups, 1);
  EXPECT_EQ(layers[1].rope.dims, 10);
  EXPECT_EQ(layers[1].rope.turning_pairs, 2) << "half of five pairs, rounded down";
  EXPECT_TRUE(layers[1].values_from_keys);
  const std::vector<double> turns = kernels::rope_frequencies(layers[1].rope);
  EXPECT_DOUBLE_EQ(turns[1], std::pow(10000, -0.2)) << "of the whole head";
  EXPECT_EQ(turns[2], 0);
  EXPECT_GT(kernels::rope_frequencies(layers[0].rope)[2], 0);
}

TEST(AttentionConfig, RefusesHeadsThatDoNotFit) {
  EXPECT_EQ(refused([](AttentionConfig& c) {
              c.window_size = "3,0";
              c.window_num_query_groups = 3;
            }),
            "num_query_groups = 3 does not divide num_attention_heads = 4");
  EXPECT_EQ(refused([](AttentionConfig& c) {
              c.rotary_proportional = true;
              c.rotary_percent = 0.1;
            }),
            "rotary_percent = 0.1 with rotary_proportional = true turns no pair of a head of 8 channels");
  EXPECT_EQ(refused([](AttentionConfig& c) { c.rotary_proportional = c.rotary_half_truncated = true; }),
            "rotary_proportional = true and rotary_half_truncated = true choose the pairs that turn twice; set one of "
            "them");
  EXPECT_EQ(refused([](AttentionConfig& c) {
              c.attention_k_eq_v = true;
              c.v_head_dim = 6;
            }),
            "attention_k_eq_v = true makes values as large as keys, of 8 channels, and v_head_dim = 6 not; set it to "
            "0");
  for (const char* key : {"v_l2_norm", "attention_k_eq_v", "rotary_proportional"})
    EXPECT_THAT(
        refused([&](AttentionConfig& c) { c = config_with(cat("multi_latent_attention=true;", key, "=true")); }),
        ::testing::HasSubstr(cat("drop ", key)));
}

// YaRN scales the logits of these layers.
TEST(AttentionConfig, WindowedLatentLayersMayHaveTheirOwnRotation) {
  const AttentionConfig config = config_with(
      "multi_latent_attention=true;num_attention_heads=3;qk_head_dim=6;qk_pos_emb_head_dim=4;"
      "rope_scaling_type=yarn;rotary_scaling_factor=40;mscale_all_dim=1;window_size=3,0;"
      "window_attn_skip_freq=2;window_rope_scaling=false");
  config.validate(32, 2);
  const auto layers = layers_of<LatentSpec>(config, 32, 2);
  EXPECT_DOUBLE_EQ(layers[0].scale, 1 / std::sqrt(10.0));
  EXPECT_EQ(layers[0].rope.scaling, kernels::RopeScaling());
  const double sharper = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(layers[1].scale, sharper * sharper / std::sqrt(10.0));
}

TEST(AttentionConfig, LatentLayersHaveTheirOwnHeads) {
  const std::string base = "multi_latent_attention=true;num_attention_heads=3;qk_head_dim=6;qk_pos_emb_head_dim=4";
  const auto layer_of = [&](const std::string& more) {
    const AttentionConfig config = config_with(base + more);
    config.validate(32, 1);
    return layers_of<LatentSpec>(config, 32, 1).front();
  };
  const LatentSpec plain = layer_of("");
  EXPECT_EQ(plain.num_query_groups, 3) << "whatever num_query_groups is";
  EXPECT_EQ(plain.qk_head_dim, 10);
  EXPECT_EQ(plain.v_head_dim, 6);
  EXPECT_EQ(plain.rope.dims, 4);
  EXPECT_DOUBLE_EQ(plain.scale, 1 / std::sqrt(10.0));
  EXPECT_EQ(plain.kv_rank, 512);
  EXPECT_EQ(layer_of(";v_head_dim=5;window_size=3").v_head_dim, 5);
  EXPECT_EQ(layer_of(";window_size=3").window, 4);
  EXPECT_EQ(layer_of(";position_embedding_type=none").rope.dims, 0);
  const double sharper = 0.1 * 0.707 * std::log(40.0) + 1;
  const LatentSpec yarn =
      layer_of(";rope_scaling_type=yarn;rotary_scaling_factor=40;mscale=0.707;mscale_all_dim=0.707");
  EXPECT_DOUBLE_EQ(yarn.scale, sharper * sharper / std::sqrt(10.0));
  EXPECT_EQ(yarn.rope.scaling.magnitude, 1);
}

TEST(AttentionConfig, ErrorsExplainImpossibleLatents) {
  const auto latent = [](const std::string& more) {
    return refused([&](AttentionConfig& c) { c = config_with("multi_latent_attention=true;" + more); });
  };
  EXPECT_EQ(latent("kv_channels=8"),
            "multi_latent_attention = true: kv_channels = 8 has no meaning; set qk_head_dim and qk_pos_emb_head_dim");
  EXPECT_EQ(latent("rotary_percent=0.5"),
            "multi_latent_attention = true: rotary_percent = 0.5 has no meaning: qk_pos_emb_head_dim channels of each "
            "head rotate");
  EXPECT_EQ(latent("qk_pos_emb_head_dim=5"),
            "multi_latent_attention = true: qk_pos_emb_head_dim = 5 must be even: rope rotates pairs of channels");
  const auto member = [](auto change) {
    return refused([&](AttentionConfig& c) {
      c.multi_latent_attention = true;
      change(c);
    });
  };
  EXPECT_NE(member([](AttentionConfig& c) { c.clip_qkv = 8; }).find("clip_qkv = 8 does not apply"), std::string::npos);
  EXPECT_NE(member([](AttentionConfig& c) { c.softmax_type = "learnable"; }).find("vanilla"), std::string::npos);
  EXPECT_NE(member([](AttentionConfig& c) { c.no_attention_freq = "2"; }).find("no_attention_freq = 2 does not apply"),
            std::string::npos);
  EXPECT_NE(member([](AttentionConfig& c) { c.add_qkv_bias = true; }).find("no biases"), std::string::npos);
  EXPECT_NE(member([](AttentionConfig& c) { c.add_attention_bias = true; }).find("no biases"), std::string::npos);
  EXPECT_NE(member([](AttentionConfig& c) { c.qk_layernorm = c.qk_layernorm_full_width = true; }).find("normalised"),
            std::string::npos);
}

TEST(AttentionConfig, ErrorsExplainImpossibleScalings) {
  const auto scaling = [](const char* settings) {
    return refused([&](AttentionConfig& c) { c = config_with(settings); });
  };
  EXPECT_EQ(scaling("rotary_scaling_factor=4"),
            "rotary_scaling_factor = 4 stretches nothing, as rope_scaling_type = none; set it to yarn, llama3, linear, "
            "longrope or dynamic");
  EXPECT_EQ(
      scaling("rope_scaling_type=linear;position_embedding_type=none"),
      "rope_scaling_type = linear changes rotary positions, and position_embedding_type = none has none: set it to "
      "rope, or rope_scaling_type to none");
  EXPECT_EQ(scaling("rope_scaling_type=yarn;beta_slow=40"),
            "beta_fast = 32 must not be below beta_slow = 40: dimensions with more rotations than beta_fast keep their "
            "frequency; YaRN uses 32 and 1");
  EXPECT_EQ(scaling("rope_scaling_type=llama3;rope_low_freq_factor=4"),
            "rope_high_freq_factor = 4 must be above rope_low_freq_factor = 4; Llama 3.1 uses 4 and 1");
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"rope_scaling_type", "cubic"},
                                                        {"rotary_scaling_factor", "0.5"},
                                                        {"original_max_position_embeddings", "0"},
                                                        {"beta_slow", "0"},
                                                        {"mscale", "-1"},
                                                        {"rope_low_freq_factor", "0"}}) {
    AttentionConfig config;
    EXPECT_THROW(set_field(config.fields(), key, text, "test"), ConfigError) << key << " = " << text;
  }
}

}  // namespace
}  // namespace witan
