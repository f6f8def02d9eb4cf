// Folders with quantised weights as published for DeepSeek-V3 (float8 in blocks) and gpt-oss (MXFP4): dequantised
// values, and refused folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_weights.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::golden;
using ::testing::HasSubstr;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::tensors_in;

OwnTensor of_shape(const char* dtype, const Shape& shape, size_t width, std::byte value = {}) {
  return {{"", dtype, shape, 0}, std::vector<std::byte>(static_cast<size_t>(shape.elements()) * width, value)};
}

class QuantisedFolders : public ::testing::Test {
 protected:
  void write(const Json& config, const OwnTensors& tensors) {
    testing::write_text(folder_ / kHfConfig, config.dump());
    testing::write_tensors(folder_ / kHfWeights, tensors);
  }
  template <class E>
  std::string error() {
    return test::message_of<E>([&] { HfWeights weights(folder_.path()); });
  }

  TempFolder folder_;
};

TEST_F(QuantisedFolders, Float8IsMultipliedByTheScaleOfItsBlock) {
  const std::string name = "model.layers.0.self_attn.q_proj.weight", scales = name + "_scale_inv";
  Json config = Json::parse(read_file(golden("llama") / kHfConfig));
  OwnTensors tensors = tensors_in(golden("llama"));
  ASSERT_EQ(tensors[name].info.shape, Shape({16, 16}));
  tensors[name] = of_shape("F8_E4M3", {16, 16}, 1, std::byte{0x38});  // 1
  tensors[name].bytes[3 * 16 + 13] = std::byte{0xC0};                 // -2
  tensors[scales] = of_shape("F32", {2, 2}, 4);                       // for blocks of 12 x 12, the last ones partial
  const float by[] = {1, 2, 4, 8};
  std::memcpy(tensors[scales].bytes.data(), by, sizeof by);
  write(config, tensors);
  EXPECT_THAT(error<ConfigError>(), HasSubstr("has no quantization_config"));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {12, 12}}};
  write(config, tensors);
  HfWeights weights(folder_.path());
  EXPECT_EQ(weights.notes().at(scales), "scales of a quantised tensor");
  std::vector<double> found(256);
  weights.read("layers.0.attention.q_proj.weight", 0, 256, found.data());
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 16; ++column) {
      const double value = row == 3 && column == 13 ? -2 : 1;
      EXPECT_EQ(found[row * 16 + column], value * static_cast<double>(by[row / 12 * 2 + column / 12]));
    }
  // 1, 2, 4 and 8 in other dtypes are the same scales.
  const std::map<std::string, std::vector<uint16_t>> halves = {{"BF16", {0x3F80, 0x4000, 0x4080, 0x4100}},
                                                               {"F16", {0x3C00, 0x4000, 0x4400, 0x4800}}};
  for (const auto& [dtype, bits] : halves) {
    OwnTensors other = tensors;
    other[scales] = of_shape(dtype.c_str(), {2, 2}, 2);
    std::memcpy(other[scales].bytes.data(), bits.data(), 8);
    write(config, other);
    std::vector<double> again(256);
    HfWeights(folder_.path()).read("layers.0.attention.q_proj.weight", 0, 256, again.data());
    EXPECT_EQ(again, found) << dtype;
  }
  tensors[scales].info.shape = {1, 4};
  write(config, tensors);
  EXPECT_THAT(error<CheckpointError>(), HasSubstr("\"" + name + "\" needs the scales \"" + scales + "\", F32 [2, 2]"));
  tensors.erase(scales);
  write(config, tensors);
  EXPECT_THAT(error<CheckpointError>(), HasSubstr("needs the scales \"" + scales + "\""));
}

