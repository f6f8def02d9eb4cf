#include "witan/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/pipeline_support.h"
#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using testing::for_pipelines;
using testing::Pass;
using testing::Passes;
using testing::text_of;

std::string schedule_text(const Pipeline& pipeline, int stage) {
  std::string text;
  for (const Work& work : schedule_of(pipeline, stage)) text += (text.empty() ? "" : " ") + text_of(pipeline, work);
  return text;
}

// The time of a step if outputs reach their targets at once and wait there: no order of communication can be faster. -1
// for a deadlock.
int64_t fastest_step(const Pipeline& pipeline) {
  std::vector<std::vector<Work>> schedules;
  for (int stage = 0; stage < pipeline.stages; ++stage) schedules.push_back(schedule_of(pipeline, stage));
  std::vector<size_t> next(schedules.size());
  std::vector<int64_t> free_at(schedules.size());
  std::map<std::pair<int, Work>, int64_t> arrival;
  for (bool any = true; any;) {
    any = false;
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      for (; next[s] < schedules[s].size(); ++next[s], any = true) {
        const Work& work = schedules[s][next[s]];
        const bool needs_input = source_of(pipeline, {stage, work}).has_value();
        const auto input = arrival.find({stage, work});
        if (needs_input && input == arrival.end()) break;
        free_at[s] = std::max(free_at[s], needs_input ? input->second : 0) + testing::units_of(work);
        if (const auto target = target_of(pipeline, {stage, work})) arrival[{target->stage, target->work}] = free_at[s];
      }
    }
  }
  for (size_t s = 0; s < schedules.size(); ++s)
    if (next[s] != schedules[s].size()) return -1;
  return *std::max_element(free_at.begin(), free_at.end());
}

