// PEFT's folders of adapters are read without the loss of a tensor, or refused by name.
#include "witan/convert/hf/peft_weights.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "convert/convert_support.h"
#include "convert/hf/golden_adapters.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/hf/hf_weights.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::golden;
using testing::golden_adapters;
using testing::OwnTensors;
using testing::reals;
using testing::tensors_in;

// A golden folder of adapters whose configuration and tensors a test changes.
class ChangedAdapters {
 public:
  explicit ChangedAdapters(const std::string& model, const std::string& base = {})
      : base_(base.empty() ? model : base),
        config(nlohmann::json::parse(read_file(golden_adapters(model) / "adapter_config.json"))),
        tensors(tensors_in(golden_adapters(model) / "adapter_model.safetensors")) {}

  std::unique_ptr<PeftWeights> open() const {
    write_file_atomically(folder_ / kPeftConfig, config.dump());
    testing::write_tensors(folder_ / kPeftWeights, tensors);
    auto source = std::make_unique<HfWeights>(golden(base_));
    const Architecture& architecture = source->architecture();
    return std::make_unique<PeftWeights>(folder_.path(), std::move(source), architecture);
  }
  template <class E>
  std::string refusal() const {
    return test::message_of<E>([&] { open(); });
  }

 private:
  TempFolder folder_;
  std::string base_;

 public:
  nlohmann::json config;
  OwnTensors tensors;
};

TEST(PeftFolders, KeysThatAdaptersLackAreRefusedByName) {
  using nlohmann::json;
  const std::vector<std::pair<const char*, json>> refused = {{"peft_type", "LOHA"},
                                                             {"bias", "lora_only"},
                                                             {"modules_to_save", json::array({"lm_head"})},
                                                             {"layers_to_transform", json::array({0})},
                                                             {"lora_bias", true},
                                                             {"init_lora_weights", "pissa_niter_4"},
                                                             {"rank_pattern", json{{"q_proj", 5}}},
                                                             {"alpha_pattern", json{{"self_attn.q_proj", 5}}},
                                                             {"fan_in_fan_out", true}};
  for (const auto& [key, value] : refused) {
    ChangedAdapters changed("llama");
    changed.config[key] = value;
    EXPECT_NE(changed.refusal<ConfigError>().find(key), std::string::npos) << key;
  }
  ChangedAdapters changed("llama");
  changed.config["r"] = "many";
  EXPECT_NE(changed.refusal<CheckpointError>().find("r and the values of rank_pattern"), std::string::npos);
}

TEST(PeftFolders, NoTensorIsLost) {
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  ChangedAdapters more("llama");
  more.tensors["base_model.model.lm_head.lora_A.weight"] = more.tensors.at(q + "A.weight");
  EXPECT_NE(more.refusal<CheckpointError>().find("\"base_model.model.lm_head.lora_A.weight\""), std::string::npos);
  ChangedAdapters fewer("llama");
  fewer.tensors.erase(q + "B.weight");
  EXPECT_NE(fewer.refusal<CheckpointError>().find(cat("no tensor \"", q, "B.weight\"")), std::string::npos);
  ChangedAdapters other("llama");
  other.tensors[q + "A.weight"] = other.tensors.at(q + "B.weight");
  EXPECT_NE(other.refusal<CheckpointError>().find(cat("\"", q, "A.weight\" is")), std::string::npos);
  ChangedAdapters some("llama");
  for (const char* factor : {"A.weight", "B.weight"}) some.tensors.erase(q + factor);
  EXPECT_NE(some.refusal<CheckpointError>().find("some matrices q_proj and none of model.layers.0.self_attn.q_proj"),
            std::string::npos);
  ChangedAdapters without("llama_dora", "llama");
  without.tensors.erase(q + "magnitude_vector");
  EXPECT_NE(without.refusal<CheckpointError>().find(q + "magnitude_vector"), std::string::npos);
}

// PEFT's own adapter of a joined module has one A, which all matrices begin with.
TEST(PeftFolders, AJoinedModulesFactorIsCopiedToItsMatrices) {
  ChangedAdapters joined("phi3");
  joined.config["rank_pattern"] = joined.config["alpha_pattern"] = nlohmann::json::object();
  const int64_t r = joined.config["r"];
  for (auto& [name, tensor] : joined.tensors) {
    if (name.find("qkv_proj") == std::string::npos && name.find("gate_up_proj") == std::string::npos) continue;
    const bool is_b = name.ends_with("lora_B.weight");
    const Shape shape = is_b ? Shape{tensor.info.shape[0], r} : Shape{r, tensor.info.shape[1]};
    tensor.info.shape = shape;
    tensor.bytes.resize(static_cast<size_t>(shape.elements()) * sizeof(float));
  }
  const auto weights = joined.open();
  EXPECT_EQ(weights->model().lora_rank, r);
  const auto read = [&](const std::string& name) {
    std::vector<double> values(static_cast<size_t>(weights->weights().at(name).elements()));
    weights->read(name, 0, std::ssize(values), values.data());
    return values;
  };
  const std::string there = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_", here = "layers.0.attention.";
  std::vector<double> b;
  for (const char* matrix : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(read(cat(here, matrix, ".lora_A")), reals(joined.tensors, there + "A.weight")) << matrix;
    std::ranges::copy(read(cat(here, matrix, ".lora_B")), std::back_inserter(b));
  }
  EXPECT_EQ(b, reals(joined.tensors, there + "B.weight"));
}

TEST(PeftFolders, ElementsOutsideOfAJoinedModulesBlocksAreRefused) {
  ChangedAdapters changed("phi3");
  const std::string b = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight";
  std::ranges::fill(changed.tensors.at(b).bytes, std::byte{0x3f});
  EXPECT_NE(changed.refusal<ConfigError>().find(cat("\"", b, "\" is not 0 in row 0")), std::string::npos);
}

}  // namespace
}  // namespace witan
