// Adapters made by PEFT compute the same in Witan, are exported unchanged, and can be merged into one model
// (tests/golden/lora/make_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "convert/convert_support.h"
#include "model/model_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/threads/threads.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::Alone;
using testing::golden;
using testing::OwnTensors;
using testing::Rank;
using testing::tensors_in;

fs::path golden_adapters(const std::string& model) {
  return fs::path(WITAN_SOURCE_DIR) / "tests/golden/lora" / model;
}

std::vector<double> floats(const OwnTensors& tensors, const std::string& name) {
  const auto& bytes = tensors.at(name).bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

// PEFT's name of a Witan parameter, and for experts the order of its elements there.
struct PeftName {
  std::string name;
  bool b_of_experts = false;
};
PeftName peft_name(const std::string& witan, const std::string& factor) {
  const std::string path = witan.substr(0, witan.rfind('.'));
  const std::string layer = path.substr(0, path.find('.', 7)), below = path.substr(layer.size() + 1);
  const std::string here = "base_model.model.model." + layer;
  const std::string last = below.substr(below.rfind('.') + 1);
  const bool b = factor == "B";
  if (below == "moe.experts.gate_up_proj") return {here + ".mlp.experts.base_layer.lora_" + factor + ".weight", b};
  if (below == "moe.experts.down_proj") return {here + ".mlp.experts.lora_" + factor + ".weight", b};
  const std::string module = below.starts_with("attention.")            ? ".self_attn."
                             : below.starts_with("moe.shared_experts.") ? ".mlp.shared_experts."
                                                                        : ".mlp.";
  return {here + module + last + ".lora_" + factor + ".weight", false};
}

// The tensors of the model's checkpoint, with or without its adapters.
std::vector<StateTensor> stored_of(const Transformer& model, bool adapters) {
  std::vector<StateTensor> state;
  for (const Parameter* parameter : model.parameters())
    if (adapters || !is_adapter(parameter->name()))
      state.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->region()});
  for (const Buffer* buffer : model.buffers())
    state.push_back({.name = buffer->name(),
                     .local = buffer->value(),
                     .global_shape = buffer->spec().shape,
                     .region = {0, buffer->spec().shape.elements()},
                     .kind = StateTensor::Kind::buffer});
  return state;
}

CheckpointWeights saved_in(const fs::path& folder, Rank& rank, const Transformer& model, const ModelConfig& config) {
  ThreadWorld world(1);
  world.run([&](int number) {
    const auto alone = world.group(number, {0}, "world");
    CheckpointContent content;
    content.step = 1;
    content.tensors = stored_of(model, true);
    save_checkpoint(*alone, rank.stream, folder, content);
  });
  return CheckpointWeights(open_checkpoint(folder / "step-1"), config);
}

class Peft : public ::testing::TestWithParam<std::string> {
 protected:
  Peft()
      : source_(golden(GetParam())), adapters_(tensors_in(golden_adapters(GetParam()) / "adapter_model.safetensors")) {
    import_weights(source_, folder_ / "base", {}, Json::object());
    const auto config = nlohmann::json::parse(read_file(golden_adapters(GetParam()) / "adapter_config.json"));
    config_ = source_.model();
    config_.lora_rank = config["r"];
    config_.lora_alpha = config["lora_alpha"];
    model_ = std::make_unique<Transformer>(rank_.stream, config_, 0, alone_);
    load_tensors(open_checkpoint(folder_ / "base/step-0"), stored_of(*model_, false));
    for (Parameter* parameter : model_->parameters())
      if (is_adapter(parameter->name())) set(*parameter);
  }

