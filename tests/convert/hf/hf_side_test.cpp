// The folder of a vision-language model: its text decoder is imported, and its other tensors are kept for an export.
#include "witan/convert/hf/hf_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
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

// Tensors of towers may be in any shard, also with tensors of the text decoder.
TEST(HfSide, IsKeptFromEveryShard) {
  const TempFolder folder;
  const OwnTensors all = tensors_in(golden(kLlava));
  std::array<OwnTensors, 3> shards;
  Json index = {{"metadata", Json::object()}, {"weight_map", Json::object()}};
  size_t at = 0;
  for (const auto& [name, tensor] : all) {
    const size_t shard = at++ % shards.size();
    shards[shard].emplace(name, tensor);
    index["weight_map"][name] = cat("model-0000", shard + 1, "-of-00003.safetensors");
  }
  testing::write_model(folder / "in", kLlava, {});
  fs::remove(folder / "in" / kHfWeights);
  for (size_t shard = 0; shard < shards.size(); ++shard)
    testing::write_tensors(folder / "in" / cat("model-0000", shard + 1, "-of-00003.safetensors"), shards[shard]);
  testing::write_text(folder / "in/model.safetensors.index.json", index.dump());
  const HfWeights weights(folder / "in");
  for (const char* copy : {"one", "two"}) {
    keep_side_tensors(weights, folder / copy);
    EXPECT_EQ(tensors_in(folder / copy / kSideTensors), side_of(all));
  }
  EXPECT_EQ(read_file(folder / "one" / kSideTensors), read_file(folder / "two" / kSideTensors));
}

TEST(HfSide, TextModelsHaveNone) {
  const TempFolder folder;
  keep_side_tensors(HfWeights(golden("qwen2")), folder / "hf");
  EXPECT_FALSE(fs::exists(folder / "hf"));
  EXPECT_FALSE(side_style(folder / "hf"));
}

