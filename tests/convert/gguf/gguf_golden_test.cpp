// A GGUF file gives the same model as the Hugging Face folder from which llama.cpp's converter made it
// (tests/golden/gguf/make_golden.py): weights are read bitwise and exported unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "convert/gguf/gguf_support.h"
#include "support/rank.h"
#include "witan/base/numbers/half.h"
#include "witan/base/text.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using testing::Bytes;
using testing::GgufFiles;
using testing::golden;
using testing::golden_gguf;
using ::testing::IsEmpty;
using testing::tensors_of_file;
using testing::values_of;

// Whether files store other values: -exp(x) for decays, and 1 + w for norms of Qwen3-Next.
bool is_mapped(const std::string& model, const std::string& name) {
  return name.ends_with("A_log") || ((model.starts_with("qwen3_next") || model.starts_with("qwen3_5")) &&
                                     name.ends_with("norm.weight") && name.find("gated_delta") == std::string::npos);
}

// The keys in which a file differs from the folder: it has no window (of Mixtral llama.cpp knew none, of Phi-3 and
// Qwen2-VL it computes none) and no groups of experts (of which llama.cpp knew none then), raises no steps of Mamba-2,
// and rounds a base to float32.
std::vector<std::string> keys_of_files(const std::string& model) {
  if (model == "qwen2_vl_text") return {"window_size", "window_attn_skip_freq"};
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
                                           "deepseek_v32", "glm_moe_dsa", "kimi_linear", "qwen2_vl_text",
                                           "qwen3_vl_text", "qwen3_vl_moe_even", "glm4v_moe_text"),
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
  for (const char* model : {"llama",
                            "llama3",
                            "gpt2",
                            "qwen3",
                            "olmo2",
                            "olmo3_yarn",
                            "deepseek_v3",
                            "gpt_oss",
                            "glm4_moe",
                            "glm4_moe_lite",
                            "kimi_k2",
                            "minimax_m2",
                            "seed_oss",
                            "granitemoe",
                            "granitemoeshared",
                            "lfm2_even",
                            "lfm2_moe_even",
                            "exaone_moe",
                            "solar_open",
                            "ernie4_5_moe_even",
                            "deepseek_v32",
                            "glm_moe_dsa",
                            "qwen3_vl_text",
                            "qwen3_vl_moe_even",
                            "glm4v_moe_text"}) {
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

}  // namespace
}  // namespace witan
