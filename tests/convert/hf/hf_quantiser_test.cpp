// Quantised exports: every tensor is in its place and in the ledger, and reads back with the written values.
#include "witan/convert/hf/hf_quantiser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "convert/convert_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"

namespace witan {
namespace {

using test::TempFolder;
using ::testing::Contains;
using testing::golden;
using ::testing::HasSubstr;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::tensors_in;

class HfQuantisers : public ::testing::Test {
 protected:
  // A folder of random weights, of the golden model with other sizes.
  fs::path random_model(const std::string& golden_model, const Json& sizes) {
    Json config = Json::parse(read_file(golden(golden_model) / kHfConfig));
    config.update(sizes);
    const HfModel hf = read_hf_config(config.dump(), "config.json");
    std::mt19937 draw(11);
    std::normal_distribution<float> normal(0, 0.1F);
    OwnTensors tensors;
    const NameStyle style{.storage = default_storage(*hf.architecture)};
    for (const auto& [name, shape] : other_tensors(*hf.architecture, style, tensors_of(hf.model), hf.model)) {
      std::vector<float> values(static_cast<size_t>(shape.elements()));
      for (float& value : values) value = normal(draw);
      OwnTensor& tensor = tensors[name];
      tensor.info = {"", "BF16", shape, 0};
      tensor.bytes.resize(values.size() * 2);
      copy_elements(Element::bf16, tensor.bytes.data(), Element::f32, reinterpret_cast<const std::byte*>(values.data()),
                    1, shape.elements());
    }
    fs::create_directories(folder_ / "model");
    testing::write_text(folder_ / "model" / kHfConfig, config.dump());
    testing::write_tensors(folder_ / "model" / kHfWeights, tensors);
    return folder_ / "model";
  }

  CheckpointWeights imported(const fs::path& folder) {
    HfWeights weights(folder);
    const fs::path to = folder_ / ("checkpoints" + std::to_string(++imports_));
    import_weights(weights, to, {}, Json::object());
    return {open_checkpoint(to / "step-0"), weights.model()};
  }

  // Writes the folder `name` like `witan export`.
  Ledger exported(CheckpointWeights& weights, const fs::path& source, HfQuantisation kind, const std::string& name,
                  uint64_t shard_bytes = 5'000'000'000, FeedbackOf feedback = {}) {
    HfWeights hf(source);
    HfExport how{hf.hf().architecture, hf.style()};
    how.style.storage = kind == HfQuantisation::mxfp4 ? ExpertStorage::mxfp4 : default_storage(*how.architecture);
    how.quantisation = kind;
    how.shard_bytes = shard_bytes;
    how.feedback = std::move(feedback);
    fs::create_directories(folder_ / name);
    Ledger ledger = export_weights(weights, how, folder_ / name);
    Json config = Json::parse(read_file(source / kHfConfig));
    config["quantization_config"] = Json::parse(quantization_config(weights, how));
    testing::write_text(folder_ / name / kHfConfig, config.dump());
    return ledger;
  }

  static std::vector<double> values_of(WeightSource& source, const std::string& name, const Shape& shape) {
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    source.read(name, 0, shape.elements(), values.data());
    return values;
  }

