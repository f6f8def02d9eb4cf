// Norm, Linear, Embedding and Mlp: shapes, names, choices, errors.
#include "witan/nn/layers.h"

#include "support/dropout.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/module.h"
#include "witan/nn/linear.h"
#include "witan/nn/lora.h"
#include "witan/nn/mlp.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;
using testing::values;

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  for (const Parameter* parameter : module.parameters()) names.push_back(parameter->name());
  return names;
}

Builder builder_of(Rank& rank, DType dtype = DType::f32) {
  return {.stream = rank.stream, .dtype = dtype, .init_std = 0.5, .output_init_std = 0.25, .path = "m"};
}

double deviation(const Tensor& tensor) {
  double square = 0;
  for (const double value : values(tensor)) square += value * value;
  return std::sqrt(square / static_cast<double>(tensor.elements()));
}

TEST(Linear, AppliesTheOpWithItsWeight) {
  Rank rank;
  Linear linear(builder_of(rank), 6, 4, 0.1);
  EXPECT_EQ(names_of(linear), std::vector<std::string>{"m.weight"});
  const Parameter& weight = *linear.parameters()[0];
  EXPECT_EQ(weight.global_shape(), Shape({4, 6}));
  EXPECT_TRUE(weight.spec().weight_decay);
  EXPECT_EQ(weight.spec().init.std, 0.1);
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({2, 3, 6}, DType::f32, "x"));
  const Var y = linear.forward(tape, x);
  EXPECT_EQ(y.shape(), Shape({2, 3, 4}));
  EXPECT_EQ(values(y.value()), values(ops::linear(tape, x, tape.constant(weight.value()), {}).value()));
  EXPECT_THROW(linear.forward(tape, tape.constant(rank.normal({2, 5}, DType::f32, "x"))), ShapeError);
}

TEST(Linear, BiasStartsAtZeroWithoutWeightDecay) {
  Rank rank;
  Linear linear(builder_of(rank), 6, 4, 0.1, Bias::zeros);
  EXPECT_EQ(names_of(linear), (std::vector<std::string>{"m.weight", "m.bias"}));
  const Parameter& bias = *linear.parameters()[1];
  EXPECT_EQ(bias.global_shape(), Shape{4});
  EXPECT_FALSE(bias.spec().weight_decay);
  EXPECT_EQ(values(bias.value()), std::vector<double>(4, 0.0));
  std::ranges::copy(std::vector<float>{1, 2, 3, 4}, bias.value().data<float>());
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({2, 3, 6}, DType::f32, "x"));
  const Var weight = tape.constant(linear.parameters()[0]->value()), b = tape.constant(bias.value());
  EXPECT_EQ(values(linear.forward(tape, x).value()), values(ops::linear(tape, x, weight, b).value()));
}

TEST(Dropout, IsOffWithoutAStep) {
  Rank rank;
  const auto drawn = testing::dropout_of(rank, 0.5);
  const Randomness randomness{drawn.seed, drawn.step, drawn.micro_batch};
  const Dropout here(builder_of(rank) / "here", 0.5), there(builder_of(rank) / "there", 0.5),
      never(builder_of(rank) / "here", 0);
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({999}, DType::f32, "x"));
  EXPECT_EQ(here.forward(tape, x, {}).value().raw(), x.value().raw());
  EXPECT_EQ(never.forward(tape, x, randomness).value().raw(), x.value().raw());
  auto expected = drawn;
  expected.site = Philox::stream_of("m.here");
  EXPECT_EQ(values(here.forward(tape, x, randomness).value()), values(ops::dropout(tape, x, expected).value()));
  EXPECT_NE(values(here.forward(tape, x, randomness).value()), values(there.forward(tape, x, randomness).value()));
}

// +-alpha / sqrt(L D) whatever part of a sequence of L tokens is here, and nothing without a step.
TEST(EmbeddingNoise, AddsNoiseOfTheSequencesLength) {
  Rank rank;
  const auto drawn = testing::dropout_of(rank, 0.5);
  Randomness randomness{drawn.seed, drawn.step, drawn.micro_batch};
  randomness.sequence_length = 64;
  const EmbeddingNoise noise(builder_of(rank) / "here", 5), never(builder_of(rank) / "here", 0);
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.stream.zeros({2, 64, 10}, DType::f64));
  EXPECT_EQ(noise.forward(tape, x, {}).value().raw(), x.value().raw());
  EXPECT_EQ(never.forward(tape, x, randomness).value().raw(), x.value().raw());
  const std::vector<double> whole = values(noise.forward(tape, x, randomness).value());
  const double most = 5 / std::sqrt(64 * 10.0);
  EXPECT_LE(std::ranges::max(whole), most);
  EXPECT_GT(std::ranges::max(whole), 0.99 * most);
  EXPECT_LT(std::ranges::min(whole), -0.99 * most);
  randomness.positions = {.first = 16, .split = 16, .second = 48};
  const Var part = tape.constant(rank.stream.zeros({2, 32, 10}, DType::f64));
  const std::vector<double> found = values(noise.forward(tape, part, randomness).value());
  for (size_t row = 0; row < 2; ++row)
    for (size_t i = 0; i < 320; ++i) {
      const size_t position = i / 10 < 16 ? 16 + i / 10 : 32 + i / 10;
      ASSERT_EQ(found[row * 320 + i], whole[row * 640 + position * 10 + i % 10]);
    }
}

