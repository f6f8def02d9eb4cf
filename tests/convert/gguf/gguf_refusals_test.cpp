// Models that llama.cpp's architectures cannot be, and damaged files: errors name the key or the tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "convert/gguf/gguf_support.h"
#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using testing::GgufFiles;
using testing::golden;
using testing::golden_gguf;
using ::testing::HasSubstr;

TEST_F(GgufFiles, RefusesWhatLlamaCppDoesNotComputeByKey) {
  const auto refusal = [&](const std::string& model) {
    HfWeights hf(golden(model));
    try {
      write_gguf_config(hf.architecture(), hf.model(), hf.positions());
      return std::string();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(refusal("mixtral"), HasSubstr("llama.cpp's model of type llama cannot be what this one is: window_size"));
  EXPECT_THAT(refusal("mistral"), HasSubstr("window_size"));
  EXPECT_THAT(refusal("olmoe"), HasSubstr("olmoe.attention.head_count_kv = 2"));
  EXPECT_THAT(refusal("olmo3"),
              HasSubstr("llama.cpp's model of type olmo2 cannot be what this one is: window_rotary_base"));
  EXPECT_THAT(refusal("qwen3_moe"), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(refusal("deepseek_v2"), HasSubstr("q_lora_rank = 0"));
  EXPECT_THAT(refusal("dots1"), HasSubstr("dots1.attention.head_count_kv = 2: llama.cpp's models of this type have"));
  EXPECT_THAT(refusal("qwen2_vl_text"), HasSubstr("window_size"));
  EXPECT_THAT(refusal("qwen3_vl_moe_text"), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(refusal("deepseek_v4"),
              HasSubstr("csa_compress_ratios = [0,4,6,4]: llama.cpp's model of type deepseek4"));
  EXPECT_THAT(refusal("qwen2_moe"), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(refusal("smollm3"), HasSubstr("no_rope_freq"));
  EXPECT_THAT(refusal("qwen3_next"), HasSubstr("qwen3next.ssm.inner_size = 60: in llama.cpp's models of this type"));
  EXPECT_THAT(refusal("qwen3_5_text"), HasSubstr("qwen35.ssm.inner_size = 60"));
  EXPECT_THAT(refusal("gemma3_text"), HasSubstr("llama.cpp's model of type gemma3 cannot be what this one is: "));
  EXPECT_THAT(refusal("lfm2"), HasSubstr("cannot be what this one is: linear_conv_bias = false, not true"));
  EXPECT_THAT(refusal("lfm2_moe"), HasSubstr("moe_router_topk_scaling_factor = 1.0, not 1.5"));
  EXPECT_THAT(refusal("nemotron_h"), HasSubstr("hybrid_override_pattern = \"ME*EMEM\", not \"ME*-MEM\""));
  EXPECT_THAT(refusal("nemotron_h_latent"), HasSubstr("mamba_conv_bias = true, not false"));
  EXPECT_THAT(refusal("granitemoehybrid_dense"), HasSubstr("add_attention_bias = false, not true"));
  EXPECT_THAT(refusal("ernie4_5_moe"), HasSubstr("ernie4_5-moe.interleave_moe_layer_step = 2: llama.cpp loads only"));
  EXPECT_THAT(refusal("phi3"), HasSubstr("window_size"));
  for (const char* unknown : {"olmo_hybrid", "flex_olmo"})
    EXPECT_THAT(refusal(unknown), HasSubstr(cat("llama.cpp has no architecture for models of type ", unknown)));
}

class DamagedGguf : public GgufFiles {
 protected:
  // A golden file with changed parts, and zeros as tensors.
  std::string refusal(const std::function<void(GgufMetadata&, std::vector<GgufTensor>&)>& change,
                      const std::string& model = "mixtral") {
    const GgufFile file(golden_gguf(model));
    GgufMetadata metadata = file.metadata();
    std::vector<GgufTensor> tensors;
    for (const auto& tensor : file.tensors()) tensors.push_back(tensor.info);
    change(metadata, tensors);
    std::string bytes = gguf_header(metadata, tensors);
    for (const GgufTensor& tensor : tensors) bytes.append(tensor.bytes() + gguf_padding(tensor.bytes()), '\0');
    std::ofstream(folder_ / "damaged.gguf", std::ios::binary) << bytes;
    try {
      GgufWeights weights(folder_ / "damaged.gguf");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
};

TEST_F(DamagedGguf, ErrorsNameTheDamage) {
  EXPECT_EQ(refusal([](auto&, auto&) {}), "");
  EXPECT_THAT(refusal([](auto&, auto& t) { t.pop_back(); }), HasSubstr("has no tensor \""));
  EXPECT_THAT(refusal([](auto&, auto& t) {
                t.push_back({"blk.0.extra.weight", {4}, ggml_type("F32")});
              }),
              HasSubstr("has no place for: \"blk.0.extra.weight\". They would be lost"));
  EXPECT_THAT(refusal([](auto&, auto& t) {
                for (auto& tensor : t)
                  if (tensor.name == "blk.0.attn_q.weight") tensor.dims = {8, 32};
              }),
              HasSubstr("\"blk.0.attn_q.weight\" is [8, 32], but its keys ask for [16, 16]"));
  EXPECT_THAT(refusal([](auto&, auto& t) {
                for (auto& tensor : t)
                  if (tensor.name == "blk.0.attn_q.weight") tensor = {tensor.name, {16, 16}, ggml_type("I8")};
              }),
              HasSubstr("\"blk.0.attn_q.weight\" is I8; Witan reads F32"));
  EXPECT_THAT(refusal([](auto& m, auto&) { m.put_text("general.architecture", "mamba"); }),
              HasSubstr("general.architecture = mamba: Witan cannot represent"));
  EXPECT_THAT(refusal([](auto& m, auto&) { m.put_f32("llama.attention.softcap", 3); }),
              HasSubstr("llama.attention.softcap: Witan does not know"));
  EXPECT_THAT(refusal([](auto& m, auto&) { m.put_text("llama.block_count", "2"); }),
              HasSubstr("llama.block_count must be a whole number"));
  EXPECT_THAT(refusal([](auto& m, auto&) { m.put_u32("llama.rope.dimension_count", 2); }),
              HasSubstr("llama.rope.dimension_count = 2: models of this type rotate whole heads"));
  EXPECT_THAT(refusal([](auto& m, auto&) { m.put_text("llama.rope.scaling.type", "longrope"); }),
              HasSubstr("longrope"));
}

class DamagedGgufTensors : public DamagedGguf, public ::testing::WithParamInterface<const char*> {};

// In turn each tensor is missing, of another shape, or of a type that weights do not have.
TEST_P(DamagedGgufTensors, AreNamed) {
  const GgufFile file(golden_gguf(GetParam()));
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const std::string name = file.tensors()[i].info.name;
    if (name == "token_embd.weight" || name == "output.weight" || name.ends_with(".bias"))
      continue;  // keys follow them
    const std::string quoted = cat("\"", name, "\"");
    if (i % 3 == 0)
      EXPECT_THAT(refusal([&](auto&, auto& t) { t.erase(t.begin() + static_cast<std::ptrdiff_t>(i)); }, GetParam()),
                  HasSubstr(cat("damaged.gguf has no tensor ", quoted)));
    else if (i % 3 == 1)
      EXPECT_THAT(refusal([&](auto&, auto& t) { t[i].dims.front() += 1; }, GetParam()),
                  HasSubstr(cat("damaged.gguf: ", quoted, " is [")));
    else
      EXPECT_THAT(refusal([&](auto&, auto& t) { t[i].type = ggml_type("I16"); }, GetParam()),
                  HasSubstr(cat("damaged.gguf: ", quoted, " is I16")));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, DamagedGgufTensors,
                         ::testing::Values("deepseek_v4_even", "glm_moe_dsa", "granitemoehybrid", "kimi_linear",
                                           "nemotron_h_moe", "qwen3_5", "qwen3_vl_moe_even"),
                         [](const auto& model) { return std::string(model.param); });

TEST_F(DamagedGguf, FilesWithoutTheHeadThatLlamaCppNeedsAreRefused) {
  EXPECT_THAT(
      refusal([](auto&, auto& t) { std::erase_if(t, [](const auto& one) { return one.name == "output.weight"; }); },
              "kimi_linear"),
      HasSubstr("has no tensor \"output.weight\", without which llama.cpp loads no model of type kimi-linear"));
}

// Keys without which llama.cpp loads no model of the type.
TEST_F(DamagedGguf, MissingKeysAreNamed) {
  for (const char* key :
       {"kimi-linear.kda.head_dim", "kimi-linear.ssm.conv_kernel", "kimi-linear.attention.kv_lora_rank",
        "kimi-linear.attention.key_length_mla", "kimi-linear.attention.head_count_kv",
        "deepseek4.hyper_connection.count", "deepseek4.attention.q_lora_rank", "deepseek4.hash_layer_count",
        "deepseek4.swiglu_clamp_exp"}) {
    const std::string model = std::string(key).starts_with("kimi") ? "kimi_linear" : "deepseek_v4_even";
    const auto without = [&](GgufMetadata& keys, auto&) {
      GgufMetadata fewer(keys.source());
      for (const auto& [other, kept] : keys.values())
        if (other != key) fewer.put(other, kept);
      keys = fewer;
    };
    EXPECT_THAT(refusal(without, model), HasSubstr(cat("damaged.gguf: ", key, " is missing")));
  }
}

}  // namespace
}  // namespace witan
