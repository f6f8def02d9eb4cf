#include "witan/optim/ademamix.h"

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

TEST(AdEMAMix, TakesTheStepsOfTheOriginal) {
  testing::expect_golden_updates(ademamix(), "ademamix");
}

TEST(AdEMAMix, WarmsUpAsTheOriginal) {
  OptimizerConfig config = ademamix();
  config.ademamix_warmup_iters = 20;
  testing::expect_golden_updates(config, "ademamix_warmup");
}

TEST(AdEMAMix, WithoutASlowAverageIsAdamW) {
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

}  // namespace
}  // namespace witan
