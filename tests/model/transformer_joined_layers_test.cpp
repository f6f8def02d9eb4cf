// Layers connected beyond the residual stream, as in modded-nanogpt: skip connections, and the embedding in later
// layers.
#include <map>

#include "model/model_support.h"
#include "model/nanogpt_reference.h"
#include "witan/model/transformer.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Alone;
using testing::close;
using testing::micro_batch;
using testing::MicroBatch;
using testing::Rank;
using testing::values;

// Compares with the formulas, written as plain loops; decoding word by word must give the results of a full forward.
TEST(Transformer, JoinedLayersFollowTheFormulas) {
  for (const int64_t experts : {0, 4}) {
    Rank rank;
    Alone alone;
    const ModelConfig config = testing::nanogpt_config(experts);
    Transformer model(rank.stream, config, 5, alone);
    testing::NanogptReference reference(config);
    double scalar = 0.3;  // all factors differ
    for (Parameter* parameter : model.parameters()) {
      if (parameter->global_shape() == Shape{1}) parameter->value().data<double>()[0] = scalar += 0.17;
      reference.give(parameter->name(), values(parameter->value()));
    }
    const MicroBatch batch = micro_batch(rank.stream, config, 1, 9);
    const auto logits = testing::logits_of(rank.stream, model, batch.input);
    const std::vector<double> expected = reference.logits(batch.input.tokens.span<int32_t>());
    EXPECT_TRUE(close(logits, expected, 1e-12, 1e-12)) << experts << " experts";

    const auto states = model.make_states(rank.stream, {1, 9});
    for (int64_t word = 0; word < 9; ++word) {
      const ModelInput one =
          step_input(rank.stream, {{0, word, 1}}, batch.input.tokens.span<int32_t>().subspan(size_t(word), 1));
      const auto decoded = values(model.decode(rank.stream, one, states));
      const auto begin = logits.begin() + word * config.vocab_size;
      EXPECT_TRUE(close(decoded, {begin, begin + config.vocab_size}, 1e-12, 1e-12)) << word;
    }
  }
}

// 30 sigmoid(x / (7.5 sqrt D)), with which modded-nanogpt bounds its logits, is 15 more than the bound used here, so
// that probabilities are the same.
TEST(Transformer, SoftCapOfFifteenMatchesNanogptsSigmoid) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({40}, DType::f64, "x", 300));
  const auto capped = values(ops::soft_cap(tape, x, 1 / std::sqrt(64.0), 15).value()), in = values(x.value());
  for (size_t i = 0; i < in.size(); ++i)
    EXPECT_NEAR(capped[i] + 15, 30 / (1 + std::exp(-in[i] / (7.5 * std::sqrt(64.0)))), 1e-12);
}

TEST(Transformer, JoinedLayersStartWithTheirFactors) {
  Rank rank;
  Alone alone;
  ModelConfig config = testing::nanogpt_config(0);
  config.hidden_size = 128;
  const Transformer model(rank.stream, config, 1, alone);
  std::map<std::string, double> factors, deviations;
  for (const Parameter* parameter : model.parameters()) {
    const auto all = values(parameter->value());
    double square = 0;
    for (const double value : all) square += value * value;
    deviations[parameter->name()] = std::sqrt(square / static_cast<double>(all.size()));
    if (parameter->global_shape() != Shape{1}) continue;
    EXPECT_FALSE(parameter->spec().weight_decay);
    factors[parameter->name()] = all.front();
  }
  const std::map<std::string, double> expected = {{"layers.0.residual_scale", 1},
                                                  {"layers.0.embedding_scale", 0},
                                                  {"layers.0.attention.value_scale", .5},
                                                  {"layers.0.attention.embedded_scale", .5},
                                                  {"layers.1.residual_scale", 1},
                                                  {"layers.1.embedding_scale", 0},
                                                  {"layers.1.attention.value_scale", .5},
                                                  {"layers.1.attention.embedded_scale", .5},
                                                  {"layers.2.residual_scale", 1},
                                                  {"layers.2.embedding_scale", 0},
                                                  {"layers.2.skip_scale", 1},
                                                  {"layers.3.residual_scale", 1},
                                                  {"layers.3.embedding_scale", 0},
                                                  {"layers.3.skip_scale", 1},
                                                  {"layers.3.attention.value_scale", .5},
                                                  {"layers.3.attention.embedded_scale", .5}};
  EXPECT_EQ(factors, expected);
  EXPECT_NEAR(deviations.at("embedding.weight"), 1, 0.05);
  EXPECT_NEAR(deviations.at("value_embedding_2.weight"), 1, 0.05);
  EXPECT_NEAR(deviations.at("head.weight"), 0.8 / std::sqrt(128), 0.005);
  EXPECT_NEAR(deviations.at("layers.0.mlp.down_proj.weight"), 0.8 / std::sqrt(12), 0.01);
}

}  // namespace
}  // namespace witan