// Rows of gate and up alternate, groups of 32 inputs share a scale, and the lower four bits of a byte come first.
TEST_F(QuantisedFolders, Mxfp4ExpertsAreMultipliedByTheScaleOfTheirGroup) {
  constexpr int64_t kExperts = 6, kWidth = 64, kHidden = 32;
  Json config = Json::parse(read_file(golden("gpt_oss") / kHfConfig));
  config["hidden_size"] = kWidth;
  config["intermediate_size"] = kHidden;
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  const HfModel hf = read_hf_config(config.dump(), "config.json");
  OwnTensors tensors;
  const NameStyle style{.storage = ExpertStorage::mxfp4};
  for (const auto& [name, shape] : other_tensors(*hf.architecture, style, tensors_of(hf.model), hf.model))
    if (!name.ends_with("_blocks")) {
      tensors[name] = of_shape("BF16", shape, 2);
    } else {
      const Shape groups = shape.with(2, shape[2] / 32);
      tensors[name] = of_shape("U8", {groups[0], groups[1], groups[2], 16}, 1);
      tensors[name.substr(0, name.size() - 6) + "scales"] = of_shape("U8", groups, 1, std::byte{127});
    }
  const std::string experts = "model.layers.0.mlp.experts.";
  const size_t row = (1 * 2 * kHidden + 11) * 2;  // expert 1's fifth row of up has two groups
  tensors[experts + "gate_up_proj_blocks"].bytes[(row + 1) * 16 + 3] =
      std::byte{0x30};                                                       // inputs 6 and 7 of the second group
  tensors[experts + "gate_up_proj_scales"].bytes[row + 1] = std::byte{129};  // 4
  tensors[experts + "down_proj_blocks"].bytes[0] = std::byte{0x0F};          // input 0
  write(config, tensors);
  HfWeights weights(folder_.path());
  EXPECT_EQ(weights.model().dtype, "bfloat16");
  EXPECT_EQ(weights.style().storage, ExpertStorage::mxfp4);
  std::vector<double> found(kExperts * 2 * kHidden * kWidth);
  weights.read("layers.0.moe.experts.gate_up_proj", 0, static_cast<int64_t>(found.size()), found.data());
  const size_t at = (1 * 2 * kHidden + kHidden + 5) * kWidth + 32 + 7;
  EXPECT_EQ(found[at], 6);  // 1.5 times 4
  found[at] = 0;
  EXPECT_THAT(found, ::testing::Each(0));
  weights.read("layers.0.moe.experts.down_proj", 0, 2, found.data());
  EXPECT_EQ(found[0], -6);
  EXPECT_EQ(found[1], 0);
  tensors[experts + "down_proj_scales"].info.dtype = "F8_E8M0";
  write(config, tensors);
  EXPECT_THAT(error<CheckpointError>(),
              HasSubstr("needs the scales \"" + experts + "down_proj_scales\", U8 [6, 64, 1]"));
  tensors.erase(experts + "down_proj_scales");
  write(config, tensors);
  EXPECT_THAT(error<CheckpointError>(), HasSubstr("needs the scales \"" + experts + "down_proj_scales\""));
}

// Kimi K2.5's experts have four bits, which config.json describes inside or outside of the text decoder's object.
TEST_F(QuantisedFolders, PackedExpertsOfATextDecoderAreRead) {
  const std::string matrix = "language_model.model.layers.1.mlp.experts.2.gate_proj.weight";
  OwnTensors tensors = tensors_in(golden("kimi_k25"));
  ASSERT_EQ(tensors.at(matrix).info.shape, Shape({8, 16}));
  tensors.erase(matrix);
  tensors[matrix + "_packed"] = of_shape("I32", {8, 2}, 4, std::byte{0x99});  // nine minus eight
  tensors[matrix + "_scale"] = of_shape("F32", {8, 1}, 4);
  tensors[matrix + "_shape"] = of_shape("I64", {2}, 8);
  const std::vector<float> scales(8, 2.5F);
  const int64_t shape[] = {8, 16};
  std::memcpy(tensors[matrix + "_scale"].bytes.data(), scales.data(), 32);
  std::memcpy(tensors[matrix + "_shape"].bytes.data(), shape, sizeof shape);
  const Json weights_args = {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}};
  const Json quantisation = {{"quant_method", "compressed-tensors"},
                             {"format", "pack-quantized"},
                             {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights_args}}}}}};
  for (const bool inside : {true, false}) {
    Json config = Json::parse(read_file(golden("kimi_k25") / kHfConfig));
    (inside ? config[kTextConfig] : config)["quantization_config"] = quantisation;
    write(config, tensors);
    HfWeights weights(folder_.path());
    EXPECT_EQ(weights.hf().packed_bits, 4);
    std::vector<double> gate(8 * 16);
    const int64_t of_expert = 2 * 8 * 16;  // gate and up
    weights.read("layers.1.moe.experts.gate_up_proj", 2 * of_expert, static_cast<int64_t>(gate.size()), gate.data());
    EXPECT_THAT(gate, ::testing::Each(2.5));
    EXPECT_EQ(weights.notes().at(matrix + "_shape"), "shape of a quantised tensor");
  }
}

}  // namespace
}  // namespace witan
