// A GGUF file gives the same model as the Hugging Face folder from which llama.cpp's converter made it
// (tests/golden/gguf/make_golden.py): weights are read bitwise and exported unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/numbers/half.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/gguf/gguf_export.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using test::TempFolder;
using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path golden_gguf(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/gguf" / (model + ".gguf");
}

std::vector<double> values_of(WeightSource& source, const std::string& name, const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  source.read(name, 0, shape.elements(), values.data());
  return values;
}

using Bytes = std::map<std::string, std::pair<std::string, std::string>>;  // type and bytes of each tensor

Bytes tensors_of_file(const fs::path& path) {
  const GgufFile file(path);
  Bytes all;
  for (const auto& tensor : file.tensors())
    all[tensor.info.name] = {std::string(tensor.info.type->name),
                             {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}};
  return all;
}

class GgufFiles : public ::testing::Test {
 protected:
  // A checkpoint of the golden Hugging Face folder.
  CheckpointWeights from_hf(const std::string& model, Ledger* ledger = nullptr) {
    HfWeights weights(golden(model));
    return imported(weights, ledger);
  }
  CheckpointWeights imported(ForeignWeights& weights, Ledger* ledger = nullptr) {
    const fs::path folder = folder_ / ("checkpoints" + std::to_string(++imports_));
    Ledger made = import_weights(weights, folder, {}, Json::object()).ledger;
    if (ledger) *ledger = std::move(made);
    return {open_checkpoint(folder / "step-0"), weights.model()};
  }
  fs::path exported(CheckpointWeights& weights, const GgufExport& how, const std::string& name = "out.gguf") {
    export_gguf(weights, how, folder_ / name);
    return folder_ / name;
  }

  TempFolder folder_;
  int imports_ = 0;
};

// Whether files store other values: -exp(x) for decays, and 1 + w for norms of Qwen3-Next.
bool is_mapped(const std::string& model, const std::string& name) {
  return name.ends_with("A_log") || (model.starts_with("qwen3_") && name.ends_with("norm.weight") &&
                                     name.find("gated_delta") == std::string::npos);
}

// The keys in which a file differs from the folder: it has no window (of Mixtral llama.cpp knew none, of Phi-3 it
// computes none) and no groups of experts (of which llama.cpp knew none then), raises no steps of Mamba-2, and rounds
// a base to float32.
std::vector<std::string> keys_of_files(const std::string& model) {
  if (model == "mixtral" || model == "phi3") return {"window_size"};
  if (model == "deepseek_v3") return {"moe_router_num_groups", "moe_router_group_topk", "moe_router_group_score_topk"};
  if (model.starts_with("nemotron_h")) return {"mamba_dt_min"};
  if (model == "hunyuan_v1_moe") return {"rotary_base"};
  return {};
}

class GgufModels : public GgufFiles, public ::testing::WithParamInterface<std::string> {};

TEST_P(GgufModels, HaveTheWeightsOfTheFolder) {
  GgufWeights gguf(golden_gguf(GetParam()));
  HfWeights hf(golden(GetParam()));
  const bool rounded = GetParam() == "llama3";  // its matrices are bfloat16
  ASSERT_EQ(gguf.weights(), hf.weights());
  for (const auto& [name, shape] : hf.weights()) {
    std::vector<double> expected = values_of(hf, name, shape);
    if (rounded && name.find("norm") == std::string::npos)
      for (double& value : expected) value = static_cast<double>(static_cast<float>(bf16(value)));
    EXPECT_TRUE(testing::close(values_of(gguf, name, shape), expected, is_mapped(GetParam(), name) ? 2e-7 : 0, 0))
        << name;
  }
  std::vector<std::string> different;
  for (const std::string& difference : differences(gguf.model(), hf.model()))
    different.push_back(difference.substr(0, difference.find(' ')));
  EXPECT_EQ(different, keys_of_files(GetParam()));
}

TEST_P(GgufModels, RoundTripByteForByteWithEveryTensorInTheLedger) {
  GgufWeights gguf(golden_gguf(GetParam()));
  Ledger ledger;
  CheckpointWeights weights = imported(gguf, &ledger);
  GgufExport how{&gguf.architecture(), gguf.positions()};
  for (const LedgerEntry& entry : ledger.source) how.types[entry.name] = entry.dtype;
  const Bytes before = tensors_of_file(golden_gguf(GetParam())), after = tensors_of_file(exported(weights, how));
  EXPECT_EQ(ledger.source.size(), before.size());
  for (const LedgerEntry& entry : ledger.source)
    EXPECT_TRUE(!entry.others.empty() || !entry.note.empty()) << entry.name;
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) {
    if (name == kRopeFactors || name.ends_with(".ssm_a")) continue;  // computed: equal up to rounding
    EXPECT_EQ(after.at(name), tensor) << name;
  }
  const Ledger read = parse_ledger(ledger.text(), "ledger");
  EXPECT_EQ(read.text(), ledger.text());
}

