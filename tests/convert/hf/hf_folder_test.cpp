// Errors about folders that are damaged, incomplete or of another model name the problem, the file and the fix.
#include "witan/convert/hf/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_weights.h"

namespace witan {
namespace {

using test::TempFolder;
using ::testing::AllOf;
using testing::golden;
using ::testing::HasSubstr;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::tensors_in;
using testing::write_model;
using testing::write_tensors;
using testing::write_text;

class HfFolders : public ::testing::Test {
 protected:
  std::string error() {
    return test::message_of<CheckpointError>([&] { HfWeights weights(folder_.path()); });
  }
  // The model in two shards with an index.
  void write_shards() {
    OwnTensors first, second;
    for (const auto& [name, tensor] : all_)
      (name.find("layers.0") == std::string::npos ? second : first)[name] = tensor;
    fs::copy_file(golden("mixtral") / kHfConfig, folder_ / kHfConfig);
    write_tensors(folder_ / "model-00001-of-00002.safetensors", first);
    write_tensors(folder_ / "model-00002-of-00002.safetensors", second);
    for (const auto& [name, tensor] : first) index_["weight_map"][name] = "model-00001-of-00002.safetensors";
    for (const auto& [name, tensor] : second) index_["weight_map"][name] = "model-00002-of-00002.safetensors";
    write_index();
  }
  void write_index() { write_text(folder_ / kHfIndex, index_.dump()); }

