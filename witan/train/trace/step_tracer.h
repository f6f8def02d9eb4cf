// Traces a range of steps of a run: each rank writes RUN/trace/rank-N.json, and rank 0 merges them into RUN/trace.json.
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
  // Without a range nothing is traced. All ranks construct it together; all arguments but the range must outlive it.
  StepTracer(World& world, const RunFolder& folder, const Groups& groups, Stream& stream,
             const std::optional<StepRange>& range);
  // For steps whose launches can be recorded as they are queued: they are then not observed, which would wait for each
  // kernel. Calls note(launches) when tracing begins, and note(nullptr) when it ends. `note` must outlive the tracer.
  void note_launches(std::function<void(LaunchTrace*)> note) { note_ = std::move(note); }
  // Writes what was traced, even if the rank has failed.
  ~StepTracer();
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  // Called around each step of the run; collective over all ranks when tracing begins and ends. The file is replaced
  // when it has grown by half, and at the end, so that a kill leaves one with whole steps.
  void before_step(int64_t number);
  void after_step(int64_t number);
  // Called before the run ends; collective if tracing has begun and not ended.
  void finish();

  // Traces a wait of the host, for its lifetime.
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
  std::optional<ControlGroup> control_group_;  // empty without a range
  std::unique_ptr<RankTrace> trace_;           // while steps are traced
  std::function<void(LaunchTrace*)> note_;     // empty: the rank is observed
  std::unique_ptr<LaunchTrace> launches_;      // while steps are traced by note_
  int64_t step_begin_ns_ = 0;
  size_t written_ = 0;
};

// "rank 3: pipeline 1, shard 0": the rank's coordinates on the axes of the layout.
std::string name_of_rank(const Layout& layout, int rank);

// Removes the traces of an earlier start.
void remove_traces(const RunFolder& folder);
// Merges the files that ranks have written, if any, into RUN/trace.json.
void merge_traces(const RunFolder& folder, int ranks);

// How far the clock of the first rank of `world` is ahead of this rank's, in nanoseconds, by the shortest of several
// round trips (Cristian, 1989). 0 if the difference is below the round trip's duration, as between ranks of one host.
// Collective; `stream` is on the CPU.
int64_t first_clock_ahead_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

// The time of one common moment on each rank's own clock, in nanoseconds. Collective, as above.
int64_t common_moment_ns(Stream& stream, Group& world, const std::function<int64_t()>& clock = steady_ns);

}  // namespace witan
