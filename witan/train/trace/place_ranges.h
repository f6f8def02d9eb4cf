// Emits ranges of a profiler (NVTX, for Nsight Systems) around the work that a rank queues: the step, the pass and the
// module. They follow the trace context, so that every module has its own in the forward and in the backward.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/tensor/observer.h"
#include "witan/tensor/trace_context.h"

namespace witan {

class PlaceRanges : public LaunchObserver {
 public:
  using Push = std::function<void(const std::string& name)>;
  using Pop = std::function<void()>;
  PlaceRanges(Push push, Pop pop) : push_(std::move(push)), pop_(std::move(pop)) {}

  void begins(Stream& stream) override;
  void ends(Stream&, QueuedWork) override {}
  void follows(Stream&) override {}
  // Closes the open ranges at the end of a step.
  void close() { go_to({}, {}); }

 private:
  void go_to(const TraceContext& context, std::vector<std::string> names);

  Push push_;
  Pop pop_;
  TraceContext at_;
  std::vector<std::string> open_;  // outermost first
};

}  // namespace witan