  TempFolder folder_;
  OwnTensors all_ = tensors_in(golden("mixtral"));
  Json index_ = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
  const std::string norm_ = "model.layers.1.input_layernorm.weight";
};

TEST_F(HfFolders, ReadsShardsLikeASingleFile) {
  write_shards();
  EXPECT_EQ(tensors_in(folder_.path()), all_);
  EXPECT_NO_THROW(HfWeights weights(folder_.path()));
}

// An error for a hub name gives the command that fetches it.
TEST_F(HfFolders, ErrorsForHubNamesSayHowToFetchThem) {
  EXPECT_THAT(test::message_of<CheckpointError>([] { HfFolder("Nobody/No-Such_model-0.6B"); }),
              HasSubstr("to fetch it: `witan data fetch --model Nobody/No-Such_model-0.6B`, then give "
                        "models/No-Such_model-0.6B"));
  for (const char* other : {"model", "/abs/model", "./model", "../model", "a/b/c", "a b/c", "a/", "a/model$"})
    EXPECT_EQ(way_to_fetch(other), "") << other;
}

TEST_F(HfFolders, ErrorsNameDamagedIndexes) {
  write_shards();
  const Json good = index_;
  write_text(folder_ / kHfIndex, good.dump().substr(0, 100));
  EXPECT_THAT(error(), AllOf(HasSubstr(kHfIndex), HasSubstr("byte"), HasSubstr("download this file again")));
  write_text(folder_ / kHfIndex, "[1]");
  EXPECT_THAT(error(), HasSubstr("an object is expected, found array"));
  index_ = {{"weight_map", Json::object()}};
  write_index();
  EXPECT_THAT(error(), HasSubstr("lists no tensors"));
  for (const char* elsewhere : {"../model.safetensors", "/etc/passwd", "", ".hidden", "pytorch_model.bin"}) {
    index_ = good;
    index_["weight_map"][norm_] = elsewhere;
    write_index();
    EXPECT_THAT(error(), HasSubstr("which is no safetensors file of this folder")) << elsewhere;
  }
  index_ = good;
  index_["weight_map"][norm_] = 7;
  write_index();
  EXPECT_THAT(error(), HasSubstr("is said to be in 7"));
}

TEST_F(HfFolders, IndexAndShardsMustAgree) {
  write_shards();
  const Json good = index_;
  index_["weight_map"][norm_] = "model-00001-of-00002.safetensors";
  write_index();
  EXPECT_THAT(error(), AllOf(HasSubstr(norm_), HasSubstr("but it is in model-00002-of-00002.safetensors")));
  index_ = good;
  index_["weight_map"].erase(norm_);
  write_index();
  EXPECT_THAT(error(), AllOf(HasSubstr("does not list \"" + norm_), HasSubstr("download the index again")));
  index_ = good;
  index_["weight_map"]["ghost"] = "model-00001-of-00002.safetensors";
  write_index();
  EXPECT_THAT(error(), HasSubstr("says that \"ghost\" is in model-00001-of-00002.safetensors, which has no such"));
  index_ = good;
  write_index();
  fs::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_THAT(error(), AllOf(HasSubstr("model-00002-of-00002.safetensors is missing"), HasSubstr("download it")));
}

TEST_F(HfFolders, RefusesATensorInTwoShards) {
  write_shards();
  OwnTensors first = tensors_in(folder_ / "model-00001-of-00002.safetensors");
  first[norm_] = all_[norm_];
  write_tensors(folder_ / "model-00001-of-00002.safetensors", first);
  EXPECT_THAT(error(), HasSubstr("the tensor \"" + norm_ + "\" is in two files, model-00001-of-00002.safetensors and"));
}

TEST_F(HfFolders, RefusesTruncatedShards) {
  write_model(folder_.path(), "mixtral", all_);
  const std::string whole = read_file(folder_ / kHfWeights);
  for (size_t length = 0; length < whole.size(); length += 1 + whole.size() / 97) {
    write_text(folder_ / kHfWeights, whole.substr(0, length));
    EXPECT_THAT(error(), HasSubstr(kHfWeights)) << length;
  }
}

TEST_F(HfFolders, RefusalsOfPickleNameTheFix) {
  fs::copy_file(golden("mixtral") / kHfConfig, folder_ / kHfConfig);
  EXPECT_THAT(error(), HasSubstr("has neither model.safetensors nor"));
  write_text(folder_ / "model-00001-of-00002.safetensors", "");
  EXPECT_THAT(error(), HasSubstr("model-00001-of-00002.safetensors, but no model.safetensors.index.json"));
  write_text(folder_ / "pytorch_model.bin", "\x80\x02");
  EXPECT_THAT(error(), AllOf(HasSubstr("pytorch_model.bin, a pickle"), HasSubstr("save_pretrained(OUT)")));
}

TEST_F(HfFolders, ErrorsNameMissingTensors) {
  all_.erase(norm_);
  write_model(folder_.path(), "mixtral", all_);
  EXPECT_THAT(error(), HasSubstr("has no tensor \"" + norm_ + "\" [16], which a model of type mixtral"));
}

TEST_F(HfFolders, UnusedTensorsAreErrors) {
  all_["model.layers.0.self_attn.q_norm.weight"] = all_[norm_];
  all_["model.layers.2.input_layernorm.weight"] = all_[norm_];
  write_model(folder_.path(), "mixtral", all_);
  EXPECT_THAT(error(), AllOf(HasSubstr("has 2 tensors that a model of type mixtral"),
                             HasSubstr("model.layers.0.self_attn.q_norm.weight"), HasSubstr("They would be lost")));
}

TEST_F(HfFolders, ChecksShapesAndDtypes) {
  OwnTensors other = all_;
  other[norm_].info.shape = {4, 4};
  write_model(folder_.path(), "mixtral", other);
  EXPECT_THAT(error(), HasSubstr("\"" + norm_ + "\" is [4, 4], but config.json asks for [16]"));
  other[norm_] = all_[norm_];
  other[norm_].info.dtype = "I32";
  write_model(folder_.path(), "mixtral", other);
  EXPECT_THAT(error(), HasSubstr("\"" + norm_ + "\" is I32: weights are floating-point numbers"));
}

// A tied model's lm_head is either a copy of the embedding or an error.
TEST_F(HfFolders, ATiedHeadMayBeStoredTwice) {
  OwnTensors llama = tensors_in(golden("llama"));
  llama["lm_head.weight"] = llama["model.embed_tokens.weight"];
  write_model(folder_.path(), "llama", llama);
  const HfWeights weights(folder_.path());
  EXPECT_TRUE(weights.style().tied_copy);
  EXPECT_THAT(weights.notes().at("lm_head.weight"), HasSubstr("equal to the tied embedding"));
  llama["lm_head.weight"].bytes[5] ^= std::byte{1};
  write_model(folder_.path(), "llama", llama);
  EXPECT_THAT(error(), HasSubstr("\"lm_head.weight\" is not equal to \"model.embed_tokens.weight\""));
}

// The first files of GPT-2 have no prefix, but masks.
TEST_F(HfFolders, ReadsBareNamesAndMasks) {
  OwnTensors bare;
  for (const auto& [name, tensor] : tensors_in(golden("gpt2"))) bare[name.substr(std::strlen("transformer."))] = tensor;
  bare["h.0.attn.bias"] = {{"", "F32", {1, 1, 2, 2}, 16}, std::vector<std::byte>(16)};
  write_model(folder_.path(), "gpt2", bare);
  const HfWeights weights(folder_.path());
  EXPECT_TRUE(weights.style().bare);
  EXPECT_THAT(weights.notes().at("h.0.attn.bias"), HasSubstr("computed by the model"));
}

// Depending on its version, transformers stored rotary frequencies in each layer, in the model, or by layer type.
TEST_F(HfFolders, ChecksStoredRotaryFrequencies) {
  OwnTensors with = all_;
  const std::vector<std::string> names = {
      "model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq",
      "model.layers.1.self_attn.rotary_emb.cos_cached", "model.rotary_emb.sliding_attention_inv_freq"};
  for (const std::string& name : names) with[name] = {{"", "F32", {4}, 16}, std::vector<std::byte>(16)};
  write_model(folder_.path(), "mixtral", with);
  const HfWeights weights(folder_.path());
  for (const std::string& name : names) EXPECT_THAT(weights.notes().at(name), HasSubstr("computed by the model"));
  with["model.rotary_embedding.weight"] = with[names[0]];
  write_model(folder_.path(), "mixtral", with);
  EXPECT_THAT(error(), HasSubstr("no place for: \"model.rotary_embedding.weight\""));
}

// Numbers in a config.json are compared with the folder before they determine any allocation.
TEST_F(HfFolders, RefusesMoreLayersOrExpertsThanTensorsFirst) {
  Json config = Json::parse(read_file(golden("mixtral") / kHfConfig));
  const auto refused = [&](const char* key, int64_t count) {
    Json larger = config;
    larger[key] = count;
    write_model(folder_.path(), "mixtral", all_);
    write_text(folder_ / kHfConfig, larger.dump());
    return error();
  };
  EXPECT_THAT(refused("num_hidden_layers", 90000), HasSubstr(" tensors, fewer than the 90000 layers that its config"));
  EXPECT_THAT(refused("num_local_experts", 60000), HasSubstr(" tensors, fewer than the 60000 experts that its config"));
}

// transformers v5 can store a layer's experts as one tensor.
TEST_F(HfFolders, FusedExpertsGiveTheSameWeights) {
  OwnTensors fused;
  for (const auto& [name, tensor] : all_) {
    const size_t at = name.find("block_sparse_moe");
    if (at == std::string::npos) {
      fused[name] = tensor;
      continue;
    }
    const std::string layer = name.substr(0, at) + "mlp.";
    if (name.ends_with("gate.weight")) fused[layer + "gate.weight"] = tensor;
    if (!name.ends_with("w1.weight") && !name.ends_with("w2.weight")) continue;
    const bool down = name.ends_with("w2.weight");
    OwnTensor& all = fused[layer + (down ? "experts.down_proj" : "experts.gate_up_proj")];
    const int64_t rows = tensor.info.shape[0], columns = tensor.info.shape[1];
    all.info = {"", "F32", {4, down ? rows : 2 * rows, columns}, 0};
    all.bytes.insert(all.bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
    if (down) continue;
    std::string up = name;
    up[up.rfind("w1") + 1] = '3';
    all.bytes.insert(all.bytes.end(), all_[up].bytes.begin(), all_[up].bytes.end());
  }
  write_model(folder_.path(), "mixtral", fused);
  HfWeights single(golden("mixtral")), together(folder_.path());
  EXPECT_EQ(together.style().storage, ExpertStorage::fused);
  for (const auto& [name, shape] : single.weights()) {
    std::vector<double> a(static_cast<size_t>(shape.elements())), b(a);
    single.read(name, 0, shape.elements(), a.data());
    together.read(name, 0, shape.elements(), b.data());
    EXPECT_EQ(a, b) << name;
  }
}

// The run has the narrowest dtype that represents every weight exactly.
TEST_F(HfFolders, TheModelsDtypeRepresentsAllWeights) {
  EXPECT_EQ(HfWeights(golden("mixtral")).model().dtype, "float32");
  OwnTensors narrow;
  for (const auto& [name, tensor] : all_) {
    narrow[name] = {{"", "BF16", tensor.info.shape, 0}, {}};
    for (size_t i = 0; i < tensor.bytes.size(); i += 4)
      narrow[name].bytes.insert(narrow[name].bytes.end(), {tensor.bytes[i + 2], tensor.bytes[i + 3]});
  }
  write_model(folder_.path(), "mixtral", narrow);
  EXPECT_EQ(HfWeights(folder_.path()).model().dtype, "bfloat16");
  narrow[norm_].info.dtype = "F16";
  write_model(folder_.path(), "mixtral", narrow);
  EXPECT_EQ(HfWeights(folder_.path()).model().dtype, "float32");
}

TEST_F(HfFolders, CompanionsAreAllFilesButWeights) {
  write_model(folder_.path(), "mixtral", all_);
  for (const char* name : {"tokenizer.json", "generation_config.json", "pytorch_model.bin", "x.gguf", ".hidden"})
    write_text(folder_ / name, "{}");
  fs::create_directory(folder_ / "original");
  EXPECT_THAT(HfFolder(folder_.path()).companions(),
              ::testing::ElementsAre("config.json", "generation_config.json", "tokenizer.json"));
}

}  // namespace
}  // namespace witan
