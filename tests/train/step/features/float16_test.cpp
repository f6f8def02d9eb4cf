// Float16 models: losses are scaled before the backward, and a step whose gradients overflow is skipped by every rank
// and changes the scale. All layouts agree.
#include <gtest/gtest.h>

#include <cmath>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"
#include "witan/planner/plan.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

constexpr int64_t kSteps = 5;

RunConfig recipe() {
  RunConfig config = small_config();
  config.model.dtype = "float16";
  config.model.attention.num_attention_heads = 4;
  config.model.attention.num_query_groups = 2;
  config.optimizer.initial_loss_scale = 1024;
  return laid_out(config, {});
}

// The run starts with a scale at which gradients overflow until the scale has fallen.
RunConfig overflowing() {
  RunConfig config = recipe();
  config.optimizer.initial_loss_scale = 0x1p26;
  config.optimizer.hysteresis = 1;
  return config;
}

int64_t skipped(const Trajectory& run) {
  return std::ranges::count_if(run.norms, [](double norm) { return !std::isfinite(norm); });
}

TEST(Float16, TrainsLikeFloat32) {
  RunConfig wide = recipe();
  wide.model.dtype = "float32";
  const Trajectory narrow = run_engine(recipe(), 12), expected = run_engine(wide, 12);
  ASSERT_EQ(skipped(narrow), 0);
  EXPECT_LT(narrow.losses.back(), narrow.losses.front());
  for (size_t step = 0; step < narrow.losses.size(); ++step) {
    EXPECT_NEAR(narrow.losses[step], expected.losses[step], 2e-3 * expected.losses[step]) << step;
    EXPECT_NEAR(narrow.norms[step], expected.norms[step], 2e-2 * expected.norms[step]) << step;
  }
  ASSERT_EQ(narrow.layer_norms.size(), 12u * 4);
  for (size_t i = 0; i < narrow.layer_norms.size(); ++i)
    EXPECT_NEAR(narrow.layer_norms[i], expected.layer_norms[i], 5e-2 * expected.layer_norms[i])
        << "gradients without the loss scale, " << i;
  EXPECT_NE(narrow.losses, expected.losses);
}

// Scaling by powers of two does not round within float16's range.
TEST(Float16, TheScaleChangesOnlyRounding) {
  RunConfig other = recipe();
  other.optimizer.loss_scale = 4096;
  const Trajectory a = run_engine(recipe(), kSteps), b = run_engine(other, kSteps);
  for (size_t step = 0; step < a.losses.size(); ++step) {
    EXPECT_NEAR(a.losses[step], b.losses[step], 1e-3 * a.losses[step]);
    EXPECT_NEAR(a.norms[step], b.norms[step], 1e-2 * a.norms[step]);
  }
  EXPECT_EQ(b.loss_scales, std::vector<double>(kSteps, 4096.0));
}

TEST(Float16, AnOverflowingStepIsSkippedAndLowersTheScale) {
  const Trajectory run = run_engine(overflowing(), 14);
  const int64_t overflows = skipped(run);
  ASSERT_GT(overflows, 1);
  ASSERT_LT(overflows, 14);
  for (int64_t step = 0; step < overflows; ++step) {
    EXPECT_FALSE(std::isfinite(run.norms[static_cast<size_t>(step)])) << "overflows come first";
    EXPECT_EQ(run.loss_scales[static_cast<size_t>(step)], std::ldexp(0x1p26, -static_cast<int>(step) - 1));
  }
  EXPECT_EQ(run.loss_scales.back(), std::ldexp(0x1p26, -static_cast<int>(overflows)));
}

TEST(Float16, LayoutsSkipTheSameStepsAndAgree) {
  const Trajectory one = run_engine(overflowing(), 14);
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2"},
                                                    {"shard=4,expert=2"},
                                                    {"shard=2", "optim_grads"},
                                                    {"shard=4,expert=2", kFsdp},
                                                    {"context=2"},
                                                    {"tensor=2,expert_tensor=2"},
                                                    {"shard=2,pipeline=2", "auto"}}) {
    SCOPED_TRACE(described(layout));
    const Trajectory several = run_engine(laid_out(overflowing(), layout), 14);
    for (size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(several.losses[step], one.losses[step], 3e-3 * one.losses[step]) << step;
    // At the limit of float16's range, rounding decides whether a gradient overflows, so one step more or less may be
    // skipped.
    EXPECT_LE(std::abs(std::log2(several.loss_scales.back() / one.loss_scales.back())), 1);
  }
}

TEST(Float16, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = overflowing();
  config.parallel.deterministic = true;
  const Trajectory one = run_engine(config, 12);
  ASSERT_GT(skipped(one), 1);
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                    {"shard=4,expert=2"},
                                                    {"shard=4,expert=2", kFsdp},
                                                    {"shard=2,pipeline=2", kFsdp}}) {
    SCOPED_TRACE(described(layout));
    const Trajectory several = run_engine(laid_out(config, layout), 12);
    EXPECT_EQ(one.losses, several.losses);
    EXPECT_EQ(one.loss_scales, several.loss_scales);
    EXPECT_TRUE(one.weights == several.weights);
  }
}

TEST(Float16, IsDeterministicOnAnyNumberOfThreads) {
  testing::expect_repeats(laid_out(recipe(), {"shard=2,expert=2", kFsdp}), 3);
}

// Whole-matrix optimizers, parameter groups and 16-bit moments also have masters for float16 values.
TEST(Float16, EveryOptimizerTrains) {
  for (const char* optimizer : {"sgd", "lion", "ademamix", "muon", "shampoo", "soap"}) {
    RunConfig config = laid_out(recipe(), {"shard=2"}), wide = config;
    config.optimizer.optimizer = wide.optimizer.optimizer = optimizer;
    wide.model.dtype = "float32";
    const Trajectory narrow = run_engine(config, 4), expected = run_engine(wide, 4);
    for (size_t step = 0; step < narrow.losses.size(); ++step)
      EXPECT_NEAR(narrow.losses[step], expected.losses[step], 1e-2 * expected.losses[step]) << optimizer << step;
  }
}

// Float16 has float32 remainders where bfloat16 has 16 bits; the plan counts them.
TEST(Float16, IsPlannedForGpus) {
  for (const char* optimizer : {"adam", "muon"}) {
    RunConfig config = recipe(), narrow = config;
    narrow.model.dtype = "bfloat16";
    for (RunConfig* one : {&config, &narrow}) {
      one->parallel.device = "cuda";
      one->optimizer.optimizer = optimizer;
    }
    EXPECT_GT(make_plan(resolve(config, {})).arena_bytes(), make_plan(resolve(narrow, {})).arena_bytes());
  }
}

}  // namespace
}  // namespace witan