TEST(Embedding, LooksUpRowsAndComputesLogits) {
  Rank rank;
  Embedding embedding(builder_of(rank), 7, 4);
  EXPECT_EQ(names_of(embedding), std::vector<std::string>{"m.weight"});
  const Tensor weight = embedding.parameters()[0]->value();
  EXPECT_EQ(weight.shape(), Shape({7, 4}));
  Tape tape(rank.stream, Tape::Mode::off);
  const Var y = embedding.forward(tape, rank.tensor<int32_t>({1, 2}, {6, 0}));
  EXPECT_EQ(y.shape(), Shape({1, 2, 4}));
  EXPECT_EQ(values(y.value().reshape({2, 4}).narrow(0, 0, 1)), values(weight.narrow(0, 6, 1)));
  const Var logits = embedding.logits(tape, y);
  EXPECT_EQ(logits.shape(), Shape({1, 2, 7}));
  EXPECT_EQ(values(logits.value()), values(ops::linear(tape, y, tape.constant(weight), {}).value()));
  EXPECT_THROW(embedding.forward(tape, rank.tensor<int32_t>({1}, {7})), DataError);
}

TEST(Norm, FollowsItsConfiguration) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({2, 3, 8}, DType::f64, "x"));
  NormConfig config;
  Norm rms(builder_of(rank, DType::f64), config, 8);
  EXPECT_EQ(names_of(rms), std::vector<std::string>{"m.weight"});
  EXPECT_FALSE(rms.parameters()[0]->spec().weight_decay);
  const Var ones = tape.constant(rms.parameters()[0]->value());
  EXPECT_EQ(values(ones.value()), std::vector<double>(8, 1.0));
  EXPECT_EQ(values(rms.forward(tape, x, false).value()), values(ops::rmsnorm(tape, x, ones, 1e-5).value()));

  config.normalization = "LayerNorm";
  config.norm_epsilon = 0.5;
  Norm plain(builder_of(rank, DType::f64), config, 8);
  EXPECT_EQ(values(plain.forward(tape, x, false).value()), values(ops::layernorm(tape, x, ones, {}, 0.5).value()));
  config.norm_bias = true;
  Norm biased(builder_of(rank, DType::f64), config, 8);
  EXPECT_EQ(names_of(biased), (std::vector<std::string>{"m.weight", "m.bias"}));
  EXPECT_EQ(values(biased.parameters()[1]->value()), std::vector<double>(8, 0.0));
  EXPECT_FALSE(biased.parameters()[1]->spec().weight_decay);
  EXPECT_EQ(biased.forward(tape, x, true).shape(), x.shape());
}

TEST(Norm, WithAnAddedOneBeginsAtZeroAsTheSameFunction) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.normal({2, 3, 8}, DType::f64, "x")), y = tape.constant(x.value());
  for (const char* kind : {"RMSNorm", "LayerNorm"}) {
    NormConfig config;
    config.normalization = kind;
    Norm plain(builder_of(rank, DType::f64), config, 8);
    config.apply_layernorm_1p = true;
    Norm centered(builder_of(rank, DType::f64), config, 8);
    EXPECT_EQ(values(centered.parameters()[0]->value()), std::vector<double>(8, 0.0));
    for (const bool rematerialise : {false, true}) {
      EXPECT_EQ(values(centered.forward(tape, x, rematerialise).value()),
                values(plain.forward(tape, x, rematerialise).value()));
      EXPECT_EQ(values(centered.forward_sum(tape, x, y, rematerialise).normed.value()),
                values(plain.forward_sum(tape, x, y, rematerialise).normed.value()));
    }
    config.norm_weight = false;
    Norm bare(builder_of(rank, DType::f64), config, 8);
    EXPECT_EQ(values(bare.forward(tape, x, false).value()), values(plain.forward(tape, x, false).value()));
    EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
              "norm_weight = false and apply_layernorm_1p = true: norms have no weight that 1 is added to; set "
              "apply_layernorm_1p = false");
  }
}

TEST(NormConfig, ABiasNeedsLayerNorm) {
  NormConfig config;
  config.norm_bias = true;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "norm_bias = true: RMSNorm has no bias; use normalization = \"LayerNorm\" or drop norm_bias");
  config.normalization = "LayerNorm";
  config.validate();
  EXPECT_THROW(set_field(config.fields(), "normalization", "BatchNorm", "test"), ConfigError);
  EXPECT_THROW(set_field(config.fields(), "norm_epsilon", "0", "test"), ConfigError);
}

