#include "witan/train/rollouts/rollout_files.h"

#include <gtest/gtest.h>

#include <set>

#include "support/temp_folder.h"
#include "witan/train/rollouts/rollout.h"

namespace witan {
namespace {

class RolloutFiles : public ::testing::Test {
 protected:
  // Ten steps, sampled four at a time: before steps 1, 5 and 9.
  RolloutFiles() {
    for (int64_t step = 1; step <= 10; ++step)
      write_file_atomically(rollout_file(folder_.path(), step), rollout_of(step).to_line());
    write_file_atomically(folder_ / "unfinished-0.jsonl", "{}\n");
    write_file_atomically(folder_ / "step-notes.jsonl", "mine");
  }
  static Rollout rollout_of(int64_t step) {
    Rollout rollout;
    rollout.sampled_at = (step - 1) / 4 * 4 + 1;
    return rollout;
  }
  std::set<int64_t> left() const {
    std::set<int64_t> steps;
    for (int64_t step = 1; step <= 10; ++step)
      if (fs::exists(rollout_file(folder_.path(), step))) steps.insert(step);
    EXPECT_TRUE(fs::exists(folder_ / "unfinished-0.jsonl") && fs::exists(folder_ / "step-notes.jsonl"));
    return steps;
  }

  test::TempFolder folder_;
};

TEST_F(RolloutFiles, OfStepsBeforeTheNewestAreRemoved) {
  remove_old_rollouts(folder_.path(), 9, 2, {8});
  EXPECT_EQ(left(), (std::set<int64_t>{8, 9, 10})) << "step 10 is to come";
}

TEST_F(RolloutFiles, ThatACheckpointResumesWithAreKept) {
  remove_old_rollouts(folder_.path(), 10, 1, {2, 8});
  EXPECT_EQ(left(), (std::set<int64_t>{3, 4, 10})) << "step 9 is sampled anew from the checkpoint of step 8";
  remove_old_rollouts(folder_.path(), 10, 1, {8});
  EXPECT_EQ(left(), (std::set<int64_t>{10}));
}

TEST_F(RolloutFiles, OfUnknownSamplingAreKeptForEveryCheckpoint) {
  write_file_atomically(rollout_file(folder_.path(), 4), "{}\n");
  remove_old_rollouts(folder_.path(), 10, 1, {3});
  EXPECT_EQ(left(), (std::set<int64_t>{4, 10}));
}

TEST_F(RolloutFiles, AreCountedWithThoseOfStepsToCome) {
  RunConfig config;
  config.train.train_iters = 20;
  EXPECT_EQ(kept_rollout_files(config), 0);
  EXPECT_EQ(rollout_file_bytes(config), 0);
  config.rollout.rollouts = true;
  EXPECT_EQ(kept_rollout_files(config), 20);
  config.rollout.keep_rollouts = 3;
  config.rollout.steps_per_generation = 4;
  EXPECT_EQ(kept_rollout_files(config), 6);
  config.rollout.keep_rollouts = 30;
  EXPECT_EQ(kept_rollout_files(config), 20);
}

}  // namespace
}  // namespace witan
