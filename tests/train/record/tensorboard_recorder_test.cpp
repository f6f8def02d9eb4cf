#include "witan/train/record/tensorboard_recorder.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "witan/base/file.h"

namespace witan {
namespace {

// The bytes of the event file of one step.
std::string written(const char* load_balancing_type) {
  const test::TempFolder folder;
  RunConfig config;
  config.model.moe.moe_router_load_balancing_type = load_balancing_type;
  StepEvent event;
  event.step = 1;
  event.load_balancing_loss = 1.25;
  TrainState state;
  state.step = 1;
  TensorboardRecorder(config, folder.path(), 1).step(state, event, 0.5, {0}, {{3, 1}});
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

}  // namespace
}  // namespace witan
