// Models of transformers compute the same in Witan and are exported unchanged (tests/golden/convert/make_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "convert/convert_support.h"
#include "model/model_support.h"
#include "witan/base/error.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/hf_side.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"
#include "witan/convert/model_function.h"
#include "witan/generate/generation_batch.h"
#include "witan/moe/routers/router.h"

namespace witan {
namespace {

using test::TempFolder;
using testing::Alone;
using testing::golden;
using testing::OwnTensor;
using testing::OwnTensors;
using testing::Rank;
using testing::tensors_in;

class HfModels : public ::testing::TestWithParam<std::string> {
 protected:
  HfModels() : weights_(golden(GetParam())), expected_(tensors_in(golden(GetParam()) / "expected.safetensors")) {
    const Json scalars = Json::object();
    ledger_ = import_weights(weights_, folder_ / "checkpoints", {}, scalars).ledger;
    checkpoint_ = open_checkpoint(folder_ / "checkpoints/step-0");
  }

  template <class T>
  std::vector<T> expected(const std::string& name) const {
    const auto& bytes = expected_.at(name).bytes;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Whether transformers computed in float64.
  bool in_double() const { return expected_.at("logits").info.dtype == "F64"; }
  double tolerance() const { return in_double() ? 1e-11 : 1e-5; }
  std::vector<double> expected_reals(const std::string& name) const {
    if (in_double()) return expected<double>(name);
    const std::vector<float> values = expected<float>(name);
    return {values.begin(), values.end()};
  }

  // The model with the imported weights.
  Transformer& load(Rank& rank, Alone& alone) {
    ModelConfig config = weights_.model();
    config.hidden_dropout = config.attention.attention_dropout = 0;
    config.attention.rope_long_context = long_context_;
    if (in_double()) config.dtype = "float64";
    model_ = std::make_unique<Transformer>(rank.stream, config, 0, alone);
    if (in_double()) {
      for (const Parameter* parameter : model_->parameters())
        weights_.read(parameter->name(), 0, parameter->elements(), parameter->value().data<double>());
      for (const Buffer* buffer : model_->buffers()) {
        if (!weights_.weights().contains(buffer->name())) continue;
        std::vector<double> values(static_cast<size_t>(buffer->value().elements()));
        weights_.read(buffer->name(), 0, buffer->value().elements(), values.data());
        dispatch_floating(buffer->value().dtype(), [&]<class T>() {
          std::ranges::transform(values, buffer->value().data<T>(), [](double value) { return T(value); });
        });
      }
      return *model_;
    }
    std::vector<StateTensor> state;
    for (const Parameter* parameter : model_->parameters())
      state.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->region()});
    for (const Buffer* buffer : model_->buffers())
      state.push_back({.name = buffer->name(),
                       .local = buffer->value(),
                       .global_shape = buffer->spec().shape,
                       .region = {0, buffer->spec().shape.elements()},
                       .kind = StateTensor::Kind::buffer});
    load_tensors(checkpoint_, state);
    return *model_;
  }

  // An export in the folder's style, with its side tensors.
  HfExport as_it_was() {
    HfExport how{weights_.hf().architecture, weights_.style()};
    keep_side_tensors(weights_, folder_ / "hf");
    if (!weights_.style().prefix.empty()) how.side = folder_ / "hf" / kSideTensors;
    return how;
  }

  // Both golden sequences, as two rows.
  ModelInput golden_input(Rank& rank) const {
    const int64_t B = expected_.at("tokens").info.shape[0], S = expected_.at("tokens").info.shape[1];
    const auto tokens = expected<int64_t>("tokens");
    const std::vector<int32_t> ids(tokens.begin(), tokens.end()), zeros(ids.size());
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < B * S; ++i) positions.push_back(static_cast<int32_t>(i % S));
    ModelInput input{rank.tensor(Shape{B, S}, ids),
                     {rank.tensor(Shape{B, S}, positions), rank.tensor(Shape{B, S}, zeros)}};
    input.dropping = Dropping::never;
    return input;
  }

  // The logits of one sequence.
  std::vector<double> logits_of(const std::string& tokens) {
    const auto wide = expected<int64_t>(tokens);
    const std::vector<int32_t> ids(wide.begin(), wide.end()), zeros(wide.size());
    std::vector<int32_t> positions(wide.size());
    std::iota(positions.begin(), positions.end(), 0);
    const Shape shape{1, static_cast<int64_t>(wide.size())};
    ModelInput input{rank_.tensor(shape, ids), {rank_.tensor(shape, positions), rank_.tensor(shape, zeros)}};
    input.dropping = Dropping::never;
    Transformer& model = load(rank_, alone_);
    Tape tape(rank_.stream, Tape::Mode::off);
    return testing::values(model.forward(tape, input).logits.value());
  }

