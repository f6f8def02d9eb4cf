// A walk that skips micro-batches takes the same steps before and after them as the whole pipeline.
#include "witan/parallel/pipeline_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "parallel/pipeline_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::Passes;
using testing::text_of;

// Finds a period at the given query, or never.
class Found : public Repetition {
 public:
  Found(int at, int units) : at_(at), units_(units) {}

  void begin() override { begun = true; }
  int64_t period(int64_t micro_batch) override {
    EXPECT_EQ(left_out, -1) << "queried after the answer";
    asked.push_back(micro_batch);
    const auto times = static_cast<int>(asked.size());
    if (times <= at_ || times <= units_) return 0;
    return micro_batch - asked[asked.size() - 1 - static_cast<size_t>(units_)];
  }
  void leave_out(int64_t micro_batches, int64_t period) override {
    EXPECT_EQ(left_out, -1);
    left_out = micro_batches;
    of_period = period;
  }

  bool begun = false;
  std::vector<int64_t> asked;  // micro-batches of the queries
  int64_t left_out = -1, of_period = -1;

 private:
  int at_, units_;
};

std::vector<PipelineStep> steps_of(const Pipeline& pipeline, int stage) {
  return pipeline_steps(pipeline)[static_cast<size_t>(stage)];
}

std::vector<PipelineStep> walked(const Pipeline& pipeline, int stage, Repetition* repetition) {
  const auto steps = steps_of(repetition != nullptr ? shortened(pipeline) : pipeline, stage);
  PipelineWalk walk(pipeline, steps, repetition);
  std::vector<PipelineStep> taken;
  while (const PipelineStep* step = walk.next()) taken.push_back(*step);
  return taken;
}

// The stage's steps without those from the end of micro-batch `last` to that of micro-batch last + count. Work in
// flight at the latter gets the numbers of what is in flight at the former.
std::vector<PipelineStep> without(const Pipeline& pipeline, int stage, int64_t last, int64_t count) {
  const auto ends = [&](const PipelineStep& step, int64_t micro_batch) {
    return step.kind == PipelineStep::Kind::compute &&
           step.work == (pipeline.passes == Passes::both ? Work{Work::Pass::backward, micro_batch, 0}
                                                         : Work{Work::Pass::forward, micro_batch, pipeline.chunks - 1});
  };
  std::vector<PipelineStep> kept;
  std::set<std::pair<int64_t, int>> begun;
  bool before = true, after = false;
  for (PipelineStep step : steps_of(pipeline, stage)) {
    const PipelineStep whole = step;
    const std::pair<int64_t, int> of_chunk{step.work.micro_batch, step.work.chunk};
    if (!after) begun.insert(of_chunk);
    if (after && begun.contains(of_chunk)) step.work.micro_batch -= count;
    if (before || after) kept.push_back(step);
    before = before && !ends(whole, last);
    after = after || ends(whole, last + count);
  }
  return kept;
}

int64_t count_of(const std::vector<PipelineStep>& steps, int64_t micro_batch) {
  return std::ranges::count(steps, micro_batch, [](const PipelineStep& step) { return step.work.micro_batch; });
}

std::vector<Pipeline> many() {
  std::vector<Pipeline> all;
  for (const int stages : {1, 2, 3, 4, 7})
    for (const int chunks : {1, 2, 3, 4})
      for (const Passes passes : {Passes::forward, Passes::both})
        for (const int64_t of_stages : {3, 17, 60})
          for (const int64_t more : {0, 1, stages - 1})
            if (stages > 1 || chunks == 1) all.push_back({stages, chunks, of_stages * stages + more, passes});
  return all;
}

TEST(PipelineWalk, TakesAllStepsIfNothingIsSkipped) {
  for (const Pipeline& pipeline : many())
    for (int stage = 0; stage < pipeline.stages; ++stage)
      EXPECT_EQ(walked(pipeline, stage, nullptr), steps_of(pipeline, stage)) << text_of(pipeline);
}

TEST(PipelineWalk, StepsOutsideTheSkippedPartMatchTheWholePipeline) {
  for (const Pipeline& pipeline : many())
    for (const auto& [asked, units] : {std::pair{0, 1}, {0, 3}, {4, 1}, {5, 2}})
      for (int stage = 0; stage < pipeline.stages; ++stage) {
        SCOPED_TRACE(cat(text_of(pipeline), ", stage ", stage, ", ", units, " units from time ", asked));
        Found found(asked, units);
        const auto steps = walked(pipeline, stage, &found);
        if (found.left_out < 0) {
          EXPECT_EQ(shortened(pipeline).micro_batches, pipeline.micro_batches) << "too few to skip any";
          EXPECT_EQ(steps, steps_of(pipeline, stage));
          continue;
        }
        ASSERT_GT(found.of_period, 0);
        EXPECT_EQ(found.left_out % found.of_period, 0);
        EXPECT_EQ(steps, without(pipeline, stage, found.asked.back(), found.left_out));
        EXPECT_EQ(count_of(steps, pipeline.micro_batches - 1),
                  count_of(steps_of(pipeline, stage), pipeline.micro_batches - 1))
            << "the last, at whose end gradients are summed over ranks, has another number";
      }
}

// The number of steps run is the same for any number of micro-batches.
TEST(PipelineWalk, StepsDoNotGrowWithMicroBatches) {
  const auto steps_of_many = [](int64_t micro_batches) {
    Found found(0, 1);
    const auto steps = walked({4, 2, micro_batches}, 1, &found);
    return steps.size();
  };
  EXPECT_EQ(steps_of_many(400), steps_of_many(4'000'000));
}

TEST(PipelineWalk, ReportsMissingPeriods) {
  const Pipeline pipeline{4, 1, 1000};
  Found never(1 << 20, 1);
  const auto steps = walked(pipeline, 0, &never);
  EXPECT_EQ(never.of_period, 0);
  EXPECT_EQ(steps.back().work.micro_batch, pipeline.micro_batches - 1);
  EXPECT_EQ(never.left_out, pipeline.micro_batches - shortened(pipeline).micro_batches);
}

}  // namespace
}  // namespace witan
