// Traces a step as the device runs it, without waiting for any of its parts: each launch with its name, its place in
// the model, and timestamps of the device (tensor/timing.h) before and after it. The launches of a captured step
// are recorded once, and their timestamps are read after each replay.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/tensor/arena.h"
#include "witan/tensor/observer.h"
#include "witan/tensor/timing.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/trace/rank_trace.h"

namespace witan {

class LaunchTrace : public LaunchObserver {
 public:
  // The names of modules and parameters, to which trace contexts refer, must outlive it.
  explicit LaunchTrace(std::unique_ptr<Timestamps> timestamps) : timestamps_(std::move(timestamps)) {}

  // Captured launches follow each other without gaps, so that each begins where the one before it ended. Those that the
  // host queues one by one may not.
  enum class Work : uint8_t { queued, captured };
  // Called before a step is queued or captured; discards the previous one.
  void clear(Work work);
  // Called before a step runs; see Timestamps::start().
  void start(Queue& queue) { timestamps_->start(queue); }

  void begins(Stream& stream) override;
  void ends(Stream& stream, QueuedWork work) override;
  void follows(Stream& stream) override;

  // Waits for the step that began at the last start(), and writes its launches.
  void write(RankTrace& trace);

 private:
  // The main stream or a side stream, in the order of their first launches.
  struct Lane {
    const Stream* stream;
    std::optional<size_t> last = {};     // the mark after the last launch, if nothing has come between
    std::optional<size_t> waiting = {};  // the mark from which it waits for another stream
  };
  struct Entry {
    QueuedWork work;
    TraceContext context;
    int lane;
    size_t begin, end;
    std::optional<size_t> waited_since;
    std::array<int64_t, kMemoryTags> live;  // bytes, when the device has come this far
  };

  size_t lane_of(const Stream& stream);

  std::unique_ptr<Timestamps> timestamps_;
  Work work_ = Work::captured;
  std::vector<Lane> lanes_;
  std::vector<Entry> entries_;
  struct Open {
    size_t begin;
    std::optional<size_t> waited_since;
  };
  std::vector<Open> open_;  // launches that have begun and not ended
};

}  // namespace witan