  // PEFT's elements in Witan's order.
  std::vector<double> of_peft(const OwnTensors& tensors, const Parameter& parameter) const {
    const std::string factor = parameter.name().ends_with(kLoraB) ? "B" : "A";
    const PeftName peft = peft_name(parameter.name(), factor);
    const std::vector<double> there = floats(tensors, peft.name);
    if (!peft.b_of_experts) return there;
    const Shape& shape = parameter.global_shape();  // [E, out, r], in PEFT [out, r E]
    std::vector<double> here;
    for (int64_t e = 0; e < shape[0]; ++e)
      for (int64_t n = 0; n < shape[1]; ++n)
        for (int64_t k = 0; k < shape[2]; ++k)
          here.push_back(there[static_cast<size_t>((n * shape[2] + k) * shape[0] + e)]);
    return here;
  }
  void set(Parameter& parameter) const {
    const std::vector<double> values = of_peft(adapters_, parameter);
    ASSERT_EQ(static_cast<int64_t>(values.size()), parameter.elements()) << parameter.name();
    std::ranges::copy(values, parameter.value_shard().data<float>());
  }

  ModelInput input(const OwnTensors& expected) {
    const auto& bytes = expected.at("tokens").bytes;
    std::vector<int64_t> tokens(bytes.size() / sizeof(int64_t));
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    const Shape shape{expected.at("tokens").info.shape[0], expected.at("tokens").info.shape[1]};
    ids_.assign(tokens.begin(), tokens.end());
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < shape.elements(); ++i) positions.push_back(static_cast<int32_t>(i % shape[1]));
    ModelInput made{rank_.tensor(shape, ids_),
                    {rank_.tensor(shape, positions), rank_.tensor(shape, std::vector<int32_t>(ids_.size()))}};
    made.dropping = Dropping::never;
    return made;
  }

  // A checkpoint of the adapted model.
  CheckpointWeights saved() { return saved_in(folder_ / "adapted", rank_, *model_, config_); }

  Rank rank_;
  Alone alone_;
  TempFolder folder_;
  HfWeights source_;
  const OwnTensors adapters_;
  ModelConfig config_;
  std::unique_ptr<Transformer> model_;
  std::vector<int32_t> ids_;
};

::testing::AssertionResult near(const std::vector<double>& found, const std::vector<double>& expected, double least) {
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  return testing::close(found, expected, std::max(1e-5 * largest, least), 0);
}

TEST_P(Peft, LogitsAndGradientsMatchPeft) {
  testing::bind_gradients(rank_.stream, *model_);
  const OwnTensors expected = tensors_in(golden_adapters(GetParam()) / "expected.safetensors"),
                   gradients = tensors_in(golden_adapters(GetParam()) / "gradient.safetensors"),
                   of_base = tensors_in(golden(GetParam()) / "expected.safetensors");
  Tape tape(rank_.stream);
  const ModelInput in = input(of_base);
  const ModelOutput out = model_->forward(tape, in);
  EXPECT_TRUE(near(testing::values(out.logits.value()), floats(expected, "logits"), 0));
  EXPECT_FALSE(near(testing::values(out.logits.value()), floats(of_base, "logits"), 0)) << "adapters have no effect";
  const int64_t tokens = static_cast<int64_t>(ids_.size()), S = in.tokens.size(1);
  std::vector<int32_t> targets(ids_.size());
  std::vector<float> share(ids_.size());
  for (int64_t i = 0; i < tokens; ++i) {
    if (i % S == S - 1) continue;
    targets[static_cast<size_t>(i)] = ids_[static_cast<size_t>(i + 1)];
    share[static_cast<size_t>(i)] = 1 / static_cast<float>(tokens / S * (S - 1));
  }
  const Var loss =
      model_->loss(tape, out.logits, rank_.tensor(Shape{tokens}, targets), rank_.tensor(Shape{tokens}, share)).loss;
  tape.backward({{loss, {}}});
  size_t checked = 0;
  for (Parameter* parameter : model_->parameters()) {
    EXPECT_EQ(parameter->gradient_written, is_adapter(parameter->name())) << parameter->name();
    if (!is_adapter(parameter->name())) continue;
    ++checked;
    EXPECT_TRUE(near(testing::values(parameter->gradient()), of_peft(gradients, *parameter), 1e-7))
        << parameter->name();
  }
  EXPECT_EQ(checked, gradients.size());
}

