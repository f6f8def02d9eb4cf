#include <algorithm>
#include <cassert>

#include "witan/parallel/schedule.h"
#include "witan/planner/time/rank_time.h"

namespace witan {
namespace {

using Kind = PipelineStep::Kind;

double seconds_of(const StagePassTimes& times, const Work& work) {
  const auto& of_pass = work.pass == Work::Pass::forward ? times.forward : times.backward;
  return of_pass[static_cast<size_t>(work.chunk)];
}

// Simulates all stages, each of which takes its steps in order. A transfer begins once both of its ends have reached
// it.
class Player {
 public:
  Player(const Pipeline& pipeline, const std::vector<StagePassTimes>& stages, double send_seconds)
      : steps_(pipeline_steps(pipeline)),
        times_(stages),
        send_seconds_(send_seconds),
        next_(steps_.size(), 0),
        clocks_(steps_.size(), 0),
        work_(steps_.size(), 0) {}

  PipelineTime play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < steps_.size(); ++stage)
        while (take_step(stage)) moved = true;
    }
    PipelineTime time;
    for (size_t stage = 0; stage < steps_.size(); ++stage) {
      assert(next_[stage] == steps_[stage].size());
      time.seconds = std::max(time.seconds, clocks_[stage]);
      time.waits.push_back(clocks_[stage] - work_[stage]);
    }
    return time;
  }

 private:
  bool take_step(size_t stage) {
    if (next_[stage] == steps_[stage].size()) return false;
    const PipelineStep& step = steps_[stage][next_[stage]];
    if (step.kind == Kind::compute) {
      const double seconds = seconds_of(times_[stage], step.work);
      clocks_[stage] += seconds;
      work_[stage] += seconds;
      ++next_[stage];
      return true;
    }
    // Both ends follow one sequence of transfers, so that the peer's next transfer is this one.
    const auto peer = static_cast<size_t>(step.peer);
    if (next_[peer] == steps_[peer].size()) return false;
    const PipelineStep& other = steps_[peer][next_[peer]];
    if (other.kind == Kind::compute || static_cast<size_t>(other.peer) != stage || other.kind == step.kind)
      return false;
    clocks_[stage] = clocks_[peer] = std::max(clocks_[stage], clocks_[peer]) + send_seconds_;
    ++next_[stage];
    ++next_[peer];
    return true;
  }

  const std::vector<std::vector<PipelineStep>> steps_;
  const std::vector<StagePassTimes>& times_;
  const double send_seconds_;
  std::vector<size_t> next_;
  std::vector<double> clocks_, work_;
};

}  // namespace

double StagePassTimes::of_all_chunks() const {
  double sum = 0;
  for (const double seconds : forward) sum += seconds;
  for (const double seconds : backward) sum += seconds;
  return sum;
}

PipelineTime play_pipeline(const Pipeline& pipeline, const std::vector<StagePassTimes>& stages, double send_seconds) {
  assert(static_cast<int>(stages.size()) == pipeline.stages);
  const auto play = [&](int64_t micro_batches) {
    Pipeline shorter = pipeline;
    shorter.micro_batches = micro_batches;
    return Player(shorter, stages, send_seconds).play();
  };
  // A search simulates thousands of pipelines. Once the first micro-batches have passed all stages, each group of as
  // many micro-batches as stages takes equally long, so that the middle is extrapolated.
  constexpr int64_t kGroups = 6;
  const int64_t group = pipeline.stages, left_out = pipeline.micro_batches / group - kGroups;
  if (left_out <= 0) return play(pipeline.micro_batches);
  const int64_t some = pipeline.micro_batches - left_out * group;
  const PipelineTime fewer = play(some - group);
  PipelineTime time = play(some);
  const auto extended = [&](double value, double before) {
    return value + static_cast<double>(left_out) * (value - before);
  };
  time.seconds = extended(time.seconds, fewer.seconds);
  for (size_t stage = 0; stage < stages.size(); ++stage)
    time.waits[stage] = extended(time.waits[stage], fewer.waits[stage]);
  return time;
}

}  // namespace witan
