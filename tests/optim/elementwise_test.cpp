// Compares Lion and AdEMAMix with their originals (tests/golden/optim/make_golden.py); AdamW and SGD are in
// optimizer_test.cpp.
#include "optim/optim_support.h"

namespace witan {
namespace {

OptimizerConfig ademamix() {
  OptimizerConfig config;
  config.optimizer = "ademamix";
  config.ademamix_beta3 = 0.999;
  config.decay_norms_and_biases = true;
  return config;
}

TEST(AdEMAMix, MatchesTheOriginal) {
  testing::expect_golden_updates(ademamix(), "ademamix");
}

TEST(AdEMAMix, WarmsUpLikeTheOriginal) {
  OptimizerConfig config = ademamix();
  config.ademamix_warmup_iters = 20;
  testing::expect_golden_updates(config, "ademamix_warmup");
}

TEST(AdEMAMix, EqualsAdamWWithoutASlowAverage) {
  testing::Rank rank;
  std::vector<std::vector<double>> results;
  for (const char* name : {"adam", "ademamix"}) {
    const auto parameter = testing::parameter_with_gradient(rank, {"p", {70}, DType::bf16});
    OptimizerConfig config = ademamix();
    config.optimizer = name;
    config.ademamix_alpha = 0;
    const auto optimizer = make_optimizer(config, rank.stream, {{parameter.get(), 0, 70}});
    StepState step(rank.stream);
    for (int64_t update = 1; update <= 3; ++update) {
      step.set({0.01}, update, update);
      optimizer->update(rank.stream, step);
    }
    results.push_back(testing::values(parameter->value()));
  }
  EXPECT_EQ(results[0], results[1]);
}

OptimizerConfig lion() {
  OptimizerConfig config;
  config.optimizer = "lion";
  config.decay_norms_and_biases = true;
  return config;
}

TEST(Lion, MatchesTheOriginal) {
  testing::expect_golden_updates(lion(), "lion");
}

// Steps have the same length for any size of the gradient, and are 0 if gradient and momentum are 0.
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