TEST(Mlp, HasTheWeightsOfItsActivation) {
  Rank rank;
  MlpConfig config;
  config.ffn_hidden_size = 30;
  Mlp swiglu(builder_of(rank), config, 20);
  EXPECT_EQ(names_of(swiglu), (std::vector<std::string>{"m.gate_up_proj.weight", "m.down_proj.weight"}));
  EXPECT_EQ(swiglu.parameters()[0]->global_shape(), Shape({60, 20}));
  EXPECT_EQ(swiglu.parameters()[1]->global_shape(), Shape({20, 30}));
  EXPECT_NEAR(deviation(swiglu.parameters()[0]->value()), 0.5, 0.05);
  EXPECT_NEAR(deviation(swiglu.parameters()[1]->value()), 0.25, 0.05) << "projections into the residual stream";
  config.swiglu = false;
  config.geglu = true;
  EXPECT_EQ(names_of(Mlp(builder_of(rank), config, 20)), names_of(swiglu));
  config.geglu = false;
  Mlp gelu(builder_of(rank), config, 20);
  EXPECT_EQ(names_of(gelu), (std::vector<std::string>{"m.up_proj.weight", "m.down_proj.weight"}));
  EXPECT_EQ(gelu.parameters()[0]->global_shape(), Shape({30, 20}));
  EXPECT_THROW(set_field(config.fields(), "ffn_hidden_size", "0", "test"), ConfigError);
}

TEST(Mlp, ComposesItsOps) {
  Rank rank;
  for (const auto& [name, tanh] : std::vector<std::pair<std::string, bool>>{{"swiglu", false},
                                                                            {"geglu", false},
                                                                            {"geglu", true},
                                                                            {"gelu", false},
                                                                            {"gelu", true},
                                                                            {"squared_reglu", false}}) {
    MlpConfig config;
    config.ffn_hidden_size = 5;
    config.swiglu = name == "swiglu";
    config.geglu = name == "geglu";
    config.squared_reglu = name == "squared_reglu";
    config.gelu_tanh = tanh;
    Mlp mlp(builder_of(rank, DType::f64), config, 4);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var x = tape.constant(rank.normal({2, 3, 4}, DType::f64, "x"));
    const auto weight = [&](size_t i) { return tape.constant(mlp.parameters()[i]->value()); };
    const Var h = ops::linear(tape, x, weight(0), {});
    const GeluKind kind = tanh ? GeluKind::tanh : GeluKind::exact;
    const Var a = name == "swiglu"          ? ops::swiglu(tape, h, {})
                  : name == "squared_reglu" ? ops::squared_reglu(tape, h, {})
                  : name == "geglu"         ? ops::geglu(tape, h, {}, nullptr, kind)
                                            : ops::gelu(tape, h, {}, nullptr, kind);
    EXPECT_EQ(values(mlp.forward(tape, x, false).value()), values(ops::linear(tape, a, weight(1), {}).value()));
  }
}

TEST(Mlp, RefusesTwoActivations) {
  MlpConfig config;
  config.geglu = true;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "geglu = true and swiglu = true are two activations; set swiglu = false");
  config.swiglu = false;
  config.validate();
  config.squared_reglu = true;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "squared_reglu = true and geglu = true are two activations; set geglu = false");
  config.geglu = false;
  config.validate();
}

struct Results {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> dparameters;
  bool operator==(const Results&) const = default;
};

TEST(Rematerialising, NormAndMlpChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::string normalization : {"RMSNorm", "LayerNorm"}) {
      const auto run = [&](bool rematerialise) {
        Rank rank;
        NormConfig norm_config;
        norm_config.normalization = normalization;
        norm_config.norm_bias = normalization == "LayerNorm";
        Norm norm(builder_of(rank, dtype) / "norm", norm_config, 12);
        MlpConfig config;
        config.ffn_hidden_size = 9;
        config.swiglu = normalization == "RMSNorm";
        Mlp mlp(builder_of(rank, dtype) / "mlp", config, 12);
        testing::bind_gradients(rank.stream, norm);
        testing::bind_gradients(rank.stream, mlp);
        Tape tape(rank.stream);
        const Var x = tape.input(rank.normal({3, 7, 12}, dtype, "x"));
        const Var y = mlp.forward(tape, norm.forward(tape, x, rematerialise), rematerialise);
        tape.backward({{y, rank.normal(y.shape(), dtype, "dy")}});
        auto gradients = testing::gradients_of(norm);
        for (const auto& gradient : testing::gradients_of(mlp)) gradients.push_back(gradient);
        return Results{values(y.value()), values(tape.gradient(x)), gradients};
      };
      EXPECT_EQ(run(false), run(true)) << dtype << " " << normalization;
    }
}

TEST(Lora, StartsWithPyTorchsDefaultDeviation) {
  EXPECT_DOUBLE_EQ(lora_init(12).std, 1.0 / 6);  // uniform in +-1 / sqrt(12)
}

}  // namespace
}  // namespace witan