  TempFolder folder_;
  HfWeights weights_;
  const OwnTensors expected_;
  Ledger ledger_;
  Checkpoint checkpoint_;
  Rank rank_;
  Alone alone_;
  std::unique_ptr<Transformer> model_;
  bool long_context_ = false;
};

class HfLongContexts : public HfModels {};
class HfExports : public HfModels {};  // of Witan's own runs, as transformers reads them

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Equal up to this fraction of the largest value, or up to `rounding` if that is more.
::testing::AssertionResult agrees(const std::vector<double>& found, const std::vector<double>& expected, double share,
                                  double rounding = 0) {
  return testing::close(found, expected, std::max(share * largest_of(expected), rounding), 0);
}

// Keeps the experts [T, K] that each router chooses, in ascending order for each token.
struct ChosenExperts : RouteAccess {
  Tensor recorded(int64_t) override { return {}; }
  void record(Stream&, int64_t router, const Tensor& ids, const Tensor&) override {
    std::vector<int32_t>& of_router = chosen[router] = ids.to_vector<int32_t>();
    const int64_t K = ids.shape().last();
    for (auto row = of_router.begin(); row != of_router.end(); row += K) std::sort(row, row + K);
  }
  std::map<int64_t, std::vector<int32_t>> chosen;
};

TEST_P(HfModels, RoutersChooseTransformersExperts) {
  const fs::path routes = golden(GetParam()) / "routes.safetensors";
  ASSERT_EQ(fs::exists(routes), weights_.model().moe.num_experts > 0);
  if (weights_.model().moe.num_experts == 0) return;
  Rank rank;
  Alone alone;
  Transformer& model = load(rank, alone);
  ChosenExperts found;
  model.attach({.routes = &found});
  Tape tape(rank.stream, Tape::Mode::off);
  model.forward(tape, golden_input(rank));
  const OwnTensor experts = tensors_in(routes).at("experts");  // [layers with experts, T, K] int32
  std::vector<int32_t> all;
  for (const auto& [router, chosen] : found.chosen) all.insert(all.end(), chosen.begin(), chosen.end());
  ASSERT_EQ(static_cast<int64_t>(found.chosen.size()), experts.info.shape[0]);
  ASSERT_EQ(all.size() * sizeof all[0], experts.bytes.size());
  EXPECT_EQ(std::memcmp(all.data(), experts.bytes.data(), experts.bytes.size()), 0);
}

TEST_P(HfModels, LogitsAndGradientsMatchTransformers) {
  Rank rank;
  Alone alone;
  Transformer& model = load(rank, alone);
  testing::bind_gradients(rank.stream, model);
  const int64_t B = expected_.at("tokens").info.shape[0], S = expected_.at("tokens").info.shape[1];
  const auto tokens = expected<int64_t>("tokens");
  std::vector<int32_t> targets;
  std::vector<double> share;
  for (int64_t i = 0; i < B * S; ++i) {
    const bool last = i % S == S - 1;
    targets.push_back(last ? 0 : static_cast<int32_t>(tokens[static_cast<size_t>(i + 1)]));
    share.push_back(last ? 0 : 1 / static_cast<double>(B * (S - 1)));
  }
  Tape tape(rank.stream);
  const ModelOutput out = model.forward(tape, golden_input(rank));
  EXPECT_TRUE(agrees(testing::values(out.logits.value()), expected_reals("logits"), tolerance()));
  const Tensor weights = in_double() ? rank.tensor(Shape{B * S}, share)
                                     : rank.tensor(Shape{B * S}, std::vector<float>(share.begin(), share.end()));
  const Var loss = model.loss(tape, out.logits, rank.tensor(Shape{B * S}, targets), weights).loss;
  tape.backward({{loss, {}}});

  const fs::path gradients = folder_ / "gradients";
  testing::write_model(gradients, GetParam(), tensors_in(golden(GetParam()) / "gradient"));
  HfWeights expected_gradients(gradients);
  std::map<std::string, std::vector<double>> of_parameters;
  double largest = 0;
  for (Parameter* parameter : model.parameters()) {
    std::vector<double>& values = of_parameters[parameter->name()];
    values.resize(static_cast<size_t>(parameter->elements()));
    expected_gradients.read(parameter->name(), 0, parameter->elements(), values.data());
    largest = std::max(largest, largest_of(values));
  }
  EXPECT_GT(largest, 1e-2);
  // Some are 0 up to rounding: a key bias shifts all logits of a query equally. Indexers learn from their own loss
  // only, which transformers does not have.
  for (Parameter* parameter : model.parameters()) {
    const std::vector<double>& of_parameter = of_parameters.at(parameter->name());
    if (parameter->frozen) {
      EXPECT_EQ(largest_of(of_parameter), 0) << parameter->name();
      EXPECT_TRUE(is_of_indexer(parameter->name())) << parameter->name();
      continue;
    }
    EXPECT_TRUE(agrees(testing::values(parameter->gradient()), of_parameter, tolerance(), tolerance() / 10 * largest))
        << parameter->name();
  }
}

