#include "witan/model/mtp.h"

#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "model/model_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::loss_of;
using testing::micro_batch;
using testing::MicroBatch;
using testing::Rank;
using testing::tiny_config;
using testing::values;

// The sizes in make_mtp.py.
constexpr int64_t kVocabulary = 16, kRows = 2, kLength = 7;
constexpr double kFactor = 0.3;

ModelConfig golden_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.vocab_size = kVocabulary;
  config.untie_embeddings_and_output_weights = true;
  config.dtype = "float64";
  config.mlp.ffn_hidden_size = 12;
  config.attention.num_attention_heads = config.attention.num_query_groups = 2;
  config.moe.num_experts = 0;
  config.mtp_num_layers = 2;
  config.mtp_loss_scaling_factor = kFactor;
  return config;
}

// The targets of a module, [T], and the weight of each.
struct AheadTargets {
  Tensor targets, weights;
};

// The batch `by` positions ahead; token(b, i) is the token of row b at i.
template <class Token, class Counts>
std::pair<AheadInput, AheadTargets> ahead_of(Rank& rank, int64_t rows, int64_t length, int64_t by, const Token& token,
                                             const Counts& counts) {
  std::vector<int32_t> tokens, positions, targets;
  std::vector<double> weights;
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t i = 0; i < length; ++i) {
      const bool there = i + by < length;
      tokens.push_back(there ? token(b, i + by) : 0);
      positions.push_back(there ? static_cast<int32_t>(i + by) : 0);
      targets.push_back(there ? token(b, i + by + 1) : 0);
      weights.push_back(there ? counts(b, i + by) : 0);
    }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  const Shape shape{rows, length}, flat{rows * length};
  return {{rank.tensor(shape, tokens), rank.tensor(shape, positions)},
          {rank.tensor(flat, targets), rank.tensor(flat, weights)}};
}

// A line of mtp.tsv.
struct MtpRow {
  std::string name;
  double phase, value;
};
std::vector<MtpRow> mtp_rows() {
  std::vector<MtpRow> rows;
  std::ifstream file(WITAN_SOURCE_DIR "/tests/golden/nn/mtp.tsv");
  for (std::string name, phase, value; file >> name >> phase >> value;)
    rows.push_back({name, std::stod(phase), std::stod(value)});
  return rows;
}

TEST(Mtp, LossesAndGradientsMatchMegatron) {
  const std::vector<MtpRow> rows = mtp_rows();
  const ModelConfig config = golden_config();
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 1, alone);
  bind_gradients(rank.stream, model);
  const auto parameters = model.parameters();
  ASSERT_EQ(parameters.size() + 3, rows.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    ASSERT_EQ(parameters[p]->name(), rows[p + 3].name);
    const double more = parameters[p]->name().find("norm") == std::string::npos ? 0 : 1;
    for (int64_t i = 0; i < parameters[p]->elements(); ++i)
      parameters[p]->value().data<double>()[i] =
          0.5 * std::sin(1.3 * static_cast<double>(i) + rows[p + 3].phase) + more;
  }
  const auto token = [](int64_t b, int64_t i) {
    return static_cast<int32_t>((5 * i * i + 3 * i + 2 * b) % kVocabulary);
  };
  const auto counts = [](int64_t b, int64_t i) { return (i + b) % 5 == 2 ? 0.0 : 1.0; };
  const auto [here, own] = ahead_of(rank, kRows, kLength, 0, token, counts);
  ModelInput input{here.tokens, {here.positions, {}}};
  std::vector<AheadTargets> further;
  for (const int64_t by : {1, 2}) {
    auto [ahead, targets] = ahead_of(rank, kRows, kLength, by, token, counts);
    input.ahead.push_back(ahead);
    further.push_back(targets);
  }
  Tape tape(rank.stream);
  const ModelOutput out = model.forward(tape, input);
  const Var loss = model.loss(tape, out.logits, own.targets, own.weights).loss;
  EXPECT_NEAR(loss.value().data<double>()[0], rows[0].value, 1e-12);
  std::vector<std::pair<Var, double>> terms = {{loss, 1}};
  for (size_t module = 0; module < 2; ++module) {
    const Var ahead = model.loss(tape, out.ahead[module], further[module].targets, further[module].weights).loss;
    EXPECT_NEAR(ahead.value().data<double>()[0], rows[module + 1].value, 1e-12);
    terms.emplace_back(ahead, kFactor / 2);
  }
  tape.backward({{ops::weighted_sum(tape, terms), {}}});
  for (size_t p = 0; p < parameters.size(); ++p) {
    double sum = 0;
    const auto gradient = values(parameters[p]->gradient());
    for (size_t i = 0; i < gradient.size(); ++i) sum += gradient[i] * std::cos(0.7 * static_cast<double>(i));
    const double expected = rows[p + 3].value;
    EXPECT_NEAR(sum, expected, 1e-10 * std::max(1.0, std::abs(expected))) << parameters[p]->name();
  }
}