TEST_P(GgufModels, WrittenKeysMatchTheConverter) {
  GgufWeights gguf(golden_gguf(GetParam()));
  const GgufMetadata written = write_gguf_config(gguf.architecture(), gguf.model(), gguf.positions());
  for (const auto& [key, value] : gguf.file().metadata().values()) {
    if (key.starts_with("general.") && key != "general.architecture") continue;
    if (key.starts_with("tokenizer.") || key.ends_with(".file_type")) continue;
    const GgufValue* found = written.find(key);
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(found->integers, value.integers) << key;
    EXPECT_EQ(found->texts, value.texts) << key;
    ASSERT_EQ(found->numbers.size(), value.numbers.size()) << key;
    for (size_t i = 0; i < value.numbers.size(); ++i)
      EXPECT_EQ(static_cast<float>(found->numbers[i]), static_cast<float>(value.numbers[i])) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufModels,
                         ::testing::Values("mixtral", "llama3", "gpt2", "olmo2", "deepseek_v3", "qwen3_next_even",
                                           "qwen3_5", "qwen3_5_moe", "nemotron_h_moe", "nemotron_h_dense",
                                           "granitemoehybrid", "granitemoehybrid_even", "lfm2_even", "lfm2_moe_even",
                                           "exaone_moe", "solar_open", "ernie4_5_moe_even", "hunyuan_v1_moe", "phi3",
                                           "deepseek_v32", "glm_moe_dsa"),
                         [](const auto& model) { return model.param; });

TEST_F(GgufFiles, Llama3sFactorsMatchTheConverter) {
  const GgufWeights gguf(golden_gguf("llama3"));
  const auto bytes = gguf.file().find(kRopeFactors)->bytes;
  std::vector<float> expected(bytes.size() / sizeof(float));
  std::memcpy(expected.data(), bytes.data(), bytes.size());
  const auto made = rope_factors(gguf.model());
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i], expected[i], 1e-6F * expected[i]);
}

// Golden models of all architectures that llama.cpp supports.
TEST_F(GgufFiles, FoldersRoundTrip) {
  for (const char* model : {"llama",        "llama3",        "gpt2",       "qwen3",      "olmo2",
                            "olmo3_yarn",   "deepseek_v3",   "gpt_oss",    "glm4_moe",   "glm4_moe_lite",
                            "kimi_k2",      "minimax_m2",    "seed_oss",   "granitemoe", "granitemoeshared",
                            "lfm2_even",    "lfm2_moe_even", "exaone_moe", "solar_open", "ernie4_5_moe_even",
                            "deepseek_v32", "glm_moe_dsa"}) {
    SCOPED_TRACE(model);
    HfWeights hf(golden(model));
    CheckpointWeights weights = imported(hf);
    const fs::path path = exported(weights, {&hf.architecture(), hf.positions()}, cat(model, ".gguf"));
    GgufWeights again(path);
    EXPECT_THAT(differences(again.model(), hf.model()), IsEmpty());
    EXPECT_EQ(again.positions(), hf.positions());
    for (const auto& [name, shape] : hf.weights())
      EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape)) << name;
  }
}

// As published: matrices in bfloat16, decays in float32.
TEST_F(GgufFiles, CentredNormsInSixteenBitsRoundTrip) {
  testing::OwnTensors tensors = testing::tensors_in(golden("qwen3_next_even"));
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("A_log") || name.ends_with("dt_bias")) continue;
    std::vector<std::byte> rounded(tensor.bytes.size() / 2);
    copy_elements(Element::bf16, rounded.data(), Element::f32, tensor.bytes.data(), 1,
                  static_cast<int64_t>(rounded.size() / 2));
    tensor.bytes = rounded;
    tensor.info.dtype = "BF16";
  }
  testing::write_model(folder_ / "in", "qwen3_next_even", tensors);
  HfWeights hf(folder_ / "in");
  EXPECT_EQ(hf.model().dtype, "bfloat16");
  CheckpointWeights weights = imported(hf);
  GgufWeights again(exported(weights, {&hf.architecture(), hf.positions()}));
  EXPECT_EQ(again.model().dtype, "bfloat16");
  CheckpointWeights back = imported(again);
  for (const auto& [name, shape] : hf.weights())
    EXPECT_TRUE(
        testing::close(values_of(back, name, shape), values_of(hf, name, shape), name.ends_with("A_log") ? 2e-7 : 0, 0))
        << name;
}

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
  EXPECT_THAT(refusal("dots1"), HasSubstr("window_size"));
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
  EXPECT_THAT(refusal("olmo_hybrid"), HasSubstr("Witan writes no GGUF file of a model of type olmo_hybrid"));
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

