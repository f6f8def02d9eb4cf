// Keys and tensors of kinds of layers: as llama.cpp's programs write them, and read back as the same layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "convert/gguf/gguf_support.h"
#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/text.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::GgufFiles;
using testing::golden;
using testing::golden_gguf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tensors_of_file;
using testing::values_of;

// Norms hold 1 + w, and a period stands for the layers with a window.
TEST_F(GgufFiles, ExportsGemma3AndReadsItBackExactlyButForRounding) {
  HfWeights hf(golden("gemma3"));
  const GgufMetadata keys = write_gguf_config(hf.architecture(), hf.model(), hf.positions());
  EXPECT_EQ(keys.text(kGgufArchitecture), "gemma3");
  EXPECT_EQ(keys.integer("gemma3.attention.sliding_window"), 6);
  EXPECT_EQ(keys.find("gemma3.attention.sliding_window_pattern"), nullptr) << "6 is llama.cpp's default";
  EXPECT_EQ(keys.number("gemma3.rope.freq_base"), 5e5);
  EXPECT_EQ(keys.number("gemma3.rope.freq_base_swa"), 1e3);
  EXPECT_EQ(keys.text("gemma3.rope.scaling.type"), "linear");
  CheckpointWeights weights = imported(hf);
  const fs::path path = exported(weights, {&hf.architecture(), hf.positions()});
  EXPECT_TRUE(tensors_of_file(path).contains("blk.6.post_ffw_norm.weight"));
  GgufWeights again(path);
  EXPECT_THAT(differences(again.model(), hf.model()), IsEmpty());
  ASSERT_EQ(again.weights(), hf.weights());
  for (const auto& [name, shape] : hf.weights())
    EXPECT_TRUE(testing::close(values_of(again, name, shape), values_of(hf, name, shape),
                               name.ends_with("norm.weight") ? 2e-7 : 0, 0))
        << name;
  ModelConfig model = hf.model();
  model.attention.window_attn_skip_freq = "3";
  model.logit_soft_cap = 30;
  const GgufMetadata other = write_gguf_config(hf.architecture(), model, hf.positions());
  EXPECT_EQ(other.integer("gemma3.attention.sliding_window_pattern"), 3);
  EXPECT_EQ(other.number("gemma3.final_logit_softcapping"), 30);
}

// Heads of two sizes, values from keys, and pairs that do not turn; names are those of gguf's constants.py.
TEST_F(GgufFiles, ExportsGemma4AndReadsItBackExactly) {
  HfWeights hf(golden("gemma4_text"));
  const GgufMetadata keys = write_gguf_config(hf.architecture(), hf.model(), hf.positions());
  EXPECT_EQ(keys.text(kGgufArchitecture), "gemma4");
  EXPECT_EQ(keys.integer("gemma4.attention.key_length"), 10);
  EXPECT_EQ(keys.integer("gemma4.attention.key_length_swa"), 6);
  EXPECT_THAT(keys.integers("gemma4.attention.head_count_kv"), ElementsAre(2, 1, 2, 1));
  EXPECT_THAT(keys.find("gemma4.attention.sliding_window_pattern")->integers, ElementsAre(1, 0, 1, 0));
  EXPECT_EQ(keys.number("gemma4.rope.freq_base_swa"), 1e3);
  EXPECT_EQ(keys.integer("gemma4.expert_feed_forward_length"), 8);
  EXPECT_THAT(rope_factors(hf.model()), ElementsAre(1, 1, 1e30F, 1e30F, 1e30F));
  CheckpointWeights weights = imported(hf);
  const fs::path path = exported(weights, {&hf.architecture(), hf.positions()});
  const Bytes tensors = tensors_of_file(path);
  for (const char* name : {"blk.0.attn_v.weight", "blk.1.layer_output_scale.weight", "blk.1.ffn_gate_inp.scale",
                           "blk.1.ffn_down_exps.scale", "blk.1.ffn_gate_up_exps.weight", "blk.1.post_ffw_norm_1.weight",
                           "blk.1.pre_ffw_norm_2.weight", "blk.1.post_ffw_norm_2.weight", "rope_freqs.weight"})
    EXPECT_TRUE(tensors.contains(name)) << name;
  EXPECT_FALSE(tensors.contains("blk.1.attn_v.weight"));
  GgufWeights again(path);
  EXPECT_THAT(differences(again.model(), hf.model()), IsEmpty());
  ASSERT_EQ(again.weights(), hf.weights());
  for (const auto& [name, shape] : hf.weights())
    EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape)) << name;
  HfWeights stretched(golden("gemma4"));
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { write_gguf_config(stretched.architecture(), stretched.model(), stretched.positions()); }),
              HasSubstr("rope_scaling_type = linear: llama.cpp's model of type gemma4 does not stretch positions"));
}

