#include "witan/train/state/train_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

TEST(TrainState, RoundTripsThroughJsonAndNamesErrors) {
  TrainState state{7, 56, 6, 1, 2.5, "tokens"};
  state.sources = {{"a", 40, 1.5}, {"b", 16, 0.25}};
  state.rewinds = {{4, 7, 32, 56}};
  EXPECT_EQ(TrainState::from_json(state.to_json()).sampled, SampledSteps());
  state.sampled = {5, 8, 0.7};
  const TrainState copy = TrainState::from_json(state.to_json());
  EXPECT_EQ(copy.step, 7);
  EXPECT_EQ(copy.consumed_samples, 56);
  EXPECT_EQ(copy.updates, 6);
  EXPECT_EQ(copy.skipped_in_a_row, 1);
  EXPECT_EQ(copy.elapsed_s, 2.5);
  EXPECT_EQ(copy.data, "tokens");
  EXPECT_EQ(copy.sources, state.sources);
  EXPECT_EQ(copy.rewinds, state.rewinds);
  EXPECT_EQ(copy.sampled, state.sampled);
  Json broken = state.to_json();
  broken["updates"] = -1;
  EXPECT_NE(message_of<CheckpointError>([&] { TrainState::from_json(broken); }).find("updates"), std::string::npos);
}

TEST(ValidationRecord, CountsEvaluationsWithoutImprovement) {
  TrainConfig config;
  config.eval_interval = 10;
  config.early_stopping_patience = 2;
  ValidationRecord record;
  record.add(10, NAN, config);
  EXPECT_EQ(record, (ValidationRecord{0, 0, 1})) << "not a loss";
  record.add(20, 3, config);
  EXPECT_EQ(record, (ValidationRecord{3, 20, 0}));
  record.add(30, 3, config);
  record.add(35, 4, config);
  EXPECT_EQ(record, (ValidationRecord{3, 20, 1})) << "not the one between two intervals";
  EXPECT_FALSE(record.stops(config));
  record.add(40, INFINITY, config);
  EXPECT_TRUE(record.stops(config));
  config.early_stopping_patience = 0;
  EXPECT_FALSE(record.stops(config));
  record.add(45, 2, config);
  EXPECT_EQ(record, (ValidationRecord{3, 20, 2})) << "at the end of a call";
  record.add(50, 2, config);
  EXPECT_EQ(record, (ValidationRecord{2, 50, 0}));
}

TEST(ValidationRecord, RoundTripsThroughJson) {
  TrainState state{7, 56, 6, 1, 2.5, "tokens"};
  EXPECT_FALSE(state.to_json().contains("validation"));
  EXPECT_EQ(TrainState::from_json(state.to_json()).validation, ValidationRecord()) << "as in older checkpoints";
  state.validation = {2.5, 6, 1};
  state.validation_loss = NAN;
  EXPECT_FALSE(state.to_json().contains(kValidationLoss)) << "JSON cannot represent it";
  EXPECT_EQ(TrainState::from_json(state.to_json()).validation, state.validation);
  Json broken = state.to_json();
  broken["validation"]["best"] = "low";
  EXPECT_NE(message_of<CheckpointError>([&] { TrainState::from_json(broken); }).find("validation must have"),
            std::string::npos);
  broken["validation"] = {{"best", 1}, {"best_step", -1}, {"since_best", 0}};
  EXPECT_NE(message_of<CheckpointError>([&] { TrainState::from_json(broken); }).find("negative"), std::string::npos);
}

}  // namespace
}  // namespace witan