// llama.cpp requires an output matrix for these models, so a tied embedding is written twice.
TEST_F(GgufFiles, TiedHeadsAreWrittenTwiceIfLlamaCppRequiresThem) {
  for (const char* model : {"olmo2", "olmo3_yarn", "gpt_oss", "deepseek_v3"}) {
    SCOPED_TRACE(model);
    testing::OwnTensors tensors = testing::tensors_in(golden(model));
    tensors.erase("lm_head.weight");
    Json config = Json::parse(read_file(golden(model) / kHfConfig));
    config["tie_word_embeddings"] = true;
    testing::write_model(folder_ / model, model, tensors);
    testing::write_text(folder_ / model / kHfConfig, config.dump());
    HfWeights hf(folder_ / model);
    CheckpointWeights weights = imported(hf);
    const fs::path path = exported(weights, {&hf.architecture(), hf.positions()}, cat(model, ".gguf"));
    const Bytes written = tensors_of_file(path);
    EXPECT_EQ(written.at("output.weight"), written.at("token_embd.weight"));
    GgufWeights again(path);
    EXPECT_THAT(differences(again.model(), hf.model()),
                ElementsAre(HasSubstr("untie_embeddings_and_output_weights = true, not false")));
    for (const auto& [name, shape] : hf.weights())
      EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape)) << name;
  }
}

// For other models llama.cpp reads the output matrix if it exists, and uses the embedding otherwise.
TEST_F(GgufFiles, UntiedHeadsRoundTrip) {
  for (const char* model : {"llama", "gpt2", "qwen2", "qwen3"}) {
    SCOPED_TRACE(model);
    testing::OwnTensors tensors = testing::tensors_in(golden(model));
    testing::OwnTensor head =
        tensors.at(std::string(model) == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight");
    head.bytes[5] ^= std::byte{1};
    tensors["lm_head.weight"] = head;
    Json config = Json::parse(read_file(golden(model) / kHfConfig));
    config["tie_word_embeddings"] = false;
    config["use_sliding_window"] = false;
    config.erase("layer_types");
    testing::write_model(folder_ / model, model, tensors);
    testing::write_text(folder_ / model / kHfConfig, config.dump());
    HfWeights hf(folder_ / model);
    CheckpointWeights weights = imported(hf);
    GgufWeights again(exported(weights, {&hf.architecture(), hf.positions()}, cat(model, ".gguf")));
    EXPECT_THAT(differences(again.model(), hf.model()), IsEmpty());
    for (const auto& [name, shape] : hf.weights())
      EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape)) << name;
  }
}

// Rows of 32 are in blocks, other matrices in float16 and vectors in float32, as in llama.cpp's converter.
TEST_F(GgufFiles, Q8HasTheConvertersTypesAndIsStable) {
  CheckpointWeights weights = from_hf("qwen3");  // rows of 16, 24 and 32
  const Architecture& architecture = *find_architecture("qwen3");
  GgufExport how{&architecture, 128};
  how.type = Element::q8_0;
  const fs::path path = exported(weights, how);
  const Bytes tensors = tensors_of_file(path);
  EXPECT_EQ(tensors.at("token_embd.weight").first, "F16");
  EXPECT_EQ(tensors.at("blk.0.attn_output.weight").first, "Q8_0");
  EXPECT_EQ(tensors.at("blk.0.attn_norm.weight").first, "F32");
  GgufWeights again(path);
  EXPECT_EQ(again.model().dtype, "float32");
  Ledger ledger;
  CheckpointWeights read = imported(again, &ledger);
  EXPECT_EQ(tensors_of_file(exported(read, how, "second.gguf")), tensors);
  EXPECT_THAT(ledger.summary(), HasSubstr("Q8_0"));
}

// Norms and routers are float32 in a bfloat16 file; the model is bfloat16 nevertheless if their values fit.
TEST_F(GgufFiles, ABfloat16FileIsABfloat16ModelIfItsNormsFit) {
  testing::OwnTensors tensors = testing::tensors_in(golden("qwen3"));
  for (auto& [name, tensor] : tensors) {
    std::vector<std::byte> rounded(tensor.bytes.size() / 2);
    copy_elements(Element::bf16, rounded.data(), Element::f32, tensor.bytes.data(), 1, tensor.info.shape.elements());
    tensor.info.dtype = "BF16";
    tensor.bytes = std::move(rounded);
  }
  testing::write_model(folder_ / "bf16", "qwen3", tensors);
  HfWeights hf(folder_ / "bf16");
  ASSERT_EQ(hf.model().dtype, "bfloat16");
  CheckpointWeights weights = imported(hf);
  const fs::path path = exported(weights, {&hf.architecture(), hf.positions()});
  EXPECT_EQ(tensors_of_file(path).at("blk.0.attn_norm.weight").first, "F32");
  EXPECT_EQ(tensors_of_file(path).at("blk.0.attn_q.weight").first, "BF16");
  GgufWeights again(path);
  EXPECT_EQ(again.model().dtype, "bfloat16");
  for (const auto& [name, shape] : hf.weights()) EXPECT_EQ(values_of(again, name, shape), values_of(hf, name, shape));
  EXPECT_EQ(GgufWeights(golden_gguf("llama3")).model().dtype, "float32");  // its norms do not fit
}

