// Adapters made by PEFT compute the same in Witan, are exported unchanged, and can be merged into one model
// (tests/golden/lora/make_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "convert/convert_support.h"
#include "convert/hf/golden_adapters.h"
#include "model/model_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/threads/threads.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/hf/peft_weights.h"
#include "witan/convert/import.h"
#include "witan/model/frozen.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::Alone;
using testing::golden;
using testing::golden_adapters;
using testing::in_double;
using testing::OwnTensors;
using testing::Rank;
using testing::reals;
using testing::tensors_in;

// A module of transformers that joins several matrices: the rows of each in one of `groups` groups of rows. An empty
// name is a matrix without adapters.
struct JoinedModule {
  const char* module;
  std::vector<std::string> matrices;
  std::vector<int64_t> rows;
  int64_t groups = 1;

  int64_t adapted() const { return std::ssize(matrices) - std::ranges::count(matrices, ""); }
};

struct PeftModel {
  std::string name;
  const char* targets = "";  // lora_target_modules
  std::vector<JoinedModule> joined = {};
  std::vector<std::pair<std::string, std::string>> modules = {};  // beginnings of names, Witan's and transformers'
  const char* layers = "model.layers.";
  double tolerance = 1e-5;  // of float32 results
  std::string base = {};    // the golden model; empty: of the same name

  std::string base_name() const { return base.empty() ? name : base; }
};

// PEFT refuses out_proj in models with Mamba-2, which Witan adapts wherever it adapts o_proj.
const std::vector<PeftModel>& peft_models() {
  static const JoinedModule gated{"self_attn.q_proj", {"attention.q_proj", "attention.g_proj"}, {8, 8}, 4};
  static std::vector<PeftModel> models = {
      {"llama"},
      {"olmoe"},
      {"qwen3_moe"},
      {"deepseek_v3"},
      {"nemotron_h_moe",
       "q_proj,k_proj,v_proj,z_proj,x_proj,B_proj,C_proj,up_proj,down_proj",
       {{"mixer.in_proj",
         {"mamba2.z_proj", "mamba2.x_proj", "mamba2.B_proj", "mamba2.C_proj", ""},
         {24, 24, 10, 10, 6}}},
       {{"attention.", "mixer."}, {"moe.", "mixer."}}},
      {"qwen3_next",
       "",
       {{"linear_attn.in_proj_qkvz",
         {"gated_delta.q_proj", "gated_delta.k_proj", "gated_delta.v_proj", "gated_delta.z_proj"},
         {6, 6, 30, 30},
         2},
        gated},
       {{"gated_delta.o_proj", "linear_attn.out_proj"}, {"moe.shared_experts.", "mlp.shared_expert."}}},
      {"qwen3_5_moe_text",
       "",
       {{"linear_attn.in_proj_qkv", {"gated_delta.q_proj", "gated_delta.k_proj", "gated_delta.v_proj"}, {12, 12, 60}},
        gated},
       {{"gated_delta.o_proj", "linear_attn.out_proj"},
        {"gated_delta.z_proj", "linear_attn.in_proj_z"},
        {"moe.shared_experts.", "mlp.shared_expert."}}},
      {"lfm2_moe",
       "",
       {{"conv.in_proj",
         {"short_convolution.B_proj", "short_convolution.C_proj", "short_convolution.x_proj"},
         {16, 16, 16}}},
       {{"short_convolution.o_proj", "conv.out_proj"},
        {"attention.o_proj", "self_attn.out_proj"},
        {"mlp.gate_up_proj.gate_proj", "feed_forward.w1"},
        {"mlp.gate_up_proj.up_proj", "feed_forward.w3"},
        {"mlp.down_proj", "feed_forward.w2"},
        {"moe.", "feed_forward."}}},
      {"deepseek_v4"},
      {"phi3",
       "",
       {{"self_attn.qkv_proj", {"attention.q_proj", "attention.k_proj", "attention.v_proj"}, {16, 8, 8}},
        {"mlp.gate_up_proj", {"mlp.gate_up_proj.gate_proj", "mlp.gate_up_proj.up_proj"}, {24, 24}}}},
      {"gpt2",
       "",
       {{"attn.c_attn", {"attention.q_proj", "attention.k_proj", "attention.v_proj"}, {16, 16, 16}}},
       {{"attention.o_proj", "attn.c_proj"}, {"mlp.up_proj", "mlp.c_fc"}, {"mlp.down_proj", "mlp.c_proj"}},
       "transformer.h."},
      {"granitemoeshared",
       "",
       {{"shared_mlp.input_linear",
         {"moe.shared_experts.gate_up_proj.gate_proj", "moe.shared_experts.gate_up_proj.up_proj"},
         {20, 20}}},
       {{"moe.shared_experts.down_proj", "shared_mlp.output_linear"}, {"moe.", "block_sparse_moe."}}},
      {"kimi_linear",
       "",
       {},
       {{"gated_delta.f_a_proj", "self_attn.forget_gate.f_a_proj"},
        {"gated_delta.f_b_proj", "self_attn.forget_gate.f_b_proj"},
        {"gated_delta.", "self_attn."}}},
      // So steep that PyTorch's logits, too, differ by 8e-5 between float32 and float64.
      {.name = "gemma4_text_small", .tolerance = 5e-4}};
  static const bool with_magnitudes = [&] {
    for (const char* base : {"llama", "phi3", "gpt2"}) {
      PeftModel one = *std::ranges::find(models, base, &PeftModel::name);
      one.base = std::exchange(one.name, cat(base, "_dora"));
      models.push_back(std::move(one));
    }
    return true;
  }();
  (void)with_magnitudes;
  return models;
}

