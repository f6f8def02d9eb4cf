#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "parallel/pipeline_support.h"
#include "witan/parallel/schedule.h"

namespace witan {
namespace {

using testing::for_pipelines;
using testing::Passes;
using testing::text_of;
using Kind = PipelineStep::Kind;

std::string steps_text(const Pipeline& pipeline, int stage) {
  std::string text;
  const auto all = pipeline_steps(pipeline);
  for (const auto& [kind, work, peer] : all[static_cast<size_t>(stage)]) {
    text += text.empty() ? "" : " ";
    if (kind == Kind::recv) text += std::to_string(peer) + ">";
    text += text_of(pipeline, work);
    if (kind == Kind::send) text += ">" + std::to_string(peer);
  }
  return text;
}

// Runs all stages, each on its own clock; the first end of a transfer waits for the other. Returns the time at which
// the last stage is done; -1 for a deadlock.
double run(const Pipeline& pipeline, const std::vector<std::vector<PipelineStep>>& steps,
           const std::function<double(const Work&)>& duration_of) {
  std::vector<size_t> next(steps.size());
  std::vector<double> clock(steps.size());
  const auto meet = [&](int stage, const PipelineStep& step) {
    const auto s = static_cast<size_t>(stage), p = static_cast<size_t>(step.peer);
    if (next[p] == steps[p].size()) return false;
    const PipelineStep& other = steps[p][next[p]];
    if (other.kind == Kind::compute || other.kind == step.kind || other.peer != stage) return false;
    const auto& [sender, sent] = step.kind == Kind::send ? std::pair(stage, step) : std::pair(step.peer, other);
    const Work& taken = step.kind == Kind::send ? other.work : step.work;
    EXPECT_EQ(target_of(pipeline, {sender, sent.work})->work, taken) << "inputs are mixed up";
    clock[s] = clock[p] = std::max(clock[s], clock[p]);
    ++next[p];
    return true;
  };
  for (bool any = true; any;) {
    any = false;
    for (size_t s = 0; s < steps.size(); ++s)
      for (; next[s] < steps[s].size(); ++next[s], any = true) {
        const PipelineStep& step = steps[s][next[s]];
        if (step.kind != Kind::compute) {
          if (!meet(static_cast<int>(s), step)) break;
        } else {
          clock[s] += duration_of(step.work);
        }
      }
  }
  for (size_t s = 0; s < steps.size(); ++s)
    if (next[s] != steps[s].size()) return -1;
  return *std::max_element(clock.begin(), clock.end());
}

// Worked out by hand: forwards take one unit and backwards two; transfers are at times 1, 4, 4, 7, 7 and 10.
TEST(PipelineSteps, MatchAHandWrittenExample) {
  const Pipeline pipeline{.stages = 2, .micro_batches = 3};
  EXPECT_EQ(steps_text(pipeline, 0), "F0 F0>1 F1 F1>1 1>B0 B0 F2 F2>1 1>B1 B1 1>B2 B2");
  EXPECT_EQ(steps_text(pipeline, 1), "0>F0 F0 B0 0>F1 B0>0 F1 B1 0>F2 B1>0 F2 B2 B2>0");
}

TEST(PipelineSteps, FollowTheScheduleWithInputsBeforeAndOutputsAfter) {
  for_pipelines([](const Pipeline& pipeline) {
    const auto all = pipeline_steps(pipeline);
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      std::vector<Work> computed;
      std::set<Work> received, sent;
      for (const auto& [kind, work, peer] : all[static_cast<size_t>(stage)]) {
        const bool done = std::ranges::find(computed, work) != computed.end();
        if (kind == Kind::recv) {
          ASSERT_TRUE(!done && received.insert(work).second);
          ASSERT_EQ(source_of(pipeline, {stage, work})->stage, peer);
        } else if (kind == Kind::send) {
          ASSERT_TRUE(done && sent.insert(work).second);
          ASSERT_EQ(target_of(pipeline, {stage, work})->stage, peer);
        } else {
          ASSERT_EQ(received.contains(work), source_of(pipeline, {stage, work}).has_value());
          computed.push_back(work);
        }
      }
      ASSERT_EQ(computed, schedule_of(pipeline, stage));
      for (const Work& work : computed) ASSERT_EQ(sent.contains(work), target_of(pipeline, {stage, work}).has_value());
    }
  });
}

// Compares with bubble_over_work(), which assumes the fastest transfers.
TEST(PipelineSteps, WaitNotAtAllWithOneChunkAndLittleWithMore) {
  for_pipelines([](const Pipeline& pipeline) {
    const auto steps = pipeline_steps(pipeline);
    const auto pairs = static_cast<double>(pipeline.micro_batches * pipeline.chunks);
    for (const double backward : {1.5, 2., 3.}) {
      const double work = pairs * (pipeline.passes == Passes::both ? 1 + backward : 1);
      const double fastest = work * (1 + bubble_over_work(pipeline));
      const double time =
          run(pipeline, steps, [&](const Work& w) { return w.pass == testing::Pass::forward ? 1 : backward; });
      if (pipeline.chunks == 1 || pipeline.passes == Passes::forward) {
        ASSERT_NEAR(time, fastest, 1e-9 * work);
      } else {
        ASSERT_LT(time, (backward == 2 ? 1.05 : 1.12) * fastest) << "backward takes " << backward;
      }
    }
  });
}

TEST(PipelineSteps, DoNotDeadlockAtAnySpeed) {
  std::mt19937 random(7);
  for_pipelines([&](const Pipeline& pipeline) {
    if (pipeline.micro_batches % 5 != 0) return;
    const auto steps = pipeline_steps(pipeline);
    std::exponential_distribution<double> some(1);  // some stages are much faster than others
    ASSERT_GT(run(pipeline, steps, [&](const Work&) { return some(random); }), 0);
  });
}

TEST(PipelineSteps, HoldFewWaitingTensors) {
  for_pipelines([](const Pipeline& pipeline) {
    const bool even = pipeline.micro_batches % pipeline.stages == 0;
    const int most_outputs = pipeline.chunks == 1 ? 0 : even ? 2 : pipeline.stages + 1;
    const int most_inputs = pipeline.chunks == 1 ? 2 : even ? 4 : pipeline.stages + 4;
    const auto all = pipeline_steps(pipeline);
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      int inputs = 0, outputs = 0;
      std::set<Work> received, unsent;
      for (const auto& [kind, work, peer] : all[static_cast<size_t>(stage)]) {
        if (kind == Kind::recv) received.insert(work);
        if (kind == Kind::send) unsent.erase(work);
        if (kind != Kind::compute) continue;
        outputs = std::max(outputs, static_cast<int>(unsent.size()));  // waiting while other work is computed
        inputs = std::max(inputs, static_cast<int>(received.size()));
        received.erase(work);
        if (target_of(pipeline, {stage, work})) unsent.insert(work);
      }
      ASSERT_LE(outputs, most_outputs);
      ASSERT_LE(inputs, most_inputs);
    }
  });
}

}  // namespace
}  // namespace witan
