#include "witan/train/record/tensorboard_recorder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/temp_folder.h"
#include "train/run/run_support.h"
#include "witan/base/file.h"

namespace witan {
namespace {

// The bytes of the event file of one step.
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
  TensorboardRecorder(config, folder.path(), 1)
      .step(state, event, 0.5, {4}, testing::router_values(config.model.moe, {{"router_entropy", 1.25}}, {{3, 1}}));
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder.path())) bytes += read_file(file.path());
  return bytes;
}

TEST(TensorboardRecorder, TheLossThatBalancesTheLoadHasMegatronsName) {
  const std::string together = written("aux_loss"), apart = written("seq_aux_loss");
  EXPECT_NE(together.find("load_balancing_loss"), std::string::npos);
  EXPECT_EQ(together.find("seq_load_balancing_loss"), std::string::npos);
  EXPECT_NE(apart.find("seq_load_balancing_loss"), std::string::npos);
}

TEST(TensorboardRecorder, StatisticsOfRoutersHaveTagsOfTheModelAndOfLayers) {
  const std::string bytes = written("aux_loss");
  for (const char* tag : {"mtp_1 loss", "z_loss", "router-entropy", "router-entropy/layer 4",
                          "expert-load/max over mean", "expert-load/max over mean/layer 4", "expert-load/layer 4"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  EXPECT_EQ(bytes.find("expert_counts"), std::string::npos);
  EXPECT_EQ(bytes.find("moe/"), std::string::npos);
}

TEST(TensorboardRecorder, PerLayerLoggingWritesLossesUnderMegatronsNames) {
  const std::string bytes = written("seq_aux_loss", true);
  for (const char* tag : {"moe/seq_load_balancing_loss_layer_4", "moe/z_loss_layer_4"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

// The flags of Megatron-LM that ask for these are accepted since they are always there.
TEST(TensorboardRecorder, StepsHaveTheWorldSizeAndTimes) {
  const std::string bytes = written("aux_loss");
  for (const char* tag : {"world-size", "iteration-time", "data-wait-time", "batch-size"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, IntervalsHaveMegatronsMemoryAndTimers) {
  const test::TempFolder folder;
  TensorboardRecorder({}, folder.path(), 1).interval(10, {100, 200, 300, 300}, {{"forward-backward", 1, 2}});
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder.path())) bytes += read_file(file.path());
  for (const char* tag :
       {"mem-allocated-bytes", "mem-max-allocated-bytes", "mem-reserved-bytes", "forward-backward-time"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, EveryRankHasItsPeakMemory) {
  const test::TempFolder folder;
  MemoryEvent first, second;
  first.peak = second.peak = 1 << 20;
  second.rank = 1;
  TensorboardRecorder({}, folder.path(), 1).memory(10, {first, second});
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder.path())) bytes += read_file(file.path());
  for (const char* tag : {"mem-max-allocated-bytes/rank 0", "mem-max-allocated-bytes/rank 1"})
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
}

TEST(TensorboardRecorder, StatisticsOfActivationsHaveTagsOfLayers) {
  const test::TempFolder folder;
  TensorboardRecorder({}, folder.path(), 1).activations(7, {{"mlp_rms", {0.5, std::nan(""), 2}}});
  std::string bytes;
  for (const auto& file : fs::directory_iterator(folder.path())) bytes += read_file(file.path());
  EXPECT_NE(bytes.find("mlp_rms/layer 0"), std::string::npos);
  EXPECT_EQ(bytes.find("mlp_rms/layer 1"), std::string::npos) << "it has none";
  EXPECT_NE(bytes.find("mlp_rms/layer 2"), std::string::npos);
}

}  // namespace
}  // namespace witan