const PeftModel& peft_model(const std::string& name) {
  return *std::ranges::find(peft_models(), name, &PeftModel::name);
}

// PEFT's tensor with an adapter's factor. That of a joined module has rows and columns of others too.
struct PeftPlace {
  std::string name;
  const JoinedModule* joined = nullptr;
  size_t part = 0;

  int64_t part_number() const {  // among those with adapters
    return std::ranges::count_if(joined->matrices.begin(), joined->matrices.begin() + static_cast<int64_t>(part),
                                 [](const std::string& one) { return !one.empty(); });
  }
};
PeftPlace peft_place(const PeftModel& model, const std::string& witan) {
  const std::string path = witan.substr(0, witan.rfind('.')), last = witan.substr(witan.rfind('.') + 1),
                    factor = last == kLoraMagnitude ? "lora_magnitude_vector" : last + ".weight";
  if (!path.starts_with("layers.")) return {cat("base_model.model.model.", path, '.', factor)};
  const size_t dot = path.find('.', 7);
  const std::string below = path.substr(dot + 1);
  const std::string here = cat("base_model.model.", model.layers, path.substr(7, dot - 6));
  const auto named = [&](const std::string& module) { return cat(here, module, '.', factor); };
  for (const JoinedModule& joined : model.joined)
    if (const auto part = std::ranges::find(joined.matrices, below); part != joined.matrices.end())
      return {named(joined.module), &joined, static_cast<size_t>(part - joined.matrices.begin())};
  std::string module = below;
  auto renamed = model.modules;
  renamed.insert(renamed.end(), {{"attention.", "self_attn."}, {"moe.", "mlp."}});
  for (const auto& [from, to] : renamed) {
    if (!module.starts_with(from)) continue;
    module.replace(0, from.size(), to);
    break;
  }
  if (below.starts_with("moe.experts."))
    return {named(cat(module.substr(0, module.rfind('.')), below.ends_with("up_proj") ? ".base_layer" : ""))};
  // gate and up
  if (const size_t at = module.find("gate_up_proj."); at != std::string::npos) module.erase(at, 13);
  return {named(module)};
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
  static std::string base_name() { return peft_model(GetParam()).base_name(); }
  Peft()
      : source_(golden(base_name())),
        adapters_(tensors_in(golden_adapters(GetParam()) / "adapter_model.safetensors")),
        expected_(tensors_in(golden_adapters(GetParam()) / "expected.safetensors")) {
    import_weights(source_, folder_ / "base", {}, Json::object());
    const auto config = nlohmann::json::parse(read_file(golden_adapters(GetParam()) / "adapter_config.json"));
    config_ = source_.model();
    config_.lora_rank = config["r"];
    config_.lora_alpha = config["lora_alpha"];
    config_.lora_use_rslora = config["use_rslora"];
    config_.lora_use_dora = config["use_dora"];
    config_.lora_target_modules = peft_model(GetParam()).targets;
    model_ = std::make_unique<Transformer>(rank_.stream, config_, 0, alone_);
    load_tensors(open_checkpoint(folder_ / "base/step-0"), stored_of(*model_, false));
    for (Parameter* parameter : model_->parameters())
      if (is_adapter(parameter->name())) set(*parameter);
  }

  // PEFT's elements in Witan's order.
  std::vector<double> of_peft(const OwnTensors& tensors, const Parameter& parameter) const {
    const PeftPlace place = peft_place(peft_model(GetParam()), parameter.name());
    const std::vector<double> there = reals(tensors, place.name);
    const Shape& shape = parameter.global_shape();
    const bool is_b = parameter.name().ends_with(kLoraB);
    if (parameter.name().ends_with(kLoraMagnitude)) return place.joined ? rows_of(there, place, shape[0]) : there;
    if (!place.joined && (!is_b || shape.dims() == 2)) return there;
    if (place.joined && !is_b)
      return {there.begin() + place.part_number() * shape.elements(),
              there.begin() + (place.part_number() + 1) * shape.elements()};
    std::vector<double> here;
    if (place.joined) {  // [out, r], in PEFT a block of [rows, n r]
      const auto& rows = place.joined->rows;
      const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0}), own = rows[place.part],
                    first = std::accumulate(rows.begin(), rows.begin() + static_cast<int64_t>(place.part), int64_t{0}),
                    columns = place.joined->adapted() * shape[1];
      for (int64_t n = 0; n < shape[0]; ++n)
        for (int64_t k = 0; k < shape[1]; ++k)
          here.push_back(there[static_cast<size_t>((n / own * all + first + n % own) * columns +
                                                   place.part_number() * shape[1] + k)]);
      return here;
    }
    for (int64_t e = 0; e < shape[0]; ++e)  // [E, out, r], in PEFT [out, r E]
      for (int64_t n = 0; n < shape[1]; ++n)
        for (int64_t k = 0; k < shape[2]; ++k)
          here.push_back(there[static_cast<size_t>((n * shape[2] + k) * shape[0] + e)]);
    return here;
  }
  // The rows of a joined module that are one matrix's.
  static std::vector<double> rows_of(const std::vector<double>& there, const PeftPlace& place, int64_t count) {
    const auto& rows = place.joined->rows;
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0}), own = rows[place.part],
                  first = std::accumulate(rows.begin(), rows.begin() + static_cast<int64_t>(place.part), int64_t{0});
    std::vector<double> here;
    for (int64_t n = 0; n < count; ++n) here.push_back(there[static_cast<size_t>(n / own * all + first + n % own)]);
    return here;
  }
  // The norms of an adapted matrix's rows.
  std::vector<double> norms_of(const std::string& magnitude) {
    const auto adapters = adapters_of(config_);
    const AdapterTensors& of = *std::ranges::find(adapters, magnitude, &AdapterTensors::magnitude);
    std::vector<double> row(static_cast<size_t>(of.in())), norms;
    for (int64_t n = 0; n < of.out(); ++n) {
      source_.read(of.base, (of.first_row + n) * of.in(), of.in(), row.data());
      norms.push_back(std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0)));
    }
    return norms;
  }
  void set(Parameter& parameter) {
    std::vector<double> values = of_peft(adapters_, parameter);
    if (parameter.name().ends_with(kLoraMagnitude))
      std::ranges::transform(values, norms_of(parameter.name()), values.begin(), std::minus<>());
    ASSERT_EQ(static_cast<int64_t>(values.size()), parameter.elements()) << parameter.name();
    put(parameter.value_shard(), values);
  }
  static void put(const Tensor& tensor, const std::vector<double>& values) {
    dispatch_floating(tensor.dtype(), [&]<class T>() {
      std::ranges::transform(values, tensor.data<T>(), [](double value) { return T(value); });
    });
  }

  double tolerance() const { return in_double(expected_, "logits") ? 1e-11 : peft_model(GetParam()).tolerance; }
  // A model with the weights of `source` that computes in the dtype of what is expected.
  std::unique_ptr<Transformer> computing(WeightSource& source, ModelConfig config) {
    if (in_double(expected_, "logits")) config.dtype = "float64";
    auto model = std::make_unique<Transformer>(rank_.stream, config, 0, alone_);
    const auto read = [&](const std::string& name, const Tensor& to) {
      std::vector<double> values(static_cast<size_t>(to.elements()));
      source.read(name, 0, to.elements(), values.data());
      if (to.dtype() == DType::i32)
        std::ranges::copy(values, to.data<int32_t>());
      else
        put(to, values);
    };
    for (Parameter* parameter : model->parameters()) {
      if (is_adapter(parameter->name()))
        set(*parameter);
      else
        read(parameter->name(), parameter->value());
    }
    for (const Buffer* buffer : model->buffers())
      if (source.weights().contains(buffer->name())) read(buffer->name(), buffer->value());
    return model;
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
  const OwnTensors adapters_, expected_;
  ModelConfig config_;
  std::unique_ptr<Transformer> model_;
  std::vector<int32_t> ids_;
};