class DamagedGguf : public GgufFiles {
 protected:
  // The golden file of Mixtral with changed parts.
  std::string refusal(const std::function<void(GgufMetadata&, std::vector<GgufTensor>&)>& change) {
    const GgufFile file(golden_gguf("mixtral"));
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

// llama.cpp's converter writes these in float32 in every file.
TEST_F(GgufFiles, LearnedPositionsAreFloat32) {
  HfWeights hf(golden("gpt2"));
  CheckpointWeights weights = imported(hf);
  GgufExport how{&hf.architecture(), hf.positions()};
  how.type = Element::bf16;
  const Bytes tensors = tensors_of_file(exported(weights, how));
  EXPECT_EQ(tensors.at("token_embd.weight").first, "BF16");
  EXPECT_EQ(tensors.at("position_embd.weight").first, "F32");
}

// The parts are made by tests/golden/gguf/make_split.py.
const fs::path kSplit = fs::path(WITAN_SOURCE_DIR) / "tests/golden/gguf/split";
constexpr const char* kParts[] = {"mixtral-00001-of-00003.gguf", "mixtral-00002-of-00003.gguf",
                                  "mixtral-00003-of-00003.gguf"};

// A split model is opened by any of its parts or by its folder.
TEST_F(GgufFiles, PartsEqualTheWholeFile) {
  GgufWeights whole(golden_gguf("mixtral"));
  for (const fs::path& given : {kSplit, kSplit / kParts[0], kSplit / kParts[2]}) {
    EXPECT_TRUE(is_gguf_model(given)) << given;
    GgufWeights parts(given);
    EXPECT_EQ(parts.where(), (kSplit / kParts[0]).string());
    EXPECT_THAT(differences(parts.model(), whole.model()), IsEmpty());
    EXPECT_EQ(parts.sources().size(), whole.sources().size());
    ASSERT_EQ(parts.weights(), whole.weights());
    for (const auto& [name, shape] : whole.weights())
      EXPECT_EQ(values_of(parts, name, shape), values_of(whole, name, shape)) << name;
  }
  EXPECT_FALSE(is_gguf_model(golden("mixtral"))) << "a Hugging Face folder";
}

TEST_F(GgufFiles, ErrorsNameMissingAndForeignParts) {
  const auto fresh = [&](const std::string& name) {
    fs::copy(kSplit, folder_ / name);
    return folder_ / name;
  };
  const auto refusal = [](const fs::path& path) { return test::message_of<Error>([&] { GgufParts{path}; }); };
  const fs::path lacking = fresh("lacking");
  fs::remove(lacking / kParts[1]);
  for (const fs::path& given : {lacking, lacking / kParts[0], lacking / kParts[2]})
    EXPECT_THAT(refusal(given), HasSubstr((lacking / kParts[1]).string() + " is missing: the model is in 3 parts"));
  const fs::path twice = fresh("twice");
  fs::copy_file(kSplit / kParts[1], twice / kParts[2], fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(twice), HasSubstr(std::string(kParts[2]) + " is part 3 of 3 by its name, but says split.no = 1"));
  const fs::path renamed = fresh("renamed");
  fs::rename(renamed / kParts[0], renamed / "first.gguf");
  EXPECT_THAT(refusal(renamed / "first.gguf"),
              HasSubstr("first.gguf is part 1 of 3 of a model, and the others are found by its name: call it as it was "
                        "called, NAME-00001-of-00003.gguf"));
  EXPECT_THAT(refusal(renamed),
              HasSubstr("has several models: first, mixtral; give the file of one, or its first part"));
  // A part of another model with the same number and other tensors.
  const fs::path mixed = fresh("mixed");
  GgufMetadata keys("part");
  const auto put = [&](const char* key, GgufType type, int64_t value) {
    keys.put(key, {.type = type, .integers = {value}});
  };
  put("split.no", GgufType::u16, 2);
  put("split.count", GgufType::u16, 3);
  put("split.tensors.count", GgufType::i32, 23);
  write_file_atomically(mixed / kParts[2], gguf_header(keys, {}));
  EXPECT_THAT(refusal(mixed), HasSubstr("split.tensors.count = 23, but its parts have 16 tensors"));
}

}  // namespace
}  // namespace witan
