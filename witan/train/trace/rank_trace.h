// Records the work of one rank: computation by kernel, communication by call, waits, and memory, each with its place in
// the model. It observes the rank as it works, or gets a step's launches afterwards (train/trace/launch_trace.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "witan/comm/group.h"
#include "witan/report/chrome_trace.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/observer.h"

namespace witan {

class RankTrace : public KernelObserver, public CallObserver {
 public:
  // `origin_ns`: the time on this rank's clock that is 0 in the trace. The stream must outlive it.
  RankTrace(Stream& stream, int rank, std::string_view name, int64_t origin_ns);

  void kernel(Stream& stream, const char* name, const Cost& cost, int64_t begin_ns, int64_t end_ns) override;
  void begins(const Group& group, const Collective& call, double bytes_sent) override;
  void met() override;
  void ends() override;
  // A wait of the host for the data or a save; with `lane` from 1 on, a wait of a side stream.
  void waited(std::string_view what, int64_t begin_ns, int64_t end_ns, int lane = 0);
  void step(int64_t number, int64_t begin_ns, int64_t end_ns);

  // A launch on the device, in order: lane 0 is the main stream, others are side streams. And the live bytes by tag.
  void launch(const QueuedWork& work, const TraceContext& context, int lane, int64_t begin_ns, int64_t end_ns);
  void memory(int64_t at_ns, const std::array<int64_t, kMemoryTags>& live);

  // The trace so far, including spans that have begun and not ended.
  std::string json();
  size_t bytes() const { return trace_.bytes(); }

 private:
  enum Track : int { kSteps = 1, kPasses, kModules, kKernels, kCalls, kWaits, kBeside };
  // Consecutive work of one kind is one slice.
  struct Span {
    TraceContext of = {};
    int64_t begin_ns = 0, end_ns = 0;
    bool open = false;
  };
  struct Call {
    std::string name, axis, tensor;
    int ranks = 0;
    double bytes = 0;
    int64_t begin_ns = 0;
    bool open = false;
  };

  bool full() const { return trace_.bytes() > kMostBytes; }
  void touch(const TraceContext& context, int64_t begin_ns, int64_t end_ns);
  int track_beside(int lane);
  void extend(Span& span, Track track, const TraceContext& of, int64_t begin_ns, int64_t end_ns);
  void close(Span& span, Track track);
  void close_call(bool done);
  void sample_memory(int64_t at_ns);
  static ChromeTrace::Args place(const TraceContext& context);

  static constexpr size_t kMostBytes = size_t{256} << 20;  // later events are left out

  Stream& stream_;
  ChromeTrace trace_;
  Span pass_, module_;
  Call call_;
  std::array<int64_t, kMemoryTags> live_;
  int lanes_ = 0;  // side streams with a track
};

}  // namespace witan
