// A step as the device runs it, without waiting for any part of it: what was queued, by name and place in the model,
// with a moment on the device's clock (tensor/timing.h) before and after it. Of a step that is captured what was
// queued is noted once, and its timestamps are read after each replay.
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
  // The strings that trace contexts refer to must outlive it: names of modules and parameters.
  explicit LaunchTrace(std::unique_ptr<Timestamps> timestamps) : timestamps_(std::move(timestamps)) {}

  // Captured work follows without gaps, so that a launch begins where the one before it ended; what is queued as the
  // host comes to it may not.
  enum class Work : uint8_t { queued, captured };
  // Before a step is queued, or captured: forgets the one before it.
  void clear(Work work);
  // Before a step runs: see Timestamps::start().
  void start(Queue& queue) { timestamps_->start(queue); }

  void begins(Stream& stream) override;
  void ends(Stream& stream, QueuedWork work) override;
  void follows(Stream& stream) override;

  // What the step that began at the last start() took. Waits for it.
  void write(RankTrace& trace);

 private:
  // The main stream, or one beside it, in the order of their first launch.
  struct Lane {
    const Stream* stream;
    std::optional<size_t> last = {};     // the mark behind what was queued last, where nothing else came between
    std::optional<size_t> waiting = {};  // the mark from which on it waits for another stream
  };
  struct Entry {
    QueuedWork work;
    TraceContext context;
    int lane;
    size_t begin, end;
    std::optional<size_t> waited_since;
    std::array<int64_t, kMemoryTags> live;  // bytes, as they are when the device has come here
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
  std::vector<Open> open_;  // begun, not ended
};

}  // namespace witan