// Published folders of Gemma 4 hold projections to keys and values of layers that borrow them.
TEST(HfSide, KeepsTensorsOfBorrowedKeys) {
  const TempFolder folder;
  OwnTensors all = tensors_in(golden("gemma4_text_small")), unread;
  for (const char* name : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
    unread.emplace(cat("model.layers.4.self_attn.", name), all.at(cat("model.layers.1.self_attn.", name)));
  all.insert(unread.begin(), unread.end());
  testing::write_model(folder / "in", "gemma4_text_small", all);
  const HfWeights weights(folder / "in"), without(golden("gemma4_text_small"));
  EXPECT_EQ(weights.weights(), without.weights());
  EXPECT_EQ(weights.notes().at("model.layers.4.self_attn.k_proj.weight"),
            "for keys and values that the layer borrows: kept as it is, and exported again");
  keep_side_tensors(weights, folder / "hf");
  EXPECT_EQ(tensors_in(folder / "hf" / kSideTensors), unread);
  all.emplace("model.layers.4.self_attn.other.weight", unread.begin()->second);
  testing::write_model(folder / "more", "gemma4_text_small", all);
  EXPECT_THAT(message_of<CheckpointError>([&] { HfWeights(folder / "more"); }),
              HasSubstr("has no place for: \"model.layers.4.self_attn.other.weight\""));
}

// These are transformers' in-memory names since v5.
TEST(HfSide, ReadsNamesInTheOtherOrder) {
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

// transformers ignores K-EXAONE's MTP layers.
TEST(HfSide, KeepsModulesOfTextModels) {
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

// Their names begin like those of the model's own tensors.
TEST(HfSide, KeepsErniesMtpLayers) {
  const TempFolder folder;
  OwnTensors tensors = tensors_in(golden("ernie4_5_moe"));
  tensors["model.mtp_emb_norm.0.weight"] = tensors.at("model.norm.weight");
  testing::write_model(folder / "in", "ernie4_5_moe", tensors);
  const HfWeights weights(folder / "in");
  ASSERT_EQ(weights.side_tensors().size(), 1U);
  EXPECT_EQ(weights.side_tensors().front().info.name, "model.mtp_emb_norm.0.weight");
}

// Published Qwen2.5-VL describes its text decoder next to the towers; its tensors have the names of a text model.
TEST(HfSide, TheTextDecoderMayBeDescribedNextToItsTowers) {
  const TempFolder folder;
  const Json nested = Json::parse(read_file(golden("qwen2_5_vl_text") / kHfConfig));
  Json flat = nested;
  flat.erase(kTextConfig);
  flat.update(nested.at(kTextConfig));
  flat["model_type"] = "qwen2_5_vl";
  flat["tie_word_embeddings"] = false;
  flat["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {1, 1}}, {"rope_theta", 1e5}};
  flat.erase("rope_parameters");
  testing::write_model(folder / "in", "qwen2_5_vl_text", tensors_in(golden("qwen2_5_vl_text")));
  testing::write_text(folder / "in" / kHfConfig, flat.dump());
  const HfWeights published(folder / "in"), whole(golden("qwen2_5_vl_text"));
  EXPECT_THAT(differences(published.model(), whole.model()), IsEmpty());
  EXPECT_EQ(published.side_tensors().size(), whole.side_tensors().size());
  EXPECT_EQ(published.weights(), whole.weights());
  EXPECT_EQ(published.style().prefix, "model.");
}

// transformers transposes experts whose shape differs from its model's.
TEST(HfSide, ReadsExpertsOfQwen3VlInBothOrders) {
  const TempFolder folder;
  OwnTensors turned = tensors_in(golden("qwen3_vl_moe_text"));
  for (auto& [name, tensor] : turned) {
    if (name.find(".mlp.experts.") == std::string::npos) continue;
    const Shape was = tensor.info.shape;  // [E, in, out]
    const auto E = static_cast<size_t>(was[0]), in = static_cast<size_t>(was[1]), out = static_cast<size_t>(was[2]);
    std::vector<std::byte> bytes(tensor.bytes.size());
    for (size_t i = 0; i < E * in * out; ++i) {
      const size_t e = i / (in * out), row = i / out % in, column = i % out;
      std::copy_n(tensor.bytes.data() + 4 * i, 4, bytes.data() + 4 * ((e * out + column) * in + row));
    }
    tensor.info.shape = {was[0], was[2], was[1]};
    tensor.bytes = bytes;
  }
  testing::write_model(folder / "in", "qwen3_vl_moe_text", turned);
  HfWeights published(golden("qwen3_vl_moe_text")), in_memory(folder / "in");
  EXPECT_EQ(published.style().storage, ExpertStorage::fused_in_out);
  EXPECT_EQ(in_memory.style().storage, ExpertStorage::fused);
  for (const auto& [name, shape] : published.weights()) {
    std::vector<double> one(static_cast<size_t>(shape.elements())), two = one;
    published.read(name, 0, shape.elements(), one.data());
    in_memory.read(name, 0, shape.elements(), two.data());
    EXPECT_EQ(one, two) << name;
  }
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

TEST(HfSide, RefusesATextDecoderLikeATextModel) {
  Json config = config_of_llava();
  config[kTextConfig]["model_type"] = "gemma2";
  EXPECT_THAT(message_of<ConfigError>([&] { read_hf_config(config.dump(), "config.json"); }),
              HasSubstr("config.json: text_config: model_type = gemma2: Witan cannot represent"));
}

// The head belongs to the wrapper: a key outside of the text decoder's object says whether it is tied.
TEST(HfSide, KeysOutsideOfTheTextDecoderCount) {
  Json config = config_of_llava();
  config["tie_word_embeddings"] = true;
  EXPECT_FALSE(read_hf_config(config.dump(), "config.json").model.untie_embeddings_and_output_weights);
  // Qwen2-VL is tied if either place says so.
  Json qwen = Json::parse(read_file(golden("qwen2_vl_text") / kHfConfig));
  qwen["tie_word_embeddings"] = false;
  qwen[kTextConfig]["tie_word_embeddings"] = true;
  EXPECT_FALSE(read_hf_config(qwen.dump(), "config.json").model.untie_embeddings_and_output_weights);
}

}  // namespace
}  // namespace witan
