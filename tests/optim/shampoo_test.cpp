// Compares with Distributed Shampoo (tests/golden/optim/make_shampoo.py), and tests state and errors.

#include "optim/preconditioned_support.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::CountedParameter;
using testing::make_step;
using testing::Rank;
using testing::values;

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

class ShampooGolden : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Cases, ShampooGolden, ::testing::Values("adam", "sgd", "none", "sum", "exponent", "newton"));
TEST_P(ShampooGolden, MatchesTheOriginal) {
  static const testing::GoldenUpdates kGolden = testing::golden_updates("shampoo.tsv");
  const std::map<std::string, Shape> shapes = {{"matrix", {5, 3}}, {"vector", {4}}, {"blocks", {7, 3}}};
  EXPECT_EQ(testing::compare_updates(config_of(GetParam()), shapes, kGolden, GetParam(), 1e-9), 12);
}

TEST(Shampoo, TreatsEveryExpertAsAMatrix) {
  Rank rank;
  CountedParameter stack(rank, "stack", {3, 5, 3}, true), matrix(rank, "matrix", {5, 3});
  const auto of_stack = make_optimizer(config_of("adam"), rank.stream, {stack.shard()});
  const auto of_matrix = make_optimizer(config_of("adam"), rank.stream, {matrix.shard()});
  const auto copy_last = [](const Tensor& to, const Tensor& from) {
    for (int64_t i = 0; i < 15; ++i) CountedParameter::at(to, i) = CountedParameter::at(from, 30 + i);
  };
  copy_last(matrix.parameter.value(), stack.parameter.value());
  for (int64_t step = 1; step <= 8; ++step) {
    stack.fill_gradient(step);
    copy_last(matrix.parameter.gradient(), stack.parameter.gradient());
    make_step(rank, *of_stack, step);
    make_step(rank, *of_matrix, step);
  }
  EXPECT_EQ(values(matrix.parameter.value()), values(stack.parameter.value().narrow(0, 2, 1)));
}

TEST(Shampoo, KeepsFactorsAndRootsOfBlocks) {
  Rank rank;
  CountedParameter blocks(rank, "blocks", {7, 3});
  std::vector<std::string> kept;
  make_optimizer(config_of("adam"), rank.stream, {blocks.shard()})->visit([&](const OptimizerTensor& state) {
    kept.push_back(cat(state.name, " ", state.parameter.shape, " at ", state.region));
  });
  // 5 x 5 and 3 x 3 for the first five rows, 2 x 2 and 3 x 3 for the last two
  EXPECT_EQ(kept,
            (std::vector<std::string>{"shampoo.factors/blocks [47] at [0, 47)", "shampoo.roots/blocks [47] at [0, 47)",
                                      "shampoo.m/blocks [7, 3] at [0, 21)", "shampoo.v/blocks [7, 3] at [0, 21)"}));
}

TEST(Shampoo, ASkippedStepChangesNothing) {
  Rank rank;
  CountedParameter matrix(rank, "matrix", {5, 3});
  const auto shampoo = make_optimizer(config_of("adam"), rank.stream, {matrix.shard()});
  for (int64_t step = 1; step <= 5; ++step) {
    matrix.fill_gradient(step);
    make_step(rank, *shampoo, step);
  }
  const auto before = testing::values_and_state(matrix.parameter, *shampoo);
  CountedParameter::at(matrix.parameter.gradient(), 4) = std::nan("");
  make_step(rank, *shampoo, 6, true);  // a step that computes roots
  EXPECT_EQ(testing::values_and_state(matrix.parameter, *shampoo), before);
}

TEST(Shampoo, RefusesInvalidCombinations) {
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
