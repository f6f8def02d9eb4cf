// Some steps of a run, traced by each rank into RUN/trace/rank-N.json and merged into RUN/trace.json.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "witan/comm/control_group.h"
#include "witan/comm/group.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/observer.h"
#include "witan/train/config/config.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/trace/launch_trace.h"
#include "witan/train/trace/rank_trace.h"

namespace witan {

class StepTracer {
 public:
  // Nothing is traced where there is no range. All ranks make it together; all but the range must outlive it.
  StepTracer(World& world, const RunFolder& folder, const Groups& groups, Stream& stream,
             const std::optional<StepRange>& range);
  // Steps whose launches can be noted as they are queued are not observed, which would wait for each of them:
  // note(launches) is called when tracing begins, and note(null) when it ends. It must outlive the tracer.
  void note_launches(std::function<void(LaunchTrace*)> note) { note_ = std::move(note); }
  // Writes what there is; of a rank that failed too.
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  // Around each step of the run; collective over all ranks when tracing begins and when it ends. What a kill leaves
  // behind is whole steps: a file is replaced when it has grown by half, and at the end.
  void before_step(int64_t number);
  void after_step(int64_t number);
  // Before the run ends: collective where tracing has begun and not ended.
  void finish();

  // A wait of the host, as long as it lives.
  class Wait {
   public:
    Wait(StepTracer& tracer, std::string_view what);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    StepTracer& tracer_;
    const std::string_view what_;
    const int64_t begin_ns_;
  };

 private:
  void begin();
  void write();
  void observe(RankTrace* trace);
  void stop();
  fs::path file() const;

  const RunFolder& folder_;
  const Groups& groups_;
  Stream& stream_;
  const std::optional<StepRange> range_;
  std::optional<ControlGroup> control_group_;  // where there is a range
  std::unique_ptr<RankTrace> trace_;           // while steps are traced
  std::function<void(LaunchTrace*)> note_;     // none: ranks are observed
  std::unique_ptr<LaunchTrace> launches_;      // likewise
  int64_t step_begin_ns_ = 0;
  size_t written_ = 0;
};

// "rank 3: pipeline 1, shard 0": its coordinates on the axes that divide ranks.
std::string name_of_rank(const Layout& layout, int rank);

// Of the run that begins: what an earlier one has left.
void remove_traces(const RunFolder& folder);
// RUN/trace.json from the files that ranks have written; nothing where there are none.
void merge_traces(const RunFolder& folder, int ranks);

// How far the clock of the first rank of `world` is ahead of this rank's, in nanoseconds: from the round trip that took
// least of several (Cristian, 1989). 0 where the difference is within what was measured: the same host's clock.
// Collective; `stream` is on the CPU.
int64_t first_clock_ahead_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

// One moment, as each rank's own clock shows it. Likewise.
int64_t common_moment_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

}  // namespace witan