  TempFolder folder_;
  int imports_ = 0;
};

const Json kSmall = {{"hidden_size", 256}, {"intermediate_size", 384}, {"head_dim", 64}, {"num_hidden_layers", 1}};

struct Kind {
  const char* name;
  HfQuantisation kind;
  double error;  // largest of any matrix
  const char *codes, *scales;
};

class HfQuantiserKinds : public HfQuantisers, public ::testing::WithParamInterface<Kind> {};

TEST_P(HfQuantiserKinds, ReadBackAndAreInTheLedger) {
  const auto [label, kind, most, codes, scales] = GetParam();
  const fs::path source = random_model("qwen3_moe", [] {
    Json sizes = kSmall;
    sizes["moe_intermediate_size"] = 128;
    sizes["mlp_only_layers"] = Json::array();
    return sizes;
  }());
  CheckpointWeights weights = imported(source);
  const Ledger ledger = exported(weights, source, kind, "out");
  std::vector<std::string> written, known;
  for (const auto& [name, tensor] : tensors_in(folder_ / "out")) written.push_back(name);
  for (const LedgerEntry& entry : ledger.target) {
    known.push_back(entry.name);
    EXPECT_TRUE(!entry.others.empty() || !entry.note.empty()) << entry.name;
  }
  EXPECT_THAT(known, ::testing::UnorderedElementsAreArray(written));
  for (const LedgerEntry& entry : ledger.source) EXPECT_TRUE(!entry.others.empty() || !entry.note.empty());
  EXPECT_THAT(written, Contains(std::string("model.layers.0.self_attn.q_proj") + codes));
  EXPECT_THAT(written, Contains(std::string("model.layers.0.mlp.experts.3.down_proj") + scales));

  HfWeights back(folder_ / "out");
  for (const auto& [name, shape] : weights.weights()) {
    const auto before = values_of(weights, name, shape), after = values_of(back, name, shape);
    if (!name.ends_with("_proj.weight") && name.find("experts") == std::string::npos) {
      EXPECT_EQ(after, before) << name;
      continue;
    }
    double error = 0, square = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      error += (after[i] - before[i]) * (after[i] - before[i]);
      square += before[i] * before[i];
    }
    EXPECT_LT(std::sqrt(error / square), most) << name;
    EXPECT_GT(error, 0) << name;
  }
  // Each kind of matrix has the printed error, up to rounding to bfloat16 on reading.
  ASSERT_EQ(ledger.quantised.size(), 6U);
  for (const QuantisedKind& one : ledger.quantised) EXPECT_LT(one.error.relative(), most) << one.matrices;
  EXPECT_THAT(ledger.summary(), HasSubstr("moe.experts.gate_up_proj"));
}

// Readers map tensors and access them as numbers in place.
TEST_P(HfQuantiserKinds, TensorsAreAlignedAndMayBeInSeveralFiles) {
  const fs::path source = random_model("llama", {{"hidden_size", 96}, {"intermediate_size", 34}, {"vocab_size", 33}});
  CheckpointWeights weights = imported(source);
  exported(weights, source, GetParam().kind, "whole");
  exported(weights, source, GetParam().kind, "parts", 20'000);
  const HfFolder folder(folder_ / "whole");
  const std::byte* first = nullptr;
  for (const auto& [name, tensor] : folder.tensors())
    first = std::min(first ? first : tensor.bytes.data(), tensor.bytes.data());
  for (const auto& [name, tensor] : folder.tensors())
    EXPECT_EQ((tensor.bytes.data() - first) % stored_element_bytes(tensor.info.dtype, name), 0) << name;
  EXPECT_TRUE(fs::exists(folder_ / "parts" / kHfIndex));
  EXPECT_EQ(tensors_in(folder_ / "parts"), tensors_in(folder_ / "whole"));
  HfWeights back(folder_ / "parts");
}

INSTANTIATE_TEST_SUITE_P(Kinds, HfQuantiserKinds,
                         ::testing::Values(Kind{"fp8", HfQuantisation::fp8, 0.032, ".weight", ".weight_scale_inv"},
                                           Kind{"int8", HfQuantisation::int8, 0.01, ".weight_packed", ".weight_scale"},
                                           Kind{"int4", HfQuantisation::int4, 0.13, ".weight_packed", ".weight_scale"}),
                         [](const auto& one) { return std::string(one.param.name); });

// No token reached expert 2: its matrices are rounded to nearest, as without calibration, and are named.
TEST_F(HfQuantisers, CalibratesEachMatrixAndNamesUncalibratedOnes) {
  Json sizes = kSmall;
  sizes["moe_intermediate_size"] = 128;
  sizes["mlp_only_layers"] = Json::array();
  const fs::path source = random_model("qwen3_moe", sizes);
  CheckpointWeights weights = imported(source);
  exported(weights, source, HfQuantisation::int4, "plain");
  std::set<std::pair<std::string, int64_t>> asked;
  ThreadPool pool(1);
  const Ledger ledger = exported(weights, source, HfQuantisation::int4, "calibrated", 5'000'000'000,
                                 [&](const std::string& name, int64_t matrix) -> std::shared_ptr<ErrorFeedback> {
                                   asked.emplace(name, matrix);
                                   if (name.find("experts") != std::string::npos && matrix == 2) return nullptr;
                                   const auto K = static_cast<size_t>(weights.weights().at(name).last());
                                   std::vector<float> moments(K * K, 1.0F);
                                   for (size_t i = 0; i < K; ++i) moments[i * (K + 1)] = 1.5F;
                                   return std::make_shared<ErrorFeedback>(moments, pool);
                                 });
  EXPECT_TRUE(asked.contains({"layers.0.attention.q_proj.weight", 0}));
  EXPECT_TRUE(asked.contains({"layers.0.moe.experts.gate_up_proj", 3}));
  EXPECT_TRUE(asked.contains({"layers.0.moe.experts.down_proj", 1}));
  const std::string expert = "model.layers.0.mlp.experts.2.";
  EXPECT_THAT(ledger.uncalibrated,
              ::testing::UnorderedElementsAre(expert + "gate_proj.weight", expert + "up_proj.weight",
                                              expert + "down_proj.weight"));
  const OwnTensors plain = tensors_in(folder_ / "plain"), calibrated = tensors_in(folder_ / "calibrated");
  for (const auto& [name, tensor] : plain)
    if (name.ends_with(".weight_packed")) {
      EXPECT_EQ(calibrated.at(name).bytes == tensor.bytes, name.starts_with(expert)) << name;
    }
}

TEST_F(HfQuantisers, ConfigsNameUnquantisedMatrices) {
  const fs::path source = random_model("mixtral", [] {
    Json sizes = kSmall;
    sizes["intermediate_size"] = 136;  // neither short nor a multiple of blocks
    return sizes;
  }());
  CheckpointWeights weights = imported(source);
  exported(weights, source, HfQuantisation::fp8, "fp8");
  const auto config = [&](const char* name) {
    return Json::parse(read_file(folder_ / name / kHfConfig))["quantization_config"];
  };
  const auto fp8 = config("fp8");
  EXPECT_EQ(fp8["quant_method"], "fp8");
  EXPECT_EQ(fp8["weight_block_size"], Json({128, 128}));
  EXPECT_EQ(fp8["modules_to_not_convert"],
            Json({"model.layers.0.block_sparse_moe.gate", "model.layers.0.block_sparse_moe.experts", "lm_head"}));
  exported(weights, source, HfQuantisation::int8, "int8");
  const auto int8 = config("int8");
  EXPECT_EQ(int8["quant_method"], "compressed-tensors");
  EXPECT_EQ(int8["format"], "pack-quantized");
  EXPECT_EQ(int8["ignore"], Json({"model.layers.0.block_sparse_moe.gate", "lm_head"}));
  EXPECT_EQ(int8["config_groups"]["group_0"]["weights"]["strategy"], "channel");
  const fs::path even = random_model("mixtral", kSmall);
  CheckpointWeights wide = imported(even);
  exported(wide, even, HfQuantisation::int4, "int4");
  EXPECT_EQ(config("int4")["config_groups"]["group_0"]["weights"]["group_size"], 128);
}

TEST_F(HfQuantisers, Mxfp4RoundTripsBitwise) {
  const fs::path source = random_model("gpt_oss", {{"hidden_size", 64}, {"intermediate_size", 32}});
  CheckpointWeights weights = imported(source);
  const Ledger ledger = exported(weights, source, HfQuantisation::mxfp4, "once");
  EXPECT_EQ(ledger.quantised.size(), 2U);
  HfWeights once(folder_ / "once");
  EXPECT_EQ(once.style().storage, ExpertStorage::mxfp4);
  EXPECT_EQ(once.model().dtype, "bfloat16");
  CheckpointWeights again = imported(folder_ / "once");
  exported(again, folder_ / "once", HfQuantisation::mxfp4, "twice");
  HfWeights twice(folder_ / "twice");
  for (const auto& [name, shape] : weights.weights()) {
    EXPECT_EQ(values_of(twice, name, shape), values_of(once, name, shape)) << name;
    const bool quantised = name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
    EXPECT_EQ(values_of(once, name, shape) != values_of(weights, name, shape), quantised) << name;
  }
}

TEST_F(HfQuantisers, RefusesUnsupportedModels) {
  const fs::path source = random_model("llama", kSmall);
  CheckpointWeights weights = imported(source);
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                HfWeights hf(golden("gpt2"));
                check_quantisation(HfQuantisation::int4, hf.architecture());
              }),
              HasSubstr("type gpt2 has matrices that are [in, out]"));
  OwnTensors tensors = tensors_in(source);
  const uint16_t infinite = 0x7F80;
  std::memcpy(tensors.at("model.layers.0.mlp.up_proj.weight").bytes.data() + 10, &infinite, 2);
  testing::write_tensors(source / kHfWeights, tensors);
  CheckpointWeights damaged = imported(source);
  EXPECT_THAT(test::message_of<CheckpointError>([&] { exported(damaged, source, HfQuantisation::fp8, "out"); }),
              HasSubstr("\"model.layers.0.mlp.up_proj.weight\" has the value inf"));
}

