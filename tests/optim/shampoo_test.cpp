// Against Distributed Shampoo itself (tests/golden/optim/make_shampoo.py), and what it says of itself.
#include "witan/optim/shampoo.h"

#include <fstream>
#include <map>
#include <sstream>

#include "optim/optim_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

const std::map<std::string, Shape> kShapes = {{"matrix", {5, 3}}, {"vector", {4}}, {"blocks", {7, 3}}};

OptimizerConfig config_of(const std::string& name) {
  OptimizerConfig config;
  config.optimizer = "shampoo";
  config.adam_beta1 = 0.8;
  config.adam_beta2 = 0.95;
  config.adam_eps = 1e-6;
  config.shampoo_beta = name == "sum" ? 1.0 : 0.9;
  config.shampoo_eps = 1e-3;
  config.weight_decay = 0.0625;
  config.max_preconditioner_dim = 5;
  config.precondition_frequency = 3;
  config.start_preconditioning_step = 4;
  config.shampoo_grafting = name == "sgd" || name == "none" ? name : "adam";
  if (name == "exponent") config.shampoo_exponent = 0.4;
  if (name == "newton") config.shampoo_root = "newton";
  return config;
}

double gradient(int64_t i, int64_t step) {
  return static_cast<double>((i * 7919 + step * 104729 + i * i * 31 + step * i * 17) % 1009) / 1009 - 0.5;
}

// A parameter that begins as the script's do, with a gradient to be filled.
struct Trained {
  Trained(Rank& rank, const std::string& name, const Shape& shape, bool expert = false)
      : parameter(rank.stream, {.name = name, .shape = shape, .dtype = DType::f64, .expert = expert},
                  {{0, shape.elements()}, shape}, 1) {
    for (int64_t i = 0; i < shape.elements(); ++i) at(parameter.value(), i) = static_cast<double>(i) / 8;
    parameter.bind_gradient(rank.stream.empty(shape, DType::f64));
    parameter.gradient_written = true;
  }
  static double& at(const Tensor& tensor, int64_t i) { return tensor.data<double>()[i]; }
  void fill(int64_t step) {
    for (int64_t i = 0; i < parameter.elements(); ++i) at(parameter.gradient(), i) = gradient(i, step);
  }
  ParameterShard shard() { return {&parameter, 0, parameter.elements()}; }

  Parameter parameter;
};

using Rows = std::map<std::tuple<std::string, int64_t, std::string>, std::vector<double>>;
Rows golden() {
  std::ifstream file(WITAN_SOURCE_DIR "/tests/golden/optim/shampoo.tsv");
  std::string line;
  std::getline(file, line);
  Rows rows;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, tensor;
    int64_t step = 0;
    words >> name >> step >> tensor;
    std::vector<double>& all = rows[{name, step, tensor}];
    for (double value = 0; words >> value;) all.push_back(value);
  }
  return rows;
}

void make_step(Rank& rank, Optimizer& optimizer, int64_t number, double rate = 0.125) {
  StepState step(rank.stream);
  step.set({rate}, number, number);
  optimizer.update(rank.stream, step);
}

class ShampooGolden : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Cases, ShampooGolden, ::testing::Values("adam", "sgd", "none", "sum", "exponent", "newton"));
TEST_P(ShampooGolden, MakesWhatTheOriginalMakes) {
  static const Rows kRows = golden();
  Rank rank;
  std::map<std::string, std::unique_ptr<Trained>> all;
  std::vector<ParameterShard> shards;
  for (const auto& [name, shape] : kShapes) {
    all[name] = std::make_unique<Trained>(rank, name, shape);
    shards.push_back(all[name]->shard());
  }
  const auto shampoo = make_optimizer(config_of(GetParam()), rank.stream, shards);
  int compared = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    for (auto& [name, one] : all) one->fill(step);
    make_step(rank, *shampoo, step);
    for (auto& [name, one] : all) {
      const auto row = kRows.find({GetParam(), step, name});
      if (row == kRows.end()) continue;
      ++compared;
      EXPECT_TRUE(close(values(one->parameter.value()), row->second, 1e-9, 1e-9)) << name << " at step " << step;
    }
  }
  EXPECT_EQ(compared, 12);
}