// Names are those of gguf's constants.py.
TEST_F(GgufFiles, ExportsSmallGemma4AndReadsItBackExactly) {
  HfWeights hf(golden("gemma4_text_small"));
  const GgufMetadata keys = write_gguf_config(hf.architecture(), hf.model(), hf.positions());
  EXPECT_EQ(keys.integer("gemma4.attention.shared_kv_layers"), 3);
  EXPECT_EQ(keys.integer("gemma4.embedding_length_per_layer_input"), 4);
  EXPECT_THAT(keys.integers("gemma4.feed_forward_length"), ElementsAre(24, 24, 24, 48, 48, 48));
  CheckpointWeights weights = imported(hf);
  const fs::path path = exported(weights, {&hf.architecture(), hf.positions()});
  const Bytes tensors = tensors_of_file(path);
  for (const char* name :
       {"per_layer_token_embd.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight",
        "blk.0.inp_gate.weight", "blk.0.proj.weight", "blk.0.post_norm.weight", "blk.2.attn_k.weight"})
    EXPECT_TRUE(tensors.contains(name)) << name;
  EXPECT_FALSE(tensors.contains("blk.3.attn_k.weight"));
  GgufWeights again(path);
  EXPECT_THAT(differences(again.model(), hf.model()), IsEmpty());
  ASSERT_EQ(again.weights(), hf.weights());
  for (const auto& [name, shape] : hf.weights())
    EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape)) << name;

  const auto refusal = [&](auto&& change) {
    ModelConfig model = hf.model();
    change(model);
    return test::message_of<ConfigError>([&] { write_gguf_config(hf.architecture(), model, hf.positions()); });
  };
  EXPECT_THAT(
      refusal([](ModelConfig& c) { c.num_kv_shared_layers = 2; }),
      HasSubstr("gemma4.attention.shared_kv_layers = 2: llama.cpp's layers with a window borrow keys and values "
                "from layer 2 and the others from layer 3, which must be of the same kind"));
  GgufMetadata widths = keys;
  widths.put("gemma4.feed_forward_length",
             {.type = GgufType::i32, .array = true, .integers = {24, 24, 24, 48, 24, 48}});
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_gguf_config(widths, {.vocab_size = 64, .tied = true}); }),
              HasSubstr("gemma4.feed_forward_length: MLPs have one width in Witan, or twice that in layers that borrow "
                        "keys and values"));
}

// Golden models of these types in the form of llama.cpp. A file that describes another model is refused.
TEST_F(GgufFiles, LayersSupportedByLlamaCppRoundTrip) {
  const auto write = [&](const std::string& type, const auto& change) {
    const HfWeights hf(golden(type));
    ModelConfig model = hf.model();
    change(model);
    return write_gguf_config(hf.architecture(), model, hf.positions());
  };
  const GgufMetadata dots = write("dots1", [](ModelConfig& model) {
    model.attention.window_size = model.attention.window_attn_skip_freq = "none";
    model.attention.num_query_groups = model.attention.num_attention_heads;
  });
  EXPECT_EQ(dots.integer("dots1.leading_dense_block_count"), 1);
  EXPECT_EQ(dots.integer("dots1.expert_group_used_count"), 2);
  const GgufMetadata qwen = write("qwen2_moe", [](ModelConfig& model) { model.moe.moe_layer_freq = "1"; });
  EXPECT_EQ(qwen.integer("qwen2moe.expert_shared_feed_forward_length"), 12);
  const GgufMetadata smollm = write("smollm3", [](ModelConfig& model) { model.attention.no_rope_freq = "[0,0,0,1]"; });
  EXPECT_EQ(smollm.text("general.architecture"), "smollm3");
  const GgufMetadata ernie =
      write("ernie4_5", [](ModelConfig& model) { model.attention.add_attention_bias = model.add_mlp_bias = false; });
  EXPECT_EQ(ernie.text("general.architecture"), "ernie4_5");
  const GgufMetadata granite = write("granite", [](ModelConfig& model) {
    model.attention.add_attention_bias = model.add_mlp_bias = false;
    model.attention.softmax_scale = 0;
  });
  EXPECT_EQ(granite.number("granite.logit_scale"), 6);
  EXPECT_EQ(granite.number("granite.residual_scale"), 0.4);
}

