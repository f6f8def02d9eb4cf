#include "witan/optim/lion.h"

#include "optim/optim_support.h"

namespace witan {
namespace {

OptimizerConfig lion() {
  OptimizerConfig config;
  config.optimizer = "lion";
  config.decay_norms_and_biases = true;
  return config;
}

TEST(Lion, TakesTheStepsOfTheOriginal) {
  testing::expect_golden_updates(lion(), "lion");
}

// Whatever a gradient's size, a step is as long; none, where gradient and momentum are 0.
TEST(Lion, StepsAreSigns) {
  testing::Rank rank;
  const auto parameter = testing::parameter_with_gradient(rank, {"p", {3}});
  const auto before = testing::values(parameter->value());
  const std::vector<float> gradient = {1e-20f, -1e20f, 0.0f};
  std::ranges::copy(gradient, parameter->gradient().data<float>());
  OptimizerConfig config = lion();
  config.weight_decay = 0;
  StepState step(rank.stream);
  step.set({0.25}, 1, 1);
  make_optimizer(config, rank.stream, {{parameter.get(), 0, 3}})->update(rank.stream, step);
  EXPECT_TRUE(
      testing::close(testing::values(parameter->value()), {before[0] - 0.25, before[1] + 0.25, before[2]}, 1e-7, 0));
}

}  // namespace
}  // namespace witan
