#include "witan/optim/optimizer.h"

#include <cmath>
#include <map>

#include "optim/optim_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::close;
using testing::parameter_with_gradient;
using testing::Rank;
using testing::values;

std::vector<std::string> state_of(const Optimizer& optimizer) {
  std::vector<std::string> lines;
  optimizer.visit([&](const OptimizerTensor& state) {
    lines.push_back(cat(state.name, " ", state.tensor.dtype(), state.remainder.defined() ? " and 16 bits " : " ",
                        state.tensor.shape(), " of ", state.parameter.shape, " at ", state.region));
  });
  return lines;
}

TEST(Optimizer, NamesStateForCheckpoints) {
  Rank rank;
  const auto wide = parameter_with_gradient(rank, {"wide", {3, 2}});
  Parameter narrow(rank.stream, {.name = "narrow", .shape = {8, 2, 2}, .dtype = DType::bf16, .expert = true},
                   {{16, 8}, {2, 2, 2}}, 1);
  const auto adam = make_optimizer({}, rank.stream, {{wide.get(), 0, 6}, {&narrow, 0, 8}});
  EXPECT_EQ(
      state_of(*adam),
      (std::vector<std::string>{
          "adam.m/wide float32 [6] of [3, 2] at [0, 6)", "adam.v/wide float32 [6] of [3, 2] at [0, 6)",
          "master/narrow bfloat16 and 16 bits [8] of [8, 2, 2] at [16, 24)",
          "adam.m/narrow float32 [8] of [8, 2, 2] at [16, 24)", "adam.v/narrow float32 [8] of [8, 2, 2] at [16, 24)"}));
  OptimizerConfig config;
  config.optimizer = "sgd";
  EXPECT_EQ(state_of(*make_optimizer(config, rank.stream, {{wide.get(), 2, 4}})),
            (std::vector<std::string>{"sgd.momentum/wide float32 [4] of [3, 2] at [2, 6)"}));
  config.sgd_momentum = 0;
  EXPECT_TRUE(state_of(*make_optimizer(config, rank.stream, {{wide.get(), 0, 6}})).empty());
}

TEST(Optimizer, CanKeepMomentsInBfloat16) {
  Rank rank;
  const auto wide = parameter_with_gradient(rank, {"wide", {3, 2}});
  OptimizerConfig config;
  config.exp_avg_sq_dtype = "bfloat16";
  EXPECT_EQ(state_of(*make_optimizer(config, rank.stream, {{wide.get(), 0, 6}})),
            (std::vector<std::string>{"adam.m/wide float32 [6] of [3, 2] at [0, 6)",
                                      "adam.v/wide bfloat16 [6] of [3, 2] at [0, 6)"}));
  Parameter narrow(rank.stream, {.name = "narrow", .shape = {64, 8}, .dtype = DType::bf16}, {{0, 512}, {64, 8}}, 1);
  config.exp_avg_dtype = "bfloat16";
  const auto before = rank.stream.arena().live(MemoryTag::optimizer);
  const auto adam = make_optimizer(config, rank.stream, {{&narrow, 0, 512}});
  EXPECT_EQ(rank.stream.arena().live(MemoryTag::optimizer) - before, 64 * 8 * (2 + 2 + 2));
}

TEST(Optimizer, AllocatesMastersAndStateAsOptimizerMemory) {
  Rank rank;
  Parameter narrow(rank.stream, {.name = "narrow", .shape = {64, 8}, .dtype = DType::bf16}, {{0, 512}, {64, 8}}, 1);
  const auto adam = make_optimizer({}, rank.stream, {{&narrow, 0, 512}});
  EXPECT_EQ(rank.stream.arena().live(MemoryTag::optimizer), 64 * 8 * (4 + 4 + 2));
}

TEST(Optimizer, DecaysNormsOnlyOnRequest) {
  for (const auto& [name, all] : std::vector<std::pair<const char*, bool>>{{"adam", false},
                                                                           {"sgd", false},
                                                                           {"lion", false},
                                                                           {"ademamix", false},
                                                                           {"adam", true},
                                                                           {"sgd", true},
                                                                           {"lion", true},
                                                                           {"ademamix", true}}) {
    Rank rank;
    const auto matrix = parameter_with_gradient(rank, {"matrix", {2, 2}});
    const auto norm = parameter_with_gradient(rank, {.name = "norm", .shape = {2}, .weight_decay = false});
    std::ranges::fill(matrix->gradient().span<float>(), 0.0f);
    std::ranges::fill(norm->gradient().span<float>(), 0.0f);
    const auto matrix_before = values(matrix->value()), norm_before = values(norm->value());
    OptimizerConfig config;
    config.optimizer = name;
    config.weight_decay = 0.5;
    config.decay_norms_and_biases = all;
    StepState step(rank.stream);
    step.set({0.5}, 1, 1);
    make_optimizer(config, rank.stream, {{matrix.get(), 0, 4}, {norm.get(), 0, 2}})->update(rank.stream, step);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(values(matrix->value())[i], 0.75 * matrix_before[i], 1e-7);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(values(norm->value())[i], (all ? 0.75 : 1) * norm_before[i], 1e-7);
  }
}

