#include <gtest/gtest.h>

#include "witan/planner/time/rank_time.h"

namespace witan {
namespace {

std::vector<StagePassTimes> even(const Pipeline& pipeline, double forward, double backward) {
  const auto chunks = static_cast<size_t>(pipeline.chunks);
  return std::vector<StagePassTimes>(static_cast<size_t>(pipeline.stages),
                                     {std::vector<double>(chunks, forward), std::vector<double>(chunks, backward)});
}

// The closed form of Narayanan et al. 2021, section 2.2.1.
TEST(PipelineTime, EvenStagesHaveTheKnownBubble) {
  for (const int stages : {1, 2, 3, 4, 8})
    for (const int64_t micro_batches : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{7}, int64_t{16}})
      for (const double backward : {1.0, 2.0, 2.5}) {
        const Pipeline pipeline{stages, 1, micro_batches};
        const PipelineTime time = play_pipeline(pipeline, even(pipeline, 1, backward), 0);
        EXPECT_NEAR(time.seconds, static_cast<double>(stages + micro_batches - 1) * (1 + backward), 1e-9)
            << stages << " stages, " << micro_batches << " micro-batches, backward " << backward;
        EXPECT_NEAR(time.waits[0], time.seconds - static_cast<double>(micro_batches) * (1 + backward), 1e-9)
            << "the first stage ends last";
      }
}

// The rendezvous of transfers costs a few percent compared with the closed form (parallel/schedule.h).
TEST(PipelineTime, ChunksDivideTheBubble) {
  for (const int chunks : {2, 4}) {
    const Pipeline pipeline{4, chunks, 16};
    const double closed = 16 * 3 * (1 + bubble_over_work(pipeline));
    const double part = 1.0 / chunks;
    const double seconds = play_pipeline(pipeline, even(pipeline, part, 2 * part), 0).seconds;
    EXPECT_GE(seconds, closed - 1e-9);
    EXPECT_LE(seconds, 1.05 * closed);
  }
}

// The first micro-batch reaches the last stage, which then works without pausing, and the last micro-batch returns.
TEST(PipelineTime, TheSlowestStageDelaysTheOthers) {
  const Pipeline pipeline{4, 1, 8};
  std::vector<StagePassTimes> stages = even(pipeline, 1, 2);
  stages[3] = {{3}, {6}};
  const PipelineTime time = play_pipeline(pipeline, stages, 0);
  EXPECT_NEAR(time.seconds, 3 * 1 + 8 * 9 + 3 * 2, 1e-9);
  EXPECT_NEAR(time.waits[3], 3, 1e-9);
  EXPECT_NEAR(time.waits[0], time.seconds - 8 * 3, 1e-9);
}

TEST(PipelineTime, TransfersDelayBothEnds) {
  // Each direction takes a pass, a transfer and a pass.
  const Pipeline pipeline{2, 1, 1};
  EXPECT_NEAR(play_pipeline(pipeline, even(pipeline, 1, 2), 0.25).seconds, 6.5, 1e-9);
}

TEST(PipelineTime, RepeatsTheMiddleOfManyMicroBatches) {
  Pipeline pipeline{3, 1, 200};
  std::vector<StagePassTimes> stages = even(pipeline, 1, 2);
  EXPECT_NEAR(play_pipeline(pipeline, stages, 0).seconds, 202 * 3, 1e-6);
  stages[1] = {{2}, {3}};
  EXPECT_NEAR(play_pipeline(pipeline, stages, 0).seconds, 1 + 200 * 5 + 2, 1 + 1e-6)
      << "a transfer may wait for one more pass";
  pipeline.chunks = 2;
  pipeline.micro_batches = 60;
  const double sixty = play_pipeline(pipeline, even(pipeline, 1, 2), 0.1).seconds;
  pipeline.micro_batches = 63;
  EXPECT_NEAR(play_pipeline(pipeline, even(pipeline, 1, 2), 0.1).seconds, sixty * 63 / 60, 0.03 * sixty);
}

}  // namespace
}  // namespace witan