// A step of Mamba-2 that transformers raises to 0.001 is small anyway; one that it raises to more is not. A base is
// rounded to the file's float32.
TEST_F(GgufFiles, SmallDifferencesDoNotForbidAnExport) {
  const HfWeights nemotron(golden("nemotron_h_moe"));
  ModelConfig model = nemotron.model();
  EXPECT_EQ(model.mamba.mamba_dt_min, 0.001);
  EXPECT_EQ(write_gguf_config(nemotron.architecture(), model, 128).text(kGgufArchitecture), "nemotron_h_moe");
  model.mamba.mamba_dt_min = 0.002;
  EXPECT_THAT(test::message_of<ConfigError>([&] { write_gguf_config(nemotron.architecture(), model, 128); }),
              HasSubstr("mamba_dt_min = 0.0, not 0.002"));
  const HfWeights hunyuan(golden("hunyuan_v1_moe"));
  const GgufMetadata written = write_gguf_config(hunyuan.architecture(), hunyuan.model(), 128);
  EXPECT_EQ(written.number("hunyuan-moe.rope.freq_base"), gguf_real(hunyuan.model().attention.rotary_base));
  EXPECT_NE(gguf_real(hunyuan.model().attention.rotary_base), hunyuan.model().attention.rotary_base);
  const HfWeights dense(golden("hunyuan_v1_dense"));
  model = dense.model();
  model.attention.add_attention_bias = false;
  EXPECT_EQ(write_gguf_config(dense.architecture(), model, 128).text(kGgufArchitecture), "hunyuan-dense");
}

// The parts of a Nemotron-H are told by a list for each of two keys.
TEST_F(GgufFiles, ListsOfLayersMustFitTheLayers) {
  const GgufWeights file(golden_gguf("nemotron_h_dense"));
  const auto refusal = [&](const std::string& key, std::vector<int64_t> values) {
    GgufMetadata changed = file.file().metadata();
    changed.put("nemotron_h." + key, {.type = GgufType::i32, .array = true, .integers = std::move(values)});
    return test::message_of<ConfigError>([&] { read_gguf_config(changed, {.vocab_size = 64}); });
  };
  EXPECT_THAT(refusal("feed_forward_length", {0, 20, 0}),
              HasSubstr("nemotron_h.feed_forward_length has 3 numbers for 5 layers"));
  EXPECT_THAT(refusal("feed_forward_length", {0, 20, 0, 0, 24}),
              HasSubstr("nemotron_h.feed_forward_length has 20 and 24: Witan's layers are alike in this"));
  EXPECT_THAT(refusal("attention.head_count_kv", {2, 0, 4, 0, 0}),
              HasSubstr("nemotron_h.attention.head_count_kv has 2 and 4"));
  GgufMetadata odd = file.file().metadata();
  odd.put_u32("nemotron_h.ssm.inner_size", 25);
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_gguf_config(odd, {.vocab_size = 64}); }),
              HasSubstr("nemotron_h.ssm.inner_size = 25 is not divisible by nemotron_h.ssm.time_step_rank = 6"));
}