// The training loss: the model's, the modules' and the routers'.
double whole_loss(Tape& tape, Transformer& model, const MicroBatch& batch, const std::vector<AheadTargets>& further,
                  bool backward) {
  const ModelOutput out = model.forward(tape, batch.input);
  const MoeConfig& moe = model.config().moe;
  std::vector<std::pair<Var, double>> terms = {{model.loss(tape, out.logits, batch.targets, batch.weights).loss, 1}};
  for (size_t module = 0; module < further.size(); ++module)
    terms.emplace_back(model.loss(tape, out.ahead[module], further[module].targets, further[module].weights).loss, 0.4);
  for (const RouterRecord& router : out.routers)
    terms.emplace_back(router.loss(kBalanceLoss), moe.balance_losses().front().coefficient);
  const Var loss = ops::weighted_sum(tape, terms);
  if (backward) tape.backward({{loss, {}}});
  return loss.value().data<double>()[0];
}

void expect_gradients_of_differences(const ModelConfig& config) {
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, config, 5, alone);
  bind_gradients(rank.stream, model);
  MicroBatch batch = micro_batch(rank.stream, config, 2, 7, 3);
  std::vector<AheadTargets> further;
  for (int64_t by = 1; by <= config.mtp_num_layers; ++by) {
    auto [ahead, targets] = ahead_of(
        rank, 2, 7, by, [](int64_t b, int64_t i) { return static_cast<int32_t>((3 * i + 7 * b) % 23); },
        [](int64_t, int64_t i) { return i == 3 ? 0.0 : 1.0; });
    batch.input.ahead.push_back(ahead);
    further.push_back(targets);
  }
  Tape tape(rank.stream);
  whole_loss(tape, model, batch, further, true);
  const auto without_tape = [&] {
    Tape off(rank.stream, Tape::Mode::off);
    return whole_loss(off, model, batch, further, false);
  };
  constexpr double h = 1e-5;
  for (Parameter* parameter : model.parameters()) {
    const Philox rng(1, Philox::stream_of(parameter->name()));
    const auto gradient = values(parameter->gradient());
    for (uint64_t draw = 0; draw < 3; ++draw) {
      const auto i = rng.below(static_cast<uint64_t>(parameter->elements()), draw);
      double& w = parameter->value().data<double>()[i];
      const double before = w;
      w = before + h;
      const double above = without_tape();
      w = before - h;
      const double below = without_tape();
      w = before;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 1e-8) << parameter->name() << " [" << i << "]";
    }
  }
}

TEST(Mtp, GradientsMatchDifferences) {
  for (const int64_t experts : {0, 4})
    for (const char* granularity : {"none", "selective", "full"}) {
      SCOPED_TRACE(cat(experts, " experts, ", granularity));
      ModelConfig config = tiny_config(experts);
      config.mtp_num_layers = 2;
      config.recompute_granularity = granularity;
      config.untie_embeddings_and_output_weights = experts > 0;
      expect_gradients_of_differences(config);
    }
  ModelConfig config = testing::dropping_config(4);  // with dropout and learned positions
  config.mtp_num_layers = 1;
  config.embedding_norm = true;
  expect_gradients_of_differences(config);
}

TEST(Mtp, BlocksMatchTheLastLayer) {
  ModelConfig config = testing::mixed_config();
  config.mtp_num_layers = 2;
  const std::vector<LayerSpec> layers = layers_with_mtp(config);
  ASSERT_EQ(layers.size(), 5u);
  EXPECT_TRUE(layers[3].moe && layers[4].moe);
  EXPECT_EQ(window_of(layers[4].mixer), window_of(layers[2].mixer));
}

// Without tokens ahead, the modules do not run, and change nothing.
TEST(Mtp, EvaluationSkipsThem) {
  ModelConfig with = tiny_config(4);
  with.mtp_num_layers = 1;
  Rank rank;
  Alone alone;
  Transformer model(rank.stream, tiny_config(4), 5, alone), more(rank.stream, with, 5, alone);
  const MicroBatch batch = micro_batch(rank.stream, with, 2, 7);
  EXPECT_EQ(testing::logits_of(rank.stream, model, batch.input), testing::logits_of(rank.stream, more, batch.input));
}

TEST(Mtp, RefusesInputsThatItsBlocksCannotRead) {
  ModelConfig config = tiny_config(0);
  config.mtp_num_layers = 1;
  config.embedding_residual = true;
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(); }),
            "mtp_num_layers = 1: MTP modules read the residual stream only, and cannot be combined with "
            "value_embedding_freq, skip_connections, embedding_residual or hidden_size_per_layer_input; set "
            "mtp_num_layers = 0, or leave these out");
}

}  // namespace
}  // namespace witan