::testing::AssertionResult near(const std::vector<double>& found, const std::vector<double>& expected, double share,
                                double least = 0) {
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  return testing::close(found, expected, std::max(share * largest, least), 0);
}

TEST_P(Peft, LogitsAndGradientsMatchPeft) {
  const auto model = computing(source_, config_);
  testing::bind_gradients(rank_.stream, *model);
  const OwnTensors gradients = tensors_in(golden_adapters(GetParam()) / "gradient.safetensors"),
                   of_base = tensors_in(golden(base_name()) / "expected.safetensors");
  Tape tape(rank_.stream);
  const ModelInput in = input(of_base);
  const ModelOutput out = model->forward(tape, in);
  EXPECT_TRUE(near(testing::values(out.logits.value()), reals(expected_, "logits"), tolerance()));
  EXPECT_FALSE(near(testing::values(out.logits.value()), reals(of_base, "logits"), 1e-5)) << "adapters have no effect";
  const int64_t tokens = static_cast<int64_t>(ids_.size()), S = in.tokens.size(1);
  std::vector<int32_t> targets(ids_.size());
  std::vector<double> share(ids_.size());
  for (int64_t i = 0; i < tokens; ++i) {
    if (i % S == S - 1) continue;
    targets[static_cast<size_t>(i)] = ids_[static_cast<size_t>(i + 1)];
    share[static_cast<size_t>(i)] = 1 / static_cast<double>(tokens / S * (S - 1));
  }
  const Shape all{tokens};
  const Tensor weights = in_double(expected_, "logits")
                             ? rank_.tensor(all, share)
                             : rank_.tensor(all, std::vector<float>(share.begin(), share.end()));
  const Var loss = model->loss(tape, out.logits, rank_.tensor(all, targets), weights).loss;
  tape.backward({{loss, {}}});
  size_t checked = 0;
  for (Parameter* parameter : model->parameters()) {
    EXPECT_EQ(parameter->gradient_written, is_adapter(parameter->name())) << parameter->name();
    if (!is_adapter(parameter->name())) continue;
    ++checked;
    EXPECT_TRUE(
        near(testing::values(parameter->gradient()), of_peft(gradients, *parameter), tolerance(), tolerance() / 100))
        << parameter->name();
  }
  std::set<std::string> places;
  for (const AdapterTensors& of : adapters_of(config_))
    for (const std::string& factor : {of.a, of.b, of.magnitude})
      if (!factor.empty()) places.insert(peft_place(peft_model(GetParam()), factor).name);
  EXPECT_EQ(places.size(), gradients.size());
  EXPECT_EQ(checked, (config_.lora_use_dora ? 3 : 2) * adapters_of(config_).size());
}

