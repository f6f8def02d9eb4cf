#include "witan/optim/loss_scaler.h"

#include <cmath>
#include <fstream>
#include <limits>

#include "support/rank.h"
#include "witan/optim/clip.h"

namespace witan {
namespace {

using testing::Rank;

struct Seen {
  double initial = 0, least = 0;
  int64_t window = 0, hysteresis = 0;
  bool overflow = false;
  double scale = 0, growth = 0, left = 0;  // after the step

  OptimizerConfig config() const {
    OptimizerConfig config;
    config.initial_loss_scale = initial;
    config.min_loss_scale = least;
    config.loss_scale_window = window;
    config.hysteresis = hysteresis;
    return config;
  }
  bool begins_another(const Seen& before) const { return initial != before.initial; }
};

// tests/golden/optim/make_loss_scale.py recorded the scales of Megatron-LM's DynamicGradScaler.
std::vector<Seen> golden() {
  std::ifstream file(WITAN_SOURCE_DIR "/tests/golden/optim/loss_scale.tsv");
  std::string header;
  std::getline(file, header);
  std::vector<Seen> steps;
  for (Seen s; file >> s.initial >> s.least >> s.window >> s.hysteresis >> s.overflow >> s.scale >> s.growth >> s.left;)
    steps.push_back(s);
  return steps;
}

// A step whose scaled gradients have this norm, clipped to 1.
StepState take(Rank& rank, LossScaler& scaler, double norm) {
  StepState step(rank.stream);
  step.set({0.1}, 1, 1);
  const Tensor total = rank.tensor<double>({2}, {norm * norm, 0});
  scaler.unscale(total);
  clip(rank.stream, step, total, 1);
  scaler.adapt(step);
  return step;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossScaler, ResetsToTheStateOfANewRun) {
  Rank rank;
  const Seen seen{.initial = 64, .least = 1, .window = 4, .hysteresis = 2};
  LossScaler scaler(rank.stream, seen.config());
  for (const double norm : {1.0, kInfinity, kInfinity, 1.0}) take(rank, scaler, norm);
  EXPECT_EQ(scaler.read().scale, 32);
  scaler.reset();
  EXPECT_EQ(scaler.read().scale, 64);
  EXPECT_EQ(scaler.read().growth, 0);
  EXPECT_EQ(scaler.read().hysteresis, 2);
}

TEST(LossScaler, MatchesMegatronsDynamicGradScaler) {
  Rank rank;
  const std::vector<Seen> steps = golden();
  ASSERT_EQ(steps.size(), 240u);
  std::optional<LossScaler> scaler;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Seen& seen = steps[i];
    if (i == 0 || seen.begins_another(steps[i - 1])) scaler.emplace(rank.stream, seen.config());
    const StepState step = take(rank, *scaler, seen.overflow ? kInfinity : 1.0);
    EXPECT_EQ(step.skipped(), seen.overflow) << i;
    const LossScaler::State state = scaler->read();
    EXPECT_EQ(state.scale, seen.scale) << i;
    EXPECT_EQ(state.growth, seen.growth) << i;
    EXPECT_EQ(state.hysteresis, seen.left) << i;
  }
}

TEST(LossScaler, ContinuesFromARestoredState) {
  Rank rank;
  const std::vector<Seen> steps = golden();
  for (const size_t saved : {0u, 7u, 31u}) {
    LossScaler first(rank.stream, steps[0].config()), second(rank.stream, OptimizerConfig(steps[0].config()));
    for (size_t i = 0; i < saved; ++i) take(rank, first, steps[i].overflow ? kInfinity : 1.0);
    second.restore(first.read());
    for (size_t i = saved; i < 60; ++i) take(rank, second, steps[i].overflow ? kInfinity : 1.0);
    EXPECT_EQ(second.read().scale, steps[59].scale);
    EXPECT_EQ(second.read().hysteresis, steps[59].left);
  }
}

// Gradients are divided by the loss scale before they are clipped.
TEST(LossScaler, NormsAndUpdatesUseUnscaledGradients) {
  Rank rank;
  OptimizerConfig config;
  config.initial_loss_scale = 1024;
  config.loss_scale_window = 2;
  LossScaler scaler(rank.stream, config);
  EXPECT_EQ(take(rank, scaler, 512).gradient_scale(), 1.0 / 1024) << "norm 1/2";
  EXPECT_NEAR(take(rank, scaler, 4096).gradient_scale(), 0.25 / 1024, 1e-9) << "norm 4";
  EXPECT_EQ(scaler.read().scale, 2048);
  EXPECT_EQ(take(rank, scaler, 512).gradient_scale(), 1.0 / 2048);
}

TEST(LossScaler, KeepsAConstantScale) {
  Rank rank;
  OptimizerConfig config;
  config.loss_scale = 128;
  config.loss_scale_window = 1;
  LossScaler scaler(rank.stream, config);
  EXPECT_TRUE(take(rank, scaler, kInfinity).skipped());
  EXPECT_EQ(take(rank, scaler, 64).gradient_scale(), 1.0 / 128);
  EXPECT_TRUE(take(rank, scaler, std::nan("")).skipped());
  scaler.restore({4, 0, 2});
  EXPECT_EQ(scaler.read().scale, 128) << "the configuration takes precedence";
}

// A step that is rerun in several passes (kernels/moe/receive_buffer.h) counts once it is complete.
TEST(LossScaler, IgnoresStepsThatWillBeRerun) {
  Rank rank;
  OptimizerConfig config;
  config.hysteresis = 1;
  LossScaler scaler(rank.stream, config);
  const Tensor step = rank.tensor<double>({kernels::kStepValues}, {0.1, 0.5, 1, 1.5, 1, 1});
  kernels::adapt_loss_scale(rank.stream, step, scaler.tensor(), {.hysteresis = 1});
  EXPECT_EQ(scaler.read().scale, 4294967296.0);
  EXPECT_EQ(scaler.read().growth, 0);
}

TEST(LossScaler, ScalesTheInitialGradient) {
  Rank rank;
  OptimizerConfig config;
  config.loss_scale = 256;
  const LossScaler scaler(rank.stream, config);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor weights = rank.stream.empty({2}, dtype), scaled = rank.poisoned({2}, dtype);
    dispatch_floating(dtype, [&]<class A>() {
      weights.data<A>()[0] = A(1.0);
      weights.data<A>()[1] = A(0.125);
    });
    kernels::scale_losses(rank.stream, scaled, weights, scaler.tensor());
    EXPECT_EQ(testing::values(scaled), (std::vector<double>{256, 32}));
  }
}

}  // namespace
}  // namespace witan