TEST(Shampoo, TreatsEveryExpertAsAMatrix) {
  Rank rank;
  Trained stack(rank, "stack", {3, 5, 3}, true), matrix(rank, "matrix", {5, 3});
  const auto of_stack = make_optimizer(config_of("adam"), rank.stream, {stack.shard()});
  const auto of_matrix = make_optimizer(config_of("adam"), rank.stream, {matrix.shard()});
  for (int64_t i = 0; i < 15; ++i)
    Trained::at(matrix.parameter.value(), i) = Trained::at(stack.parameter.value(), 30 + i);
  for (int64_t step = 1; step <= 8; ++step) {
    stack.fill(step);
    for (int64_t i = 0; i < 15; ++i)
      Trained::at(matrix.parameter.gradient(), i) = Trained::at(stack.parameter.gradient(), 30 + i);
    make_step(rank, *of_stack, step);
    make_step(rank, *of_matrix, step);
  }
  EXPECT_EQ(values(matrix.parameter.value()), values(stack.parameter.value().narrow(0, 2, 1)));
}

TEST(Shampoo, KeepsFactorsAndRootsOfBlocks) {
  Rank rank;
  Trained blocks(rank, "blocks", {7, 3});
  std::vector<std::string> kept;
  make_optimizer(config_of("adam"), rank.stream, {blocks.shard()})->visit([&](const OptimizerTensor& state) {
    kept.push_back(cat(state.name, " ", state.parameter.shape, " at ", state.region));
  });
  // 5 x 5 and 3 x 3 of the first five rows, 2 x 2 and 3 x 3 of the last two
  EXPECT_EQ(kept,
            (std::vector<std::string>{"shampoo.factors/blocks [47] at [0, 47)", "shampoo.roots/blocks [47] at [0, 47)",
                                      "shampoo.m/blocks [7, 3] at [0, 21)", "shampoo.v/blocks [7, 3] at [0, 21)"}));
}

TEST(Shampoo, ASkippedStepChangesNothing) {
  Rank rank;
  Trained matrix(rank, "matrix", {5, 3});
  const auto shampoo = make_optimizer(config_of("adam"), rank.stream, {matrix.shard()});
  for (int64_t step = 1; step <= 5; ++step) {
    matrix.fill(step);
    make_step(rank, *shampoo, step);
  }
  const auto all = [&] {
    std::vector<double> numbers = values(matrix.parameter.value());
    shampoo->visit([&](const OptimizerTensor& state) {
      for (const double value : values(state.tensor)) numbers.push_back(value);
    });
    return numbers;
  };
  const auto before = all();
  Trained::at(matrix.parameter.gradient(), 4) = std::nan("");
  StepState step(rank.stream);
  step.set({0.125}, 6, 6);  // at which roots are due
  step.tensor().data<double>()[kernels::step_value::skip] = 1;
  shampoo->update(rank.stream, step);
  EXPECT_EQ(all(), before);
}

TEST(Shampoo, RefusesWhatDoesNotGoTogether) {
  OptimizerConfig config = config_of("newton");
  config.shampoo_exponent = 0.4;
  EXPECT_THAT(test::message_of<ConfigError>([&] { config.validate(); }),
              ::testing::HasSubstr("shampoo_exponent = 0.4 is not 1 over a whole number"));
  config = config_of("adam");
  config.start_preconditioning_step = 2;
  EXPECT_THAT(test::message_of<ConfigError>([&] { config.validate(); }),
              ::testing::HasSubstr("start_preconditioning_step = 2 is below precondition_frequency = 3"));
}

}  // namespace
}  // namespace witan