TEST_P(Peft, AdaptersRoundTrip) {
  CheckpointWeights weights = saved();
  fs::create_directories(folder_ / "out");
  const Ledger ledger = export_peft(weights, *source_.hf().architecture, "", folder_ / "out");
  EXPECT_TRUE(tensors_in(folder_ / "out/adapter_model.safetensors") == adapters_);
  EXPECT_EQ(ledger.target.size(), adapters_.size());
  const auto written = nlohmann::json::parse(read_file(folder_ / "out/adapter_config.json")),
             expected = nlohmann::json::parse(read_file(golden_adapters(GetParam()) / "adapter_config.json"));
  for (const char* key : {"peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias",
                          "fan_in_fan_out", "rank_pattern", "alpha_pattern"})
    EXPECT_EQ(written[key], expected[key]) << key;
  const auto words = [](const nlohmann::json& list) {
    return list.is_null() ? std::set<std::string>() : std::set<std::string>(list.begin(), list.end());
  };
  EXPECT_EQ(words(written["target_modules"]), words(expected["target_modules"]));
  EXPECT_EQ(words(written.value("target_parameters", nlohmann::json())), words(expected["target_parameters"]));
}

// Every adapter that PEFT wrote is read, with the keys that describe it.
TEST_P(Peft, FoldersAreReadAsTheyAre) {
  PeftWeights weights(golden_adapters(GetParam()), std::make_unique<HfWeights>(golden(base_name())),
                      *source_.hf().architecture);
  const ModelConfig& model = weights.model();
  EXPECT_EQ(model.lora_rank, config_.lora_rank);
  EXPECT_EQ(model.lora_alpha, config_.lora_alpha);
  EXPECT_EQ(model.lora_use_rslora, config_.lora_use_rslora);
  EXPECT_EQ(model.lora_use_dora, config_.lora_use_dora);
  std::map<std::string, Shape> places = weights.weights();
  for (const Parameter* parameter : model_->parameters()) {
    ASSERT_EQ(places[parameter->name()], parameter->global_shape()) << parameter->name();
    std::vector<double> values(static_cast<size_t>(parameter->elements()));
    const int64_t half = parameter->elements() / 2;
    weights.read(parameter->name(), 0, half, values.data());
    weights.read(parameter->name(), half, parameter->elements() - half, values.data() + half);
    for (double& value : values) value = static_cast<float>(value);
    EXPECT_EQ(values, testing::values(parameter->value())) << parameter->name();
    places.erase(parameter->name());
  }
  for (const Buffer* buffer : model_->buffers()) places.erase(buffer->name());
  EXPECT_TRUE(places.empty());
  const Ledger ledger = weights.ledger();
  ASSERT_EQ(ledger.source.size(), adapters_.size());
  for (const LedgerEntry& entry : ledger.source) EXPECT_FALSE(entry.others.empty()) << entry.name;
  EXPECT_EQ(ledger.target.size(), (config_.lora_use_dora ? 3 : 2) * adapters_of(config_).size());
}