TEST_P(Peft, AdaptersRoundTrip) {
  CheckpointWeights weights = saved();
  fs::create_directories(folder_ / "out");
  const Ledger ledger = export_peft(weights, *source_.hf().architecture, "", folder_ / "out");
  EXPECT_TRUE(tensors_in(folder_ / "out/adapter_model.safetensors") == adapters_);
  EXPECT_EQ(ledger.target.size(), adapters_.size());
  const auto written = nlohmann::json::parse(read_file(folder_ / "out/adapter_config.json")),
             expected = nlohmann::json::parse(read_file(golden_adapters(GetParam()) / "adapter_config.json"));
  for (const char* key : {"peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias", "fan_in_fan_out"})
    EXPECT_EQ(written[key], expected[key]) << key;
  const auto words = [](const nlohmann::json& list) {
    return list.is_null() ? std::set<std::string>() : std::set<std::string>(list.begin(), list.end());
  };
  EXPECT_EQ(words(written["target_modules"]), words(expected["target_modules"]));
  EXPECT_EQ(words(written.value("target_parameters", nlohmann::json())), words(expected["target_parameters"]));
}

// PEFT gets the dropout, since it may continue the training; a merged model has none.
TEST_P(Peft, ExportsDropoutWithTheAdapters) {
  if (config_.moe.num_experts > 0) GTEST_SKIP() << "adapters of experts have no dropout";
  config_.lora_dropout = 0.125;
  CheckpointWeights weights = saved();
  fs::create_directories(folder_ / "out");
  export_peft(weights, *source_.hf().architecture, "", folder_ / "out");
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "out/adapter_config.json"))["lora_dropout"], 0.125);
  weights.merge_adapters();
  EXPECT_EQ(weights.model().lora_dropout, 0);
}

// W + scale B A is computed in float32 and rounded once, for every element; unadapted weights are the base's.
TEST_P(Peft, MergedWeightsMatchTheFormulaBitwise) {
  CheckpointWeights weights = saved(), plain = saved();
  weights.merge_adapters();
  EXPECT_EQ(weights.model().lora_rank, 0);
  const auto adapters = adapters_of(config_);
  size_t merged = 0;
  for (const auto& [name, shape] : plain.weights()) {
    if (is_adapter(name)) {
      EXPECT_TRUE(weights.merged_into(name).has_value()) << name;
      continue;
    }
    std::vector<float> expected(static_cast<size_t>(shape.elements()));
    std::memcpy(expected.data(), plain.whole(name).bytes.data(), expected.size() * sizeof(float));
    for (const AdapterTensors& of : adapters) {
      if (of.base != name) continue;
      ++merged;
      const auto* a = reinterpret_cast<const float*>(plain.whole(of.a).bytes.data());
      const auto* b = reinterpret_cast<const float*>(plain.whole(of.b).bytes.data());
      const int64_t rows = shape[shape.dims() - 2];
      for (int64_t e = 0; e < of.matrices(); ++e)
        for (int64_t n = 0; n < of.out(); ++n)
          for (int64_t i = 0; i < of.in(); ++i) {
            float sum = 0;
            for (int64_t k = 0; k < of.rank(); ++k)
              sum = std::fma(b[(e * of.out() + n) * of.rank() + k], a[(e * of.rank() + k) * of.in() + i], sum);
            float& to = expected[static_cast<size_t>((e * rows + of.first_row + n) * of.in() + i)];
            to = std::fma(static_cast<float>(config_.lora_alpha / static_cast<double>(config_.lora_rank)), sum, to);
          }
    }
    const HeldTensor found = weights.whole(name);
    ASSERT_EQ(found.bytes.size(), expected.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(found.bytes.data(), expected.data(), found.bytes.size()), 0) << name;
    weights.release();
    plain.release();
  }
  EXPECT_EQ(merged, adapters.size());
}

