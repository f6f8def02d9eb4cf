#include <algorithm>
#include <cassert>
#include <cstdint>
#include <set>
#include <utility>

#include "witan/parallel/schedule.h"

namespace witan {
namespace {

using Kind = PipelineStep::Kind;
using Pass = Work::Pass;

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
      assert(stage.done == stage.schedule.size() && stage.unsent.empty() && stage.received.empty());
      steps.push_back(std::move(stage.steps));
    }
    return steps;
  }

 private:
  struct Stage {
    std::vector<Work> schedule;
    size_t begun = 0, done = 0;  // positions in the schedule
    int64_t done_at = 0;         // end time of the work in progress
    std::vector<Work> unsent;    // finished work whose output is not sent yet
    std::set<Work> received;     // work whose input has arrived
    std::vector<PipelineStep> steps;
    bool computes() const { return done < begun; }
  };

  Stage& at(int stage) { return stages_[static_cast<size_t>(stage)]; }

  // Whether the stage's next work has its input, or needs none.
  bool is_ready(int s) {
    Stage& stage = at(s);
    if (stage.begun == stage.schedule.size()) return false;
    const Work& work = stage.schedule[stage.begun];
    return !source_of(pipeline_, {s, work}) || stage.received.contains(work);
  }

  void begin_work(int s) {
    Stage& stage = at(s);
    const Work& work = stage.schedule[stage.begun++];
    stage.received.erase(work);
    stage.done_at = std::max(stage.done_at, now_) + (work.pass == Pass::forward ? 1 : 2);
    stage.steps.push_back({Kind::compute, work});
  }

  // Starts the next work of every stage that can compute; returns whether any stage computes.
  bool start() {
    bool any = false;
    for (int s = 0; s < pipeline_.stages; ++s) {
      Stage& stage = at(s);
      if (!stage.computes() && is_ready(s)) {
        begin_work(s);
        const bool turns = stage.schedule[stage.begun - 1].pass == Pass::forward &&
                           stage.begun < stage.schedule.size() && stage.schedule[stage.begun].pass == Pass::backward;
        if (turns && is_ready(s)) begin_work(s);
      }
      any = any || stage.computes();
    }
    return any;
  }

  // Advances time to the next moment at which a stage finishes its work.
  void finish() {
    now_ = INT64_MAX;
    for (const Stage& stage : stages_)
      if (stage.computes()) now_ = std::min(now_, stage.done_at);
    for (int s = 0; s < pipeline_.stages; ++s) {
      Stage& stage = at(s);
      if (stage.done_at > now_) continue;
      for (; stage.computes(); ++stage.done)
        if (const Work& work = stage.schedule[stage.done]; target_of(pipeline_, {s, work}))
          stage.unsent.push_back(work);
    }
  }

  // Does all transfers for which both ends are free.
  void transfer() {
    for (int s = 0; s < pipeline_.stages; ++s) {
      if (at(s).computes()) continue;
      auto& unsent = at(s).unsent;
      for (auto work = unsent.begin(); work != unsent.end();) {
        const StageWork target = *target_of(pipeline_, {s, *work});
        if (at(target.stage).computes()) {
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
