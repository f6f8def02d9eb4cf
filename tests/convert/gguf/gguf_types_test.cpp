// Files hold the tensors that llama.cpp asks for, in the right types: heads of tied models, blocks, vectors in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/gguf/gguf_support.h"
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

}  // namespace
}  // namespace witan
