#include "witan/train/state/train_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

TEST(TrainState, SurvivesJsonAndNamesWhatIsWrong) {
  TrainState state{7, 56, 6, 1, 2.5, "tokens"};
  state.sources = {{"a", 40, 1.5}, {"b", 16, 0.25}};
  state.rewinds = {{4, 7, 32, 56}};
  const TrainState copy = TrainState::from_json(state.to_json());
  EXPECT_EQ(copy.step, 7);
  EXPECT_EQ(copy.consumed_samples, 56);
  EXPECT_EQ(copy.updates, 6);
  EXPECT_EQ(copy.skipped_in_a_row, 1);
  EXPECT_EQ(copy.elapsed_s, 2.5);
  EXPECT_EQ(copy.data, "tokens");
  EXPECT_EQ(copy.sources, state.sources);
  EXPECT_EQ(copy.rewinds, state.rewinds);
  Json broken = state.to_json();
  broken["updates"] = -1;
  EXPECT_NE(message_of<CheckpointError>([&] { TrainState::from_json(broken); }).find("updates"), std::string::npos);
}

}  // namespace
}  // namespace witan