TEST(Optimizer, UpdatesOnlyOwnedElements) {
  Rank rank;
  const auto parameter = parameter_with_gradient(rank, {"p", {4, 3}});
  const auto before = values(parameter->value());
  StepState step(rank.stream);
  step.set({0.1}, 1, 1);
  make_optimizer({}, rank.stream, {{parameter.get(), 3, 6}})->update(rank.stream, step);
  const auto after = values(parameter->value());
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(after[i] != before[i], i >= 3 && i < 9) << i;
}

// Closed form: constant gradient g, no decay. m / (1 - beta1^t) = g and v / (1 - beta2^t) = g^2 at every step.
TEST(Optimizer, AdamMovesUniformlyUnderAConstantGradient) {
  Rank rank;
  const auto parameter = parameter_with_gradient(rank, {"p", {5}, DType::f64}, DType::f64);
  const auto before = values(parameter->value()), g = values(parameter->gradient());
  OptimizerConfig config;
  config.weight_decay = 0;
  const auto adam = make_optimizer(config, rank.stream, {{parameter.get(), 0, 5}});
  StepState step(rank.stream);
  for (int64_t update = 1; update <= 50; ++update) {
    step.set({1e-2}, update, update);
    adam->update(rank.stream, step);
  }
  std::vector<double> expected;
  for (size_t i = 0; i < 5; ++i) expected.push_back(before[i] - 0.5 * std::copysign(1.0, g[i]));
  EXPECT_TRUE(close(values(parameter->value()), expected, 1e-6, 0));
}

TEST(Optimizer, ContinuesFromARestoredStateToTheBit) {
  const auto run = [](int64_t updates, Rank& rank, Parameter& parameter, Optimizer& adam, int64_t first) {
    StepState step(rank.stream);
    for (int64_t update = first; update < first + updates; ++update) {
      step.set({1e-2}, update, update);
      adam.update(rank.stream, step);
    }
    return values(parameter.value());
  };
  const auto check = [&](const OptimizerConfig& config) {
    Rank rank;
    const auto whole = parameter_with_gradient(rank, {"p", {40}, DType::bf16});
    const auto straight = make_optimizer(config, rank.stream, {{whole.get(), 0, 40}});
    const auto expected = run(6, rank, *whole, *straight, 1);

    const auto part = parameter_with_gradient(rank, {"p", {40}, DType::bf16});
    const auto first = make_optimizer(config, rank.stream, {{part.get(), 0, 40}});
    run(3, rank, *part, *first, 1);
    const auto own = [](const OptimizerTensor& state) {
      return state.remainder.defined() ? state.remainder : state.tensor;  // the value stays in place
    };
    std::map<std::string, std::vector<std::byte>> saved;
    first->visit([&](const OptimizerTensor& state) {
      saved[state.name].assign(own(state).raw(), own(state).raw() + own(state).bytes());
    });
    const auto second = make_optimizer(config, rank.stream, {{part.get(), 0, 40}});
    second->visit([&](const OptimizerTensor& state) { std::ranges::copy(saved.at(state.name), own(state).raw()); });
    EXPECT_EQ(run(3, rank, *part, *second, 4), expected);
  };
  OptimizerConfig config;
  for (const char* name : {"adam", "sgd", "lion", "ademamix"}) {
    SCOPED_TRACE(config.optimizer = name);
    config.ademamix_warmup_iters = 5;
    check(config);
  }
  config.optimizer = "adam";
  config.exp_avg_dtype = config.exp_avg_sq_dtype = "bfloat16";
  check(config);
}

TEST(Optimizer, RefusesElementsOutOfRange) {
  Rank rank;
  Parameter parameter(rank.stream, {"p", {8, 2}}, {{8, 6}, {3, 2}}, 1);
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              make_optimizer({}, rank.stream, {{&parameter, 4, 3}});
            }),
            "optimizer: p has no elements [4, 7): this rank holds [3, 2]");
  OptimizerConfig config;
  config.optimizer = "adagrad";
  const std::string said = test::message_of<ConfigError>([&] { make_optimizer(config, rank.stream, {}); });
  EXPECT_TRUE(said.starts_with("optimizer = adagrad: must be adam or sgd or lion or ademamix")) << said;
}

TEST(Optimizer, RunsOnMeta) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  Parameter parameter(meta, {"p", {1000, 1000}, DType::bf16}, {{0, 1000000}, {1000, 1000}}, 1);
  parameter.bind_gradient(meta.empty({1000, 1000}, DType::f32, MemoryTag::gradients));
  const auto adam = make_optimizer({}, meta, {{&parameter, 0, 1000000}});
  StepState step(meta);
  step.set({1}, 1, 1);
  adam->update(meta, step);
  EXPECT_FALSE(step.skipped());
  EXPECT_EQ(meta.costs().at("other").at("adamw_all").bytes, 1e6 * (4 + 2 * 12));
  EXPECT_GE(meta.arena().live(MemoryTag::optimizer), 10'000'000);
}

}  // namespace
}  // namespace witan