// PEFT gets the dropout, since it may continue the training; a merged model has none.
TEST_P(Peft, ExportsDropoutWithTheAdapters) {
  if (config_.moe.num_experts > 0) GTEST_SKIP() << "adapters of experts have no dropout";
  if (config_.lora_use_dora) GTEST_SKIP() << "adapters with magnitudes have no dropout";
  config_.lora_dropout = 0.125;
  CheckpointWeights weights = saved();
  fs::create_directories(folder_ / "out");
  export_peft(weights, *source_.hf().architecture, "", folder_ / "out");
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "out/adapter_config.json"))["lora_dropout"], 0.125);
  weights.merge_adapters();
  EXPECT_EQ(weights.model().lora_dropout, 0);
}

// Gives rows the norms |W[n]| + change[n].
void rescale(float* rows, const AdapterTensors& of, CheckpointWeights& plain) {
  const auto* changes = reinterpret_cast<const float*>(plain.whole(of.magnitude).bytes.data());
  const auto* base = reinterpret_cast<const float*>(plain.whole(of.base).bytes.data()) + of.first_row * of.in();
  const auto norm = [&](const float* row) {
    double squares = 0;
    for (int64_t i = 0; i < of.in(); ++i) squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    return std::sqrt(squares);
  };
  for (int64_t n = 0; n < of.out(); ++n) {
    float* const row = rows + n * of.in();
    const double factor = (static_cast<double>(changes[n]) + norm(base + n * of.in())) / norm(row);
    for (int64_t i = 0; i < of.in(); ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) * factor);
  }
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
            to = std::fma(static_cast<float>(lora_of(config_)->scale()), sum, to);
          }
      if (!of.magnitude.empty()) rescale(expected.data() + of.first_row * of.in(), of, plain);
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
  EXPECT_EQ(ledger.target.size() + source_.side_tensors().size(), tensors_in(golden(base_name())).size());
  fs::copy_file(golden(base_name()) / kHfConfig, folder_ / "merged" / kHfConfig);
  HfWeights merged(folder_ / "merged");
  const auto model = computing(merged, merged.model());
  Tape tape(rank_.stream, Tape::Mode::off);
  const ModelOutput out = model->forward(tape, input(tensors_in(golden(base_name()) / "expected.safetensors")));
  EXPECT_TRUE(near(testing::values(out.logits.value()), reals(expected_, "logits"), peft_model(GetParam()).tolerance));
}

