#include "witan/train/record/tensorboard_recorder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/run_files.h"
#include "support/temp_folder.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using test::count, test::event_bytes;

// The bytes of an event file with one step.
std::string written(const char* load_balancing_type, bool per_layer = false) {
  const test::TempFolder folder;
  RunConfig config;
  config.model.moe.moe_router_load_balancing_type = load_balancing_type;
  config.model.moe.moe_per_layer_logging = per_layer;
  StepEvent event;
  event.step = 1;
  event.mtp_losses = {2.5};
  TrainState state;
  state.step = 1;
  TensorboardRecorder(config, config, folder.path(), 1)
      .step(state, event, 8, 0.5, {4}, testing::router_values(config.model.moe, {{"router_entropy", 1.25}}, {{3, 1}}));
  return event_bytes(folder.path());
}

TEST(TensorboardRecorder, TheLoadBalancingLossHasMegatronsName) {
  const std::string together = written("aux_loss"), apart = written("seq_aux_loss");
  EXPECT_NE(together.find("load_balancing_loss"), std::string::npos);
  EXPECT_EQ(together.find("seq_load_balancing_loss"), std::string::npos);
  EXPECT_NE(apart.find("seq_load_balancing_loss"), std::string::npos);
}

TEST(TensorboardRecorder, RouterStatisticsHaveTagsOfModelAndLayers) {
  const std::string bytes = written("aux_loss");
  for (const char* tag : {"mtp_1 loss", "z_loss", "router-entropy", "router-entropy/layer 4",
                          "expert-load/max over mean", "expert-load/max over mean/layer 4", "expert-load/layer 4"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  EXPECT_EQ(bytes.find("expert_counts"), std::string::npos);
  EXPECT_EQ(bytes.find("moe/"), std::string::npos);
}

TEST(TensorboardRecorder, PerLayerLoggingUsesMegatronsNames) {
  const std::string bytes = written("seq_aux_loss", true);
  for (const char* tag : {"moe/seq_load_balancing_loss_layer_4", "moe/z_loss_layer_4"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

// These are always written, so Megatron-LM's flags for them are accepted.
TEST(TensorboardRecorder, StepsHaveTheWorldSizeAndTimes) {
  const std::string bytes = written("aux_loss");
  for (const char* tag : {"world-size", "iteration-time", "data-wait-time", "batch-size"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, IntervalsHaveMegatronsTimers) {
  const test::TempFolder folder;
  TensorboardRecorder({}, {}, folder.path(), 1).interval(10, {{"forward-backward", 1, 2}});
  EXPECT_NE(event_bytes(folder.path()).find("forward-backward-time"), std::string::npos);
}

TEST(TensorboardRecorder, MemoryHasMegatronsTags) {
  const test::TempFolder folder;
  TensorboardRecorder({}, {}, folder.path(), 1).memory_in_use(10, {100, 200, 300, 300}, 7);
  const std::string bytes = event_bytes(folder.path());
  for (const char* tag :
       {"mem-reserved-bytes", "mem-allocated-bytes", "mem-max-allocated-bytes", "mem-allocated-count"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, EvaluationsHaveTheBalanceOfRouters) {
  const test::TempFolder folder;
  EvalEvent event{10, 2, 1};
  event.router = {{"load_balancing_loss", 1.5}, {"load_max_over_mean", 2}};
  const StepStatistics router = testing::router_values({}, {{"load_balancing_loss", 1.5}}, {{3, 1}});
  TensorboardRecorder recorder({}, {}, folder.path(), 1);
  recorder.evaluation(event, router);
  event.set = "code";
  recorder.evaluation(event, router);
  const std::string bytes = event_bytes(folder.path());
  for (const char* tag : {"load_balancing_loss validation", "expert-load/max over mean validation",
                          "load_balancing_loss validation on code"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  EXPECT_EQ(bytes.find("z_loss validation"), std::string::npos) << "the event omits it";
}

// A run's own folder has one session, whatever the run's former name.
TEST(TensorboardRecorder, RunsThatShareATensorboardDirKeepTheirHyperparameters) {
  const test::TempFolder folder;
  RunConfig config;
  const auto sessions_after = [&](const char* run) {
    config.train.run = run;
    const TensorboardRecorder recorder(config, config, folder.path(), 1);
    return count(event_bytes(folder.path()), "_hparams_/session_start_info");
  };
  config.log.tensorboard_dir = folder.path().string();
  EXPECT_EQ(sessions_after("first"), 1U);
  EXPECT_EQ(sessions_after("second"), 2U);
  EXPECT_EQ(sessions_after("first"), 2U) << "it was resumed";
  config.log.tensorboard_dir.clear();
  EXPECT_EQ(sessions_after("renamed"), 1U);
}

TEST(TensorboardRecorder, EveryRankHasItsPeakMemory) {
  const test::TempFolder folder;
  MemoryEvent first, second;
  first.peak = second.peak = 1 << 20;
  second.rank = 1;
  TensorboardRecorder({}, {}, folder.path(), 1).memory(10, {first, second});
  const std::string bytes = event_bytes(folder.path());
  for (const char* tag : {"mem-max-allocated-bytes/rank 0", "mem-max-allocated-bytes/rank 1"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, ActivationStatisticsHaveTagsOfLayers) {
  const test::TempFolder folder;
  TensorboardRecorder({}, {}, folder.path(), 1).activations(7, {{"mlp_rms", {0.5, std::nan(""), 2}}});
  const std::string bytes = event_bytes(folder.path());
  EXPECT_NE(bytes.find("mlp_rms/layer 0"), std::string::npos);
  EXPECT_EQ(bytes.find("mlp_rms/layer 1"), std::string::npos) << "this layer has none";
  EXPECT_NE(bytes.find("mlp_rms/layer 2"), std::string::npos);
}

// The hyperparameter of this name.
tfevents::Hyperparameter named(const std::vector<tfevents::Hyperparameter>& parameters, const std::string& name) {
  for (const tfevents::Hyperparameter& parameter : parameters)
    if (parameter.name == name) return parameter;
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(TensorboardRecorder, HyperparametersAreAllKeysWithTheirTypes) {
  RunConfig given;
  given.train.train_iters = 7;
  given.load.no_load_optim = true;
  RunConfig config = given;
  config.parallel.ranks = 4;  // an automatic value
  const auto parameters = hyperparameters_of(config, given);
  EXPECT_EQ(parameters.size(), config.fields().size());

  const auto iterations = named(parameters, "train_iters"), ranks = named(parameters, "ranks");
  EXPECT_EQ(std::get<double>(iterations.value), 7);
  EXPECT_TRUE(iterations.differs) << "from the default";
  EXPECT_EQ(std::get<double>(ranks.value), 4) << "as in the run";
  EXPECT_FALSE(ranks.differs) << "not given";
  EXPECT_EQ(std::get<double>(named(parameters, "lr").value), config.optimizer.lr);
  EXPECT_EQ(std::get<bool>(named(parameters, "log_progress").value), false);
  EXPECT_EQ(std::get<bool>(named(parameters, "no_load_optim").value), false) << "given for one call";
  EXPECT_EQ(std::get<std::string>(named(parameters, "json_key").value), "text") << "without quotes";
  EXPECT_EQ(std::get<std::string>(named(parameters, "optimizer_groups").value), "[]");
  EXPECT_EQ(named(parameters, "log_format").choices, (std::vector<std::string>{"witan", "megatron", "nanogpt"}));
}

TEST(TensorboardRecorder, EveryStartWritesItsConfigurationAndTheLastOneHyperparameters) {
  const test::TempFolder folder;
  RunConfig config;
  config.train.run = "first start";
  TensorboardRecorder(config, config, folder.path(), 1).end(tfevents::SessionStatus::failure);
  const std::string before = event_bytes(folder.path());
  EXPECT_EQ(count(before, "```toml\n[train]\n"), 1u);
  EXPECT_EQ(count(before, "run = \"first start\"\n"), 1u);
  EXPECT_EQ(count(before, "_hparams_/session_start_info"), 1u);
  EXPECT_EQ(count(before, "_hparams_/session_end_info"), 1u);

  config.train.run = "second start";
  TensorboardRecorder(config, config, folder.path(), 5);
  const std::string after = event_bytes(folder.path());
  EXPECT_EQ(count(after, "run = \"first start\"\n"), 1u) << "of earlier steps";
  EXPECT_EQ(count(after, "run = \"second start\"\n"), 1u);
  EXPECT_EQ(count(after, "_hparams_/session_start_info"), 1u) << "readers take the first";
  EXPECT_EQ(count(after, "_hparams_/session_end_info"), 0u) << "it is running";
  EXPECT_EQ(count(after, "first start"), 1u);
}

}  // namespace
}  // namespace witan