// The merged folder is a model without adapters that computes the same.
TEST_P(Peft, TheMergedFolderComputesTheSame) {
  CheckpointWeights weights = saved();
  weights.merge_adapters();
  fs::create_directories(folder_ / "merged");
  const Ledger ledger = export_weights(weights, {source_.hf().architecture, source_.style()}, folder_ / "merged");
  EXPECT_EQ(ledger.target.size(), tensors_in(golden(GetParam())).size());
  fs::copy_file(golden(GetParam()) / kHfConfig, folder_ / "merged" / kHfConfig);
  HfWeights merged(folder_ / "merged");
  Transformer model(rank_.stream, merged.model(), 0, alone_);
  import_weights(merged, folder_ / "again", {}, Json::object());
  load_tensors(open_checkpoint(folder_ / "again/step-0"), stored_of(model, true));
  Tape tape(rank_.stream, Tape::Mode::off);
  const ModelOutput out = model.forward(tape, input(tensors_in(golden(GetParam()) / "expected.safetensors")));
  EXPECT_TRUE(near(testing::values(out.logits.value()),
                   floats(tensors_in(golden_adapters(GetParam()) / "expected.safetensors"), "logits"), 0));
}

INSTANTIATE_TEST_SUITE_P(Golden, Peft, ::testing::Values("llama", "olmoe", "qwen3_moe", "deepseek_v3"),
                         [](const auto& model) { return model.param; });

// PEFT takes gate_proj among target_modules for the experts' in a model with experts, and leaves other MLPs without an
// adapter or their tensors unread.
TEST(PeftTargets, MlpsBesideExpertsAreNamedAsParameters) {
  TempFolder folder;
  HfWeights source(golden("qwen3_moe"));
  import_weights(source, folder / "base", {}, Json::object());
  ModelConfig config = source.model();
  config.lora_rank = 2;
  config.lora_target_modules = "q_proj,gate_proj,up_proj";
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 0, alone);
  CheckpointWeights weights = saved_in(folder / "adapted", rank, model, config);
  fs::create_directories(folder / "out");
  export_peft(weights, *source.hf().architecture, "", folder / "out");
  const auto written = nlohmann::json::parse(read_file(folder / "out/adapter_config.json"));
  EXPECT_EQ(written["target_modules"], nlohmann::json::array({"q_proj"}));
  EXPECT_EQ(written["target_parameters"],
            nlohmann::json::array({"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.experts.gate_up_proj"}));
}

TEST(PeftRefusals, NameTheDifference) {
  TempFolder folder;
  HfWeights source(golden("gpt2"));
  import_weights(source, folder / "base", {}, Json::object());
  ModelConfig config = source.model();
  CheckpointWeights plain(open_checkpoint(folder / "base/step-0"), config);
  EXPECT_NE(test::message_of<ConfigError>([&] {
              export_peft(plain, *source.hf().architecture, "", folder / "out");
            }).find("has no adapters"),
            std::string::npos);
  config.lora_rank = 2;
  CheckpointWeights weights(open_checkpoint(folder / "base/step-0"), config);
  EXPECT_EQ(test::message_of<ConfigError>([&] { export_peft(weights, *source.hf().architecture, "", folder / "out"); }),
            "modules of GPT2LMHeadModel hold layers.0.attention.q_proj.weight in another form than PEFT adapts; export "
            "the merged model (--format hf)");
}

TEST(MergeAdapters, Float64IsMergedInFloat64) {
  const std::vector<double> base{1, 2, 3, 4}, a{0.1, 0.2}, b{0.3, 1e-9};
  const AdapterTensors of{"w", "w.lora_A", "w.lora_B", {1, 2}, {2, 1}};
  const auto held = [](const std::vector<double>& values) {
    return HeldTensor{Element::f64, std::as_bytes(std::span(values))};
  };
  std::vector<std::byte> merged;
  ASSERT_EQ(merge_adapters(held(base), {2, 2}, {{of, held(a), held(b)}}, 0.5, merged), Element::f64);
  ASSERT_EQ(merged.size(), sizeof(double) * 4);
  std::vector<double> found(4);
  std::memcpy(found.data(), merged.data(), merged.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(found[i], std::fma(0.5, b[i / 2] * a[i % 2], base[i])) << i;
}

}  // namespace
}  // namespace witan