TEST(Schedule, MatchesTheFigureOf1F1B) {
  const Pipeline pipeline{.stages = 4, .micro_batches = 8};
  EXPECT_EQ(schedule_text(pipeline, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(schedule_text(pipeline, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(schedule_text(pipeline, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(Schedule, MatchesMegatronsInterleavedSchedule) {
  const Pipeline pipeline{.stages = 4, .chunks = 2, .micro_batches = 8};
  EXPECT_EQ(schedule_text(pipeline, 0),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 "  // 2 (4 - 1) + 4 of warm-up
            "F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 "
            "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(schedule_text(pipeline, 3),
            "F0.0 F1.0 F2.0 F3.0 "
            "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 "
            "F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST(Schedule, GroupsMicroBatchesNearlyEvenly) {
  EXPECT_EQ(schedule_text({2, 2, 5, Passes::forward}, 0), "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 F3.0 F4.0 F3.1 F4.1");
  EXPECT_EQ(schedule_text({3, 2, 2, Passes::forward}, 1), "F0.0 F1.0 F0.1 F1.1");
  EXPECT_EQ(schedule_text({2, 2, 3, Passes::both}, 1), "F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 B0.0 B1.0 B2.0");
}

TEST(Schedule, OneStageAlternatesForwardAndBackward) {
  EXPECT_EQ(schedule_text({.micro_batches = 3}, 0), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(schedule_text({1, 1, 3, Passes::forward}, 0), "F0 F1 F2");
}

TEST(Schedule, HasAllWorkOnceWithBackwardAfterForward) {
  for_pipelines([](const Pipeline& pipeline) {
    const auto pairs = static_cast<size_t>(pipeline.micro_batches * pipeline.chunks);
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      std::set<Work> done;
      int64_t in_flight = 0, most = 0;
      for (const Work& work : schedule_of(pipeline, stage)) {
        ASSERT_TRUE(done.insert(work).second);
        ASSERT_TRUE(work.micro_batch >= 0 && work.micro_batch < pipeline.micro_batches);
        ASSERT_TRUE(work.chunk >= 0 && work.chunk < pipeline.chunks);
        if (work.pass == Pass::backward) {
          ASSERT_TRUE(done.contains({Pass::forward, work.micro_batch, work.chunk}));
        }
        in_flight += work.pass == Pass::forward ? 1 : -1;
        most = std::max(most, in_flight);
      }
      ASSERT_EQ(done.size(), pipeline.passes == Passes::both ? 2 * pairs : pairs);
      if (pipeline.passes == Passes::both) {
        ASSERT_EQ(most, most_in_flight(pipeline, stage));
      }
    }
  });
}

TEST(Schedule, LimitsMicroBatchesInFlightAsInThePapers) {
  for (int stages = 1; stages <= 8; ++stages)
    for (int stage = 0; stage < stages; ++stage) {
      EXPECT_EQ(most_in_flight({stages, 1, 40}, stage), stages - stage);
      EXPECT_EQ(most_in_flight({stages, 1, 2}, stage), std::min(2, stages - stage));
      if (stages == 1) continue;
      EXPECT_EQ(most_in_flight({stages, 3, 10 * stages}, stage), 2 * (stages - stage - 1) + 2 * stages + 1);
      EXPECT_EQ(most_in_flight({stages, 2, 1}, stage), 2) << "not more than exist";
    }
}

TEST(Schedule, FeedsEachChunkFromThePreviousOne) {
  for_pipelines([](const Pipeline& pipeline) {
    const int last = pipeline.stages * pipeline.chunks - 1;  // last of the model's chunks in order
    const auto at = [&](int position, Pass pass) {
      return StageWork{position % pipeline.stages, {pass, 1, position / pipeline.stages}};
    };
    for (int position = 0; position <= last; ++position) {
      const auto before = position == 0 ? std::nullopt : std::optional(at(position - 1, Pass::forward));
      const auto after = position == last ? std::nullopt : std::optional(at(position + 1, Pass::forward));
      ASSERT_EQ(source_of(pipeline, at(position, Pass::forward)), before);
      ASSERT_EQ(target_of(pipeline, at(position, Pass::forward)), after);
      if (before) {
        ASSERT_EQ(target_of(pipeline, at(position, Pass::backward)), at(position - 1, Pass::backward));
      }
      if (after) {
        ASSERT_EQ(source_of(pipeline, at(position, Pass::backward)), at(position + 1, Pass::backward));
      }
    }
    ASSERT_EQ(target_of(pipeline, at(0, Pass::backward)), std::nullopt);
    ASSERT_EQ(source_of(pipeline, at(last, Pass::backward)), std::nullopt);
  });
}

TEST(Schedule, TakesTheTimePredictedByTheBubble) {
  for_pipelines([](const Pipeline& pipeline) {
    const auto work = static_cast<double>(testing::work_of_stage(pipeline));
    ASSERT_NEAR(static_cast<double>(fastest_step(pipeline)), work * (1 + bubble_over_work(pipeline)), 1e-9 * work);
  });
}

TEST(Schedule, HasTheBubbleOfThePapers) {
  EXPECT_DOUBLE_EQ(bubble_over_work({4, 1, 8}), 3.0 / 8);
  EXPECT_DOUBLE_EQ(bubble_over_work({4, 2, 8}), 3.0 / 16);
  EXPECT_DOUBLE_EQ(bubble_over_work({8, 4, 64}), 7.0 / 256);
  EXPECT_DOUBLE_EQ(bubble_over_work({4, 1, 1}), 3);
  EXPECT_DOUBLE_EQ(bubble_over_work({1, 1, 5}), 0);
}

TEST(Schedule, RefusesInvalidPipelines) {
  const auto refusal = [](const Pipeline& pipeline) { return message_of<ConfigError>([&] { pipeline.validate(); }); };
  EXPECT_EQ(refusal({0, 1, 1}), "pipeline: 0 stages; the nearest that works is 1");
  EXPECT_EQ(refusal({2, 1, 0}), "pipeline: 0 micro-batches; the nearest that works is 1");
  EXPECT_EQ(refusal({2, -1, 4}), "pipeline: -1 virtual stages of a rank; the nearest that works is 1");
  EXPECT_EQ(
      refusal({1, 2, 4}),
      "pipeline: 2 virtual stages, but one pipeline stage: interleaving needs several; the nearest that works is 1");
  EXPECT_NO_THROW((Pipeline{2, 2, 3}.validate()));
}

}  // namespace
}  // namespace witan