TEST_P(HfLongContexts, LogitsUseTheLongFactors) {
  EXPECT_THROW(logits_of("long_tokens"), ShapeError) << "the short factors cover 256 positions";
  long_context_ = true;
  EXPECT_TRUE(agrees(logits_of("long_tokens"), expected_reals("long_logits"), tolerance()));
}

INSTANTIATE_TEST_SUITE_P(Golden, HfLongContexts, ::testing::Values("llama_longrope", "phi3_longrope"),
                         [](const auto& model) { return model.param; });

TEST_P(HfExports, HaveTransformersLogits) {
  EXPECT_TRUE(agrees(logits_of("tokens"), expected_reals("logits"), tolerance()));
}

TEST_P(HfExports, AreReadableByTransformers) {
  const HfModel& hf = weights_.hf();
  const Json read = Json::parse(read_file(golden(GetParam()) / kHfConfig)),
             written = Json::parse(write_hf_config(*hf.architecture, hf.model, hf.positions, "float32"));
  for (const auto& [key, value] : written.items()) EXPECT_EQ(value, read.value(key, Json())) << key;
}

INSTANTIATE_TEST_SUITE_P(Golden, HfExports, ::testing::ValuesIn(testing::golden_models("../convert_exported")),
                         [](const auto& model) { return model.param.substr(model.param.rfind('/') + 1); });

TEST_P(HfModels, GreedyTokensMatchTransformers) {
  Rank rank;
  Alone alone;
  Transformer& model = load(rank, alone);
  const auto tokens = expected<int64_t>("tokens"), generated = expected<int64_t>("generated");
  const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + 4);
  GenerateOptions options;
  options.max_tokens = static_cast<int64_t>(generated.size());
  options.sampler.temperature = 0;
  EXPECT_EQ(options.max_tokens, 64);
  EXPECT_THAT(generate(rank.stream, model, prompt, options), ::testing::ElementsAreArray(generated));
}

TEST_P(HfModels, RoundTripByteForByte) {
  CheckpointWeights weights(checkpoint_, weights_.model());
  HfExport how = as_it_was();
  fs::create_directories(folder_ / "out");
  const Ledger back = export_weights(weights, how, folder_ / "out");
  const OwnTensors before = tensors_in(golden(GetParam()));
  EXPECT_EQ(tensors_in(folder_ / "out"), before);
  // Both ledgers contain every tensor with the same hashes.
  std::map<std::string, std::string> source, target;
  for (const LedgerEntry& entry : ledger_.source) source[entry.name] = entry.hash;
  for (const LedgerEntry& entry : back.target) target[entry.name] = entry.hash;
  EXPECT_EQ(source, target);
  EXPECT_EQ(source.size(), before.size());
  for (const LedgerEntry& entry : ledger_.source) EXPECT_TRUE(!entry.others.empty() || !entry.note.empty());
}

TEST_P(HfModels, SmallShardsHoldTheSameTensors) {
  CheckpointWeights weights(checkpoint_, weights_.model());
  HfExport how = as_it_was();
  how.shard_bytes = 5000;
  fs::create_directories(folder_ / "out");
  export_weights(weights, how, folder_ / "out");
  EXPECT_TRUE(fs::exists(folder_ / "out" / kHfIndex));
  EXPECT_EQ(tensors_in(folder_ / "out"), tensors_in(golden(GetParam())));
}

TEST_P(HfModels, WitansOwnConfigDescribesThem) {
  const HfModel& hf = weights_.hf();
  const std::string text = write_hf_config(*hf.architecture, hf.model, hf.positions, "float32");
  const HfModel again = read_hf_config(text, "written");
  EXPECT_THAT(differences(again.model, hf.model), ::testing::IsEmpty());
  EXPECT_EQ(again.positions, hf.positions);
}

INSTANTIATE_TEST_SUITE_P(Golden, HfModels, ::testing::ValuesIn(testing::golden_models()),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace witan