// A malicious or damaged folder of compressed-tensors may contain any of these.
TEST_F(HfQuantisers, RefusesInconsistentPackedWeights) {
  const fs::path source = random_model("llama", kSmall);
  CheckpointWeights weights = imported(source);
  exported(weights, source, HfQuantisation::int4, "out");
  const OwnTensors good = tensors_in(folder_ / "out");
  const Json config = Json::parse(read_file(folder_ / "out" / kHfConfig));
  const std::string base = "model.layers.0.self_attn.k_proj.weight_";
  const auto tensors_error = [&](const auto& change) {
    OwnTensors tensors = good;
    change(tensors);
    testing::write_tensors(folder_ / "out" / kHfWeights, tensors);
    return test::message_of<CheckpointError>([&] { HfWeights read(folder_ / "out"); });
  };
  EXPECT_THAT(tensors_error([&](OwnTensors& all) { all.erase(base + "scale"); }),
              HasSubstr("needs the scales \"" + base));
  EXPECT_THAT(tensors_error([&](OwnTensors& all) { all.erase(base + "shape"); }),
              HasSubstr("needs \"" + base + "shape"));
  EXPECT_THAT(tensors_error([&](OwnTensors& all) { all.at(base + "shape").bytes[0] ^= std::byte{1}; }),
              HasSubstr("asks for"));
  EXPECT_THAT(tensors_error([&](OwnTensors& all) {
                Shape& shape = all.at(base + "packed").info.shape;
                shape = {shape[1], shape[0]};
              }),
              HasSubstr("asks for"));
  EXPECT_THAT(tensors_error([&](OwnTensors& all) {
                Shape& shape = all.at(base + "scale").info.shape;
                shape = {shape[1], shape[0]};
              }),
              HasSubstr("scales"));
  EXPECT_THAT(tensors_error([&](OwnTensors& all) { all[base + "zero_point"] = all.at(base + "scale"); }),
              HasSubstr("no place for"));
  testing::write_tensors(folder_ / "out" / kHfWeights, good);
  const auto config_error = [&](const char* key, const Json& value) {
    Json changed = config;
    changed["quantization_config"]["config_groups"]["group_0"]["weights"][key] = value;
    testing::write_text(folder_ / "out" / kHfConfig, changed.dump());
    return test::message_of<ConfigError>([&] { HfWeights read(folder_ / "out"); });
  };
  EXPECT_THAT(config_error("symmetric", false), HasSubstr("symmetric = false"));
  EXPECT_THAT(config_error("num_bits", 3), HasSubstr("num_bits = 3"));
  EXPECT_THAT(config_error("type", "float"), HasSubstr("type"));
  EXPECT_THAT(config_error("actorder", "group"), HasSubstr("actorder"));
}

}  // namespace
}  // namespace witan
