// Multi-token prediction modules of DeepSeek-V3 and GLM, which follow the model's layers, are imported and exported
// unchanged.
#include <gtest/gtest.h>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/convert/gguf/gguf_export.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using testing::golden;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::tensors_in;

constexpr const char* kEmbedding = "model.layers.3.embed_tokens.weight";
constexpr const char* kHead = "model.layers.3.shared_head.head.weight";

OwnTensor shaped(OwnTensor like, const Shape& shape) {
  like.info.shape = shape;
  like.bytes.resize(static_cast<size_t>(shape.elements()) * 4);
  return like;
}

// The golden model of three layers, which transformers saved without the module, with DeepSeek's fourth layer.
OwnTensors with_module(const char* model = "deepseek_v3") {
  OwnTensors all = tensors_in(golden(model));
  const OwnTensors before = all;
  const std::string last = "model.layers.2.", next = "model.layers.3.";
  for (const auto& [name, tensor] : before)
    if (name.starts_with(last)) all[next + name.substr(last.size())] = tensor;
  all[next + "enorm.weight"] = before.at(last + "input_layernorm.weight");
  all[next + "hnorm.weight"] = before.at(last + "post_attention_layernorm.weight");
  all[next + "shared_head.norm.weight"] = before.at("model.norm.weight");
  all[next + "eh_proj.weight"] = shaped(before.at("lm_head.weight"), {16, 32});  // for a width of 16
  all[kEmbedding] = before.at("model.embed_tokens.weight");
  all[kHead] = before.at("lm_head.weight");
  return all;
}

class HfMtpModels : public ::testing::TestWithParam<const char*> {};

TEST_P(HfMtpModels, RoundTripByteForByte) {
  const TempFolder folder;
  const OwnTensors tensors = with_module(GetParam());
  testing::write_model(folder / "in", GetParam(), tensors);
  HfWeights weights(folder / "in");
  EXPECT_EQ(weights.model().mtp_num_layers, 1);
  EXPECT_TRUE(weights.weights().contains("mtp.0.eh_proj.weight"));
  EXPECT_EQ(weights.notes().at(kHead), "equal to \"lm_head.weight\", which it is again");
  const Ledger in = import_weights(weights, folder / "checkpoints", {}, Json::object()).ledger;
  CheckpointWeights checkpoint(open_checkpoint(folder / "checkpoints/step-0"), weights.model());
  const HfExport how{weights.hf().architecture, parse_ledger(in.text(), "ledger").style};
  fs::create_directories(folder / "out");
  export_weights(checkpoint, how, folder / "out");
  EXPECT_EQ(tensors_in(folder / "out"), tensors);
}

INSTANTIATE_TEST_SUITE_P(Golden, HfMtpModels, ::testing::Values("deepseek_v3", "glm4_moe"),
                         [](const auto& model) { return std::string(model.param); });

// llama.cpp counts the modules as layers, and omits their copies of embedding and head.
TEST(HfMtp, ModulesOfGlmRoundTripThroughGguf) {
  const TempFolder folder;
  testing::write_model(folder / "in", "glm4_moe", with_module("glm4_moe"));
  HfWeights hf(folder / "in");
  import_weights(hf, folder / "checkpoints", {}, Json::object());
  CheckpointWeights checkpoint(open_checkpoint(folder / "checkpoints/step-0"), hf.model());
  const fs::path path = folder / "glm.gguf";
  export_gguf(checkpoint, {&hf.architecture(), hf.positions()}, path);
  GgufWeights again(path);
  EXPECT_EQ(again.file().metadata().integer("glm4moe.block_count"), 4);
  EXPECT_EQ(again.file().metadata().integer("glm4moe.nextn_predict_layers"), 1);
  EXPECT_NE(again.file().find("blk.3.nextn.eh_proj.weight"), nullptr);
  EXPECT_EQ(again.model().mtp_num_layers, 1);
  ASSERT_EQ(again.weights(), hf.weights());
  for (const auto& [name, shape] : hf.weights()) {
    std::vector<double> one(static_cast<size_t>(shape.elements())), two = one;
    hf.read(name, 0, shape.elements(), one.data());
    again.read(name, 0, shape.elements(), two.data());
    EXPECT_EQ(one, two) << name;
  }
  const GgufWeights without(path, MtpLayers::leave_out);
  EXPECT_EQ(without.model().mtp_num_layers, 0);
  EXPECT_EQ(without.notes().at("blk.3.attn_q.weight"), "of multi-token prediction, left out as asked (--without-mtp)");
}