// Files of GLM-5.2 from before the list's time are known by their context.
TEST_F(GgufFiles, LayersOfGlm5ShareChoicesAsLlamaCppSays) {
  const auto sharing = [](const std::function<void(GgufMetadata&)>& change) {
    const GgufWeights file(golden_gguf("glm_moe_dsa"));
    GgufMetadata changed("file");
    for (const auto& [key, value] : file.file().metadata().values())
      if (key != "glm-dsa.attention.indexer.types") changed.put(key, value);
    changed.put_u32("glm-dsa.block_count", 5);
    change(changed);
    return read_gguf_config(changed, {.vocab_size = 64}).model.sparse_attention.sources(5);
  };
  EXPECT_THAT(sharing([](GgufMetadata&) {}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(sharing([](GgufMetadata& keys) { keys.put_u32("glm-dsa.context_length", 1 << 20); }),
              ElementsAre(0, 1, 2, 2, 2));
}

// The windows of a K-EXAONE may be given by a period.
TEST_F(GgufFiles, WindowsOfExaoneFollowAListOrAPeriod) {
  const GgufWeights file(golden_gguf("exaone_moe"));
  GgufMetadata keys = file.file().metadata();
  const auto windows = [&] {
    std::vector<int64_t> all;
    for (const LayerSpec& layer : read_gguf_config(keys, {.vocab_size = 64}).model.layers())
      all.push_back(window_of(layer.mixer));
    return all;
  };
  EXPECT_THAT(windows(), ElementsAre(6, 0, 6, 0));
  keys.put_u32("exaone-moe.attention.sliding_window_pattern", 3);
  EXPECT_THAT(windows(), ElementsAre(6, 6, 0, 6));
}

TEST_F(GgufFiles, CountsRotatedChannelsOfHeads) {
  for (const auto& [type, name] : {std::pair{"glm4_moe", "glm4moe"}, std::pair{"minimax_m2", "minimax-m2"}}) {
    const HfWeights hf(golden(type));
    GgufMetadata written = write_gguf_config(hf.architecture(), hf.model(), hf.positions());
    const std::string key = cat(name, ".rope.dimension_count");
    EXPECT_EQ(written.integer(key), 4);
    written.put_u32(key, 6);
    const GgufFacts facts{.vocab_size = 64, .qkv_biases = true, .qk_norms = true};
    EXPECT_EQ(read_gguf_config(written, facts).model.attention.rotary_percent, 0.75) << type;
  }
}

// llama.cpp's olmo2 with a window is OLMo 3: all layers have it except every fourth, or every N-th.
TEST_F(GgufFiles, Olmo3sWindowsMatchLlamaCpp) {
  const HfWeights hf(golden("olmo3_yarn"));
  GgufMetadata written = write_gguf_config(hf.architecture(), hf.model(), hf.positions());
  EXPECT_EQ(written.text("general.architecture"), "olmo2");
  EXPECT_EQ(written.integer("olmo2.attention.sliding_window"), 6);
  const std::string key = "olmo2.attention.sliding_window_pattern";
  const GgufValue* pattern = written.find(key);
  ASSERT_NE(pattern, nullptr);
  EXPECT_EQ(pattern->type, GgufType::flag);
  EXPECT_THAT(pattern->integers, ElementsAre(1, 1, 1, 0));
  const GgufFacts facts{hf.model().vocab_size, false, {}};
  const auto model_of = [&] { return read_gguf_config(written, facts).model; };
  EXPECT_EQ(model_of().attention.original_max_position_embeddings, 16);
  EXPECT_FALSE(model_of().attention.window_rope_scaling);
  written.put_u32(key, 2);
  EXPECT_EQ(window_of(model_of().layers()[1].mixer), 0);
  EXPECT_EQ(window_of(model_of().layers()[2].mixer), 6);
  written.put(key, {.type = GgufType::flag, .array = true, .integers = {1, 0, 1, 0}});
  EXPECT_THAT(test::message_of<ConfigError>(model_of),
              HasSubstr(cat(key, " must give full attention to every fourth layer")));

  ModelConfig other = hf.model();
  other.attention.window_attn_skip_freq = "2";
  EXPECT_THAT(test::message_of<ConfigError>([&] { write_gguf_config(hf.architecture(), other, hf.positions()); }),
              HasSubstr(cat(key, " must give full attention to every fourth layer")));
  other = hf.model();
  other.attention.window_rope_scaling = true;
  EXPECT_THAT(test::message_of<ConfigError>([&] { write_gguf_config(hf.architecture(), other, hf.positions()); }),
              HasSubstr("cannot be what this one is: window_rope_scaling = false, not true"));
}

}  // namespace
}  // namespace witan
