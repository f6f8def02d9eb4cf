#include "witan/train/state/rewinds.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/threads/threads.h"
#include "witan/train/step/device.h"

namespace witan {
namespace {

class Rewinds : public ::testing::Test {
 protected:
  // A checkpoint of a single number.
  void save(int64_t step) {
    ThreadWorld world(1);
    world.run([&](int) {
      ThreadPool pool(1);
      Stream stream({}, reserve_arena({}, int64_t{1} << 20), pool);
      const auto group = world.group(0, {0}, "checkpoint");
      const Tensor value = stream.zeros({1}, DType::f32);
      save_checkpoint(*group, stream, run_.checkpoints(),
                      {.step = step, .tensors = {{"a", value, {1}, {0, 1}}}, .files = {}});
    });
  }
  bool has(int64_t step) const { return fs::exists(run_.checkpoints() / cat("step-", step)); }

  TrainState resumed(int64_t step, std::vector<Rewind> known, bool writes = true) {
    TrainState state;
    state.step = step;
    state.consumed_samples = 8 * step;
    state.rewinds = std::move(known);
    take_up_rewinds(run_, state, writes);
    return state;
  }

  test::TempFolder folder_;
  const RunFolder run_{folder_.path(), "run"};
};

constexpr Rewind kFirst{20, 25, 160, 200}, kSecond{20, 23, 160, 224}, kLater{40, 41, 360, 400};

TEST_F(Rewinds, ReturnToTheNewestIntactCheckpointAtTheInterval) {
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 30, 10), -1);
  for (const int64_t step : {10, 20, 23, 30}) save(step);
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 30, 10), 20) << "a step does not rewind to itself";
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 25, 10), 20) << "23 was saved after a signal";
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 25, 0), 23);
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 25, 100), 23) << "if there is none at the interval";
  fs::resize_file(run_.checkpoints() / "step-20" / "shard-00000.safetensors", 3);
  EXPECT_EQ(step_to_return_to(run_.checkpoints(), 25, 10), 10);
}

TEST_F(Rewinds, RemoveCheckpointsOfUndoneSteps) {
  for (const int64_t step : {10, 20, 23}) save(step);
  record_rewind(run_, {kFirst});
  EXPECT_TRUE(has(10) && has(20));
  EXPECT_FALSE(has(23));
}

TEST_F(Rewinds, ContinueInARunThatResumesFromTheirCheckpoint) {
  EXPECT_EQ(resumed(20, {}).consumed_samples, 160) << "none before";
  record_rewind(run_, {kFirst, kSecond});
  const TrainState both = resumed(20, {});
  EXPECT_EQ(both.consumed_samples, 224);
  EXPECT_EQ(both.rewinds, (std::vector<Rewind>{kFirst, kSecond}));
  record_rewind(run_, {kFirst, kSecond, kLater});
  EXPECT_EQ(resumed(40, {kFirst, kSecond}).consumed_samples, 400);
  EXPECT_EQ(resumed(30, {kFirst, kSecond}, false).consumed_samples, 240) << "rewinds before the checkpoint";
}

// A later checkpoint was lost, so rewinds to it are undone.
TEST_F(Rewinds, ToLostCheckpointsAreForgotten) {
  record_rewind(run_, {kFirst, kLater});
  EXPECT_EQ(resumed(10, {}, false).rewinds, std::vector<Rewind>());
  EXPECT_EQ(resumed(20, {}, false).rewinds, std::vector<Rewind>{kFirst});
  EXPECT_EQ(resumed(10, {}).rewinds, std::vector<Rewind>());
  EXPECT_EQ(resumed(20, {}).rewinds, std::vector<Rewind>()) << "the step has been repeated since";
}

TEST_F(Rewinds, ADamagedListIsNamed) {
  write_file_atomically(run_.rewinds(), "{\"rewinds\": [{\"at\": 3}]}");
  EXPECT_EQ(test::message_of<CheckpointError>([&] { resumed(20, {}); }),
            "rewinds must have numbers checkpoint, at, first_sample and consumed_samples");
}

TEST_F(Rewinds, LimitTheNumberOfKeptAnomalies) {
  EXPECT_FALSE(keeps_anomaly(run_.anomalies(), 5, 0));
  EXPECT_TRUE(keeps_anomaly(run_.anomalies(), 5, 1));
  fs::create_directories(run_.anomalies() / "step-5");
  EXPECT_TRUE(keeps_anomaly(run_.anomalies(), 5, 1)) << "a repeated step replaces its predecessor";
  EXPECT_FALSE(keeps_anomaly(run_.anomalies(), 6, 1));
}

}  // namespace
}  // namespace witan