TEST(HfMtp, SeveralModulesKeepTheirOrder) {
  const TempFolder folder;
  OwnTensors tensors = with_module();
  const std::string first = "model.layers.3.", second = "model.layers.4.";
  for (const auto& [name, tensor] : OwnTensors(tensors))
    if (name.starts_with(first)) tensors[second + name.substr(first.size())] = tensor;
  tensors[second + "enorm.weight"].bytes[1] ^= std::byte{1};
  tensors[second + "mlp.experts.1.down_proj.weight"].bytes[1] ^= std::byte{1};
  testing::write_model(folder / "in", "deepseek_v3", tensors);
  Json config = Json::parse(read_file(folder / "in" / kHfConfig));
  config["num_nextn_predict_layers"] = 2;
  testing::write_text(folder / "in" / kHfConfig, config.dump());
  HfWeights weights(folder / "in");
  EXPECT_EQ(weights.model().mtp_num_layers, 2);
  double one = 0, two = 0;
  weights.read("mtp.0.enorm.weight", 0, 1, &one);
  weights.read("mtp.1.enorm.weight", 0, 1, &two);
  EXPECT_NE(one, two);
  const auto stored = [](const OwnTensor& tensor) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data(), sizeof value);
    return static_cast<double>(value);
  };
  EXPECT_EQ(one, stored(tensors[first + "enorm.weight"]));
  EXPECT_EQ(two, stored(tensors[second + "enorm.weight"]));
  const Ledger in = import_weights(weights, folder / "checkpoints", {}, Json::object()).ledger;
  CheckpointWeights checkpoint(open_checkpoint(folder / "checkpoints/step-0"), weights.model());
  fs::create_directories(folder / "out");
  export_weights(checkpoint, {weights.hf().architecture, parse_ledger(in.text(), "ledger").style}, folder / "out");
  EXPECT_EQ(tensors_in(folder / "out"), tensors);
}

TEST(HfMtp, WithoutCopiesStaysWithoutThem) {
  const TempFolder folder;
  OwnTensors tensors = with_module();
  tensors.erase(kEmbedding);
  EXPECT_EQ(message_of<CheckpointError>([&] {
              testing::write_model(folder / "half", "deepseek_v3", tensors);
              HfWeights(folder / "half");
            }),
            (folder / "half").string() +
                " has no tensor \"model.layers.3.embed_tokens.weight\", though it has others like it: files are "
                "missing. Leave multi-token prediction out with --without-mtp");
  tensors.erase(kHead);
  testing::write_model(folder / "none", "deepseek_v3", tensors);
  EXPECT_FALSE(HfWeights(folder / "none").style().mtp_copies);
}

TEST(HfMtp, ModulesWithAnotherEmbeddingAreRefusedOrLeftOut) {
  const TempFolder folder;
  OwnTensors tensors = with_module();
  tensors[kEmbedding].bytes[5] ^= std::byte{1};
  testing::write_model(folder / "in", "deepseek_v3", tensors);
  EXPECT_EQ(message_of<CheckpointError>([&] { HfWeights(folder / "in"); }),
            (folder / "in").string() +
                ": \"model.layers.3.embed_tokens.weight\" is not equal to \"model.embed_tokens.weight\": Witan's "
                "modules of multi-token prediction share the model's embedding and head; leave them out with "
                "--without-mtp");
  const HfWeights without(folder / "in", MtpLayers::leave_out);
  EXPECT_EQ(without.model().mtp_num_layers, 0);
  EXPECT_EQ(without.notes().at("model.layers.3.eh_proj.weight"),
            "of multi-token prediction, left out as asked (--without-mtp)");
  // The model's own layers are not affected.
  tensors["model.layers.2.enorm.weight"] = tensors["model.layers.3.enorm.weight"];
  testing::write_model(folder / "in", "deepseek_v3", tensors);
  EXPECT_NE(message_of<CheckpointError>([&] {
              HfWeights(folder / "in", MtpLayers::leave_out);
            }).find("has no place for: \"model.layers.2.enorm.weight\""),
            std::string::npos);
}

TEST(HfMtp, TheConfigDescribesIt) {
  const TempFolder folder;
  testing::write_model(folder / "in", "deepseek_v3", with_module());
  const HfWeights weights(folder / "in");
  const std::string text = write_hf_config(*weights.hf().architecture, weights.model(), 64, "float32");
  EXPECT_EQ(read_hf_config(text, "written").mtp_layers, 1);
  EXPECT_EQ(HfWeights(golden("deepseek_v3")).model().mtp_num_layers, 0) << "transformers does not save its weights";
}

}  // namespace
}  // namespace witan
