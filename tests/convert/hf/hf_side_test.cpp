// The folder of a vision-language model: its text decoder is imported, and its other tensors are kept for an export.
#include "witan/convert/hf/hf_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnTensors;
using testing::tensors_in;

constexpr const char* kLlava = "llava";

Json config_of_llava() {
  return Json::parse(read_file(golden(kLlava) / kHfConfig));
}

OwnTensors side_of(const OwnTensors& all) {
  OwnTensors side;
  for (const auto& [name, tensor] : all)
    if (!name.starts_with("language_model.")) side.emplace(name, tensor);
  return side;
}

TEST(HfSide, TheTextDecoderIsTheModelOfItsType) {
  const HfWeights weights(golden(kLlava));
  EXPECT_EQ(weights.architecture().model_type, "qwen2");
  const HfModel alone = read_hf_config(config_of_llava().at(kTextConfig).dump(), "config.json");
  EXPECT_FALSE(alone.text_decoder);
  EXPECT_TRUE(weights.hf().text_decoder);
  EXPECT_THAT(differences(weights.model(), alone.model), IsEmpty());
}

TEST(HfSide, IsKeptAndCopiedByteForByte) {
  const TempFolder folder;
  const HfWeights weights(golden(kLlava));
  keep_side_tensors(weights, folder / "hf");
  const OwnTensors side = side_of(tensors_in(golden(kLlava)));
  EXPECT_EQ(tensors_in(folder / "hf" / kSideTensors), side);
  const auto style = side_style(folder / "hf");
  ASSERT_TRUE(style);
  EXPECT_EQ(style->prefix, "language_model.model.");
  EXPECT_EQ(style->head, "language_model.lm_head.weight");
  const std::vector<LedgerEntry> entries = copy_side_tensors(folder / "hf" / kSideTensors, folder / "copy.safetensors");
  EXPECT_EQ(read_file(folder / "copy.safetensors"), read_file(folder / "hf" / kSideTensors));
  EXPECT_EQ(entries.size(), side.size());
  for (const LedgerEntry& entry : entries) {
    EXPECT_TRUE(side.contains(entry.name)) << entry.name;
    EXPECT_EQ(entry.hash.size(), 32U);
    EXPECT_THAT(weights.notes().at(entry.name), HasSubstr("not of the text decoder"));
  }
}

TEST(HfSide, AModelOfTextAloneHasNone) {
  const TempFolder folder;
  keep_side_tensors(HfWeights(golden("qwen2")), folder / "hf");
  EXPECT_FALSE(fs::exists(folder / "hf"));
  EXPECT_FALSE(side_style(folder / "hf"));
}

// transformers' names in memory since v5.
TEST(HfSide, NamesOfTheOtherOrderAreKnown) {
  const TempFolder folder;
  OwnTensors renamed;
  for (auto& [name, tensor] : tensors_in(golden(kLlava))) {
    std::string other = "model." + name;
    if (name == "language_model.lm_head.weight") other = "lm_head.weight";
    if (name.starts_with("language_model.model.")) other = "model.language_model." + name.substr(21);
    renamed.emplace(other, tensor);
  }
  testing::write_model(folder / "in", kLlava, renamed);
  HfWeights weights(folder / "in");
  EXPECT_EQ(weights.style().prefix, "model.language_model.");
  EXPECT_EQ(weights.style().head, "");
  EXPECT_EQ(weights.side_tensors().size(), side_of(tensors_in(golden(kLlava))).size());
}

// transformers passes over K-EXAONE's layers of multi-token prediction.
TEST(HfSide, ModulesBesideAModelOfTextAreKept) {
  const TempFolder folder;
  OwnTensors tensors = tensors_in(golden("exaone_moe"));
  const auto one = tensors.at("model.norm.weight");
  tensors["mtp.layers.9.norm.weight"] = one;
  testing::write_model(folder / "in", "exaone_moe", tensors);
  const HfWeights weights(folder / "in");
  EXPECT_EQ(weights.side_tensors().size(), 1U);
  keep_side_tensors(weights, folder / "hf");
  EXPECT_EQ(tensors_in(folder / "hf" / kSideTensors), (OwnTensors{{"mtp.layers.9.norm.weight", one}}));
  const auto style = side_style(folder / "hf");
  ASSERT_TRUE(style);
  EXPECT_EQ(style->prefix, "model.");
  EXPECT_EQ(style->head, "");
}

TEST(HfSide, TensorsOfTheTextDecoderAreAllItsOwn) {
  const TempFolder folder;
  OwnTensors tensors = tensors_in(golden(kLlava));
  tensors["language_model.model.layers.0.extra.weight"] = tensors.at("language_model.model.norm.weight");
  testing::write_model(folder / "in", kLlava, tensors);
  EXPECT_THAT(message_of<CheckpointError>([&] { HfWeights(folder / "in"); }),
              HasSubstr("has no place for: \"language_model.model.layers.0.extra.weight\""));
  testing::write_model(folder / "towers", kLlava, side_of(tensors));
  EXPECT_THAT(message_of<CheckpointError>([&] { HfWeights(folder / "towers"); }),
              HasSubstr("has no text decoder whose tensors Witan knows"));
}

TEST(HfSide, ATextDecoderIsRefusedAsAModelOfTextIs) {
  Json config = config_of_llava();
  config[kTextConfig]["model_type"] = "gemma3_text";
  EXPECT_THAT(message_of<ConfigError>([&] { read_hf_config(config.dump(), "config.json"); }),
              HasSubstr("config.json: text_config: model_type = gemma3_text: Witan cannot represent"));
}

// The head is the wrapper's: whether it is tied is said beside the text decoder's object.
TEST(HfSide, KeysBesideTheTextDecoderCount) {
  Json config = config_of_llava();
  config["tie_word_embeddings"] = true;
  EXPECT_FALSE(read_hf_config(config.dump(), "config.json").model.untie_embeddings_and_output_weights);
}

}  // namespace
}  // namespace witan