std::vector<std::string> peft_names() {
  std::vector<std::string> names;
  for (const PeftModel& model : peft_models()) names.push_back(model.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Golden, Peft, ::testing::ValuesIn(peft_names()),
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
  const auto refusal = [&](const std::string& model, int64_t rank) {
    HfWeights source(golden(model));
    import_weights(source, folder / model, {}, Json::object());
    ModelConfig config = source.model();
    config.lora_rank = rank;
    CheckpointWeights weights(open_checkpoint(folder / model / "step-0"), config);
    return test::message_of<ConfigError>([&] { export_peft(weights, *source.hf().architecture, "", folder / "out"); });
  };
  EXPECT_NE(refusal("gpt2", 0).find("has no adapters"), std::string::npos);
  EXPECT_EQ(refusal("gpt_oss", 2),
            "modules of GptOssForCausalLM hold layers.0.moe.experts.gate_up_proj in another form than PEFT adapts; "
            "export the merged model (--format hf)");
  EXPECT_EQ(refusal("nemotron_h_dense", 2),
            "PEFT refuses adapters of out_proj in models of NemotronHForCausalLM, and layers.0.mamba2.o_proj.weight is "
            "one; export the merged model (--format hf), or train with lora_target_modules without o_proj");
}

TEST(MergeAdapters, Float64IsMergedInFloat64) {
  const std::vector<double> base{1, 2, 3, 4}, a{0.1, 0.2}, b{0.3, 1e-9};
  const AdapterTensors of{"w", "w.lora_A", "w.lora_B", {1, 2}, {2, 1}, {}};
  const auto held = [](const std::vector<double>& values) {
    return HeldTensor{Element::f64, std::as_bytes(std::span(values))};
  };
  std::vector<std::byte> merged;
  ASSERT_EQ(merge_adapters(held(base), {2, 2}, {{of, held(a), held(b), {}}}, 0.5, merged), Element::f64);
  ASSERT_EQ(merged.size(), sizeof(double) * 4);
  std::vector<double> found(4);
  std::memcpy(found.data(), merged.data(), merged.size());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(found[i], std::fma(0.5, b[i / 2] * a[i % 2], base[i])) << i;
}

}  // namespace
}  // namespace witan
