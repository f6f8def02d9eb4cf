#include "witan/parallel/pipeline_steps.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <set>
#include <utility>

namespace witan {
namespace {

using Kind = PipelineStep::Kind;

class Simulation {
 public:
  explicit Simulation(const Pipeline& pipeline) : pipeline_(pipeline), stages_(static_cast<size_t>(pipeline.stages)) {
    for (int stage = 0; stage < pipeline.stages; ++stage) at(stage).schedule = schedule_of(pipeline, stage);
  }

  std::vector<std::vector<PipelineStep>> run() {
    while (start()) {
      finish();
      transfer();
    }
    std::vector<std::vector<PipelineStep>> steps;
    for (Stage& stage : stages_) {
      assert(stage.next == stage.schedule.size() && stage.unsent.empty() && stage.received.empty());
      steps.push_back(std::move(stage.steps));
    }
    return steps;
  }

 private:
  struct Stage {
    std::vector<Work> schedule;
    size_t next = 0;  // of the schedule
    bool computes = false;
    int64_t done_at = 0;       // where it computes
    std::vector<Work> unsent;  // work whose output is still here
    std::set<Work> received;   // work whose input is here already
    std::vector<PipelineStep> steps;
  };

  static int64_t duration_of(const Work& work) { return work.pass == Work::Pass::forward ? 1 : 2; }
  Stage& at(int stage) { return stages_[static_cast<size_t>(stage)]; }

  // Stages that can compute begin to. Whether any computes.
  bool start() {
    bool any = false;
    for (int s = 0; s < pipeline_.stages; ++s) {
      Stage& stage = at(s);
      if (!stage.computes && stage.next < stage.schedule.size()) {
        const Work& work = stage.schedule[stage.next];
        if (!source_of(pipeline_, {s, work}) || stage.received.erase(work) > 0) {
          stage.computes = true;
          stage.done_at = now_ + duration_of(work);
          stage.steps.push_back({Kind::compute, work});
          ++stage.next;
        }
      }
      any = any || stage.computes;
    }
    return any;
  }

  // Time goes on to the next end of a computation.
  void finish() {
    int64_t soonest = INT64_MAX;
    for (const Stage& stage : stages_)
      if (stage.computes) soonest = std::min(soonest, stage.done_at);
    now_ = soonest;
    for (int s = 0; s < pipeline_.stages; ++s) {
      Stage& stage = at(s);
      if (!stage.computes || stage.done_at > now_) continue;
      stage.computes = false;
      const Work& work = stage.schedule[stage.next - 1];
      if (target_of(pipeline_, {s, work})) stage.unsent.push_back(work);
    }
  }

  // All that both ends have time for.
  void transfer() {
    for (int s = 0; s < pipeline_.stages; ++s) {
      if (at(s).computes) continue;
      auto& unsent = at(s).unsent;
      for (auto work = unsent.begin(); work != unsent.end();) {
        const StageWork target = *target_of(pipeline_, {s, *work});
        if (at(target.stage).computes) {
          ++work;
          continue;
        }
        at(s).steps.push_back({Kind::send, *work, target.stage});
        at(target.stage).steps.push_back({Kind::recv, target.work, s});
        at(target.stage).received.insert(target.work);
        work = unsent.erase(work);
      }
    }
  }

  const Pipeline& pipeline_;
  std::vector<Stage> stages_;
  int64_t now_ = 0;
};

}  // namespace

std::vector<std::vector<PipelineStep>> pipeline_steps(const Pipeline& pipeline) {
  return Simulation(pipeline).run();
}

}  // namespace witan
