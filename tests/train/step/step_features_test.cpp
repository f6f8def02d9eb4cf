// The points of a step at which features are called, and the engine's services for a feature that a test adds.
#include "witan/train/step/step_features.h"

#include <gtest/gtest.h>

#include "support/rank.h"
#include "train/step/run_support.h"
#include "witan/train/step/engine.h"
#include "witan/train/step/features/bounded_experts.h"
#include "witan/train/step/features/loss_scaling.h"
#include "witan/train/step/features/qk_clip.h"
#include "witan/train/step/features/spike_skipping.h"
#include "witan/train/step/features/state_checks.h"
#include "witan/train/step/features/step_routes.h"

namespace witan {
namespace {

using testing::Rank;

using Said = std::vector<std::string>;

// Records the points at which it is called, under its name. The number makes different types.
template <int kNumber>
struct Heard : StepFeature {
  Heard(Said& heard, std::string under, int computations = 1)
      : said(heard), name(std::move(under)), repetitions(computations - 1) {}
  void say(const char* point) { said.push_back(cat(name, " ", point)); }

  void offer(ModelServices&) override { say("offer"); }
  void allocate(const StepShape& shape) override { say(cat("allocate ", shape.micro_batches).c_str()); }
  void release() override { say("release"); }
  void before_step(int64_t iteration) override { say(cat("before_step ", iteration).c_str()); }
  void begin_step() override { say("begin_step"); }
  void after_passes() override { say("after_passes"); }
  void before_update(const Tensor& total) override {
    EXPECT_EQ(total.shape(), Shape{2});
    say("before_update");
  }
  void after_update() override { say("after_update"); }
  bool repeats(const StepReport::Result&) override { return repetitions-- > 0; }
  void report(const StepReport::Result& read, StepResult& result) override {
    EXPECT_EQ(result.gradient_norm, std::sqrt(read.square_sum)) << "the engine's own figures come first";
    say("report");
  }

  Said& said;
  std::string name;
  int repetitions;
};

struct OneRank {
  explicit OneRank(const RunConfig& given)
      : config(given),
        groups(make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0)),
        engine(rank.stream, groups, resolve(config, {})) {}

  StepResult step(int64_t iteration) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < config.micro_batches(); ++i) batches.push_back(testing::random_batch(config, i));
    return engine.step(batches, iteration, iteration - 1);
  }

  RunConfig config;
  Rank rank{1};
  Groups groups;
  Engine engine;
};

TEST(StepFeatures, AreCalledPointByPointInOrder) {
  OneRank run(testing::small_config());
  Said said;
  run.engine.features().add<Heard<0>>(said, "first");
  run.engine.features().add<Heard<1>>(said, "second");
  run.step(1);
  const std::string micro_batches = cat("allocate ", run.config.micro_batches());
  const Said prepared = {"first release", "second release", "first " + micro_batches, "second " + micro_batches};
  EXPECT_EQ(Said(said.begin(), said.begin() + 4), prepared);
  const auto step = [](int number) {
    Said all;
    for (const std::string& point :
         {cat("before_step ", number), std::string("begin_step"), std::string("after_passes"),
          std::string("before_update"), std::string("after_update"), std::string("report")})
      all.insert(all.end(), {"first " + point, "second " + point});
    return all;
  };
  EXPECT_EQ(Said(said.begin() + 4, said.end()), step(1));
  said.clear();
  run.step(2);
  EXPECT_EQ(said, step(2)) << "no further allocations";
}

// All points except the report are called again after the step's inputs were uploaded again.
TEST(StepFeatures, MayRequestARecomputationOfTheStep) {
  OneRank run(testing::small_config());
  Said said;
  run.engine.features().add<Heard<0>>(said, "it", 3);
  run.step(1);
  said.erase(said.begin(), said.begin() + 2);
  const Said once = {"it before_step 1", "it begin_step", "it after_passes", "it before_update", "it after_update"};
  Said expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), once.begin(), once.end());
  expected.emplace_back("it report");
  EXPECT_EQ(said, expected);
}

struct HearsPasses : StepFeature {
  void begin_pass(Pass pass, int64_t micro_batch) override {
    said.push_back(cat(pass == Pass::forward ? "forward " : "backward ", micro_batch));
  }
  void end_pass() override { said.emplace_back("end"); }
  Said said;
};

TEST(StepFeatures, AreCalledAroundThePassesOfEachMicroBatch) {
  OneRank run(testing::small_config());
  const Said& said = run.engine.features().add<HearsPasses>().said;
  run.step(1);
  Said expected;
  for (int64_t i = 0; i < run.config.micro_batches(); ++i)
    expected.insert(expected.end(), {cat("forward ", i), "end", cat("backward ", i), "end"});
  EXPECT_EQ(said, expected);
}

TEST(StepFeatures, FollowTheConfigurationAndAreFoundByType) {
  RunConfig config = testing::small_config();
  OneRank plain(config);
  EXPECT_NE(plain.engine.feature<StateChecks>(), nullptr);
  EXPECT_EQ(plain.engine.feature<LossScaling>(), nullptr);
  EXPECT_EQ(plain.engine.feature<SpikeSkipping>(), nullptr);
  EXPECT_EQ(plain.engine.feature<QkClip>(), nullptr);
  EXPECT_EQ(plain.engine.feature<StepActivations>(), nullptr);
  EXPECT_EQ(plain.engine.feature<StepRoutes>(), nullptr);
  EXPECT_EQ(plain.engine.feature<BoundedExperts>(), nullptr) << "one rank has all experts";
  config.model.dtype = "float16";
  config.optimizer.skip_step_sigma = 6;
  config.optimizer.qk_clip = true;
  config.log.log_activations = 2;
  config.train.record_routes = "routes";
  OneRank full(config);
  EXPECT_NE(full.engine.feature<LossScaling>(), nullptr);
  EXPECT_NE(full.engine.feature<SpikeSkipping>(), nullptr);
  EXPECT_NE(full.engine.feature<QkClip>(), nullptr);
  EXPECT_NE(full.engine.feature<StepActivations>(), nullptr);
  EXPECT_NE(full.engine.feature<StepRoutes>(), nullptr);
}

// Features continue with their state from a checkpoint.
TEST(StepFeatures, SaveAndRestoreTheirState) {
  RunConfig config = testing::small_config();
  config.model.dtype = "float16";
  config.optimizer.initial_loss_scale = 1024;
  config.optimizer.skip_step_sigma = 6;
  OneRank run(config);
  run.step(1);
  TrainState state;
  run.engine.features().save(state);
  EXPECT_EQ(state.loss_scaler.scale, 1024);
  EXPECT_EQ(state.spikes.steps, 1);
  OneRank again(config), anew(config);
  state.loss_scaler.scale = 64;
  again.engine.features().call(&StepFeature::restore, state, false);
  anew.engine.features().call(&StepFeature::restore, state, true);
  TrainState found, found_anew;
  again.engine.features().save(found);
  anew.engine.features().save(found_anew);
  EXPECT_EQ(found.loss_scaler.scale, 64);
  EXPECT_EQ(found.spikes.losses, state.spikes.losses);
  EXPECT_EQ(found_anew.loss_scaler.scale, 1024) << "the optimizer and the scale are reset";
  EXPECT_EQ(found_anew.spikes.losses, state.spikes.losses);
}

}  // namespace
}  // namespace witan
