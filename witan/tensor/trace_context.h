// The trace context of a rank: its current position in its work, for errors, which would otherwise not know the step
// and layer, and for traces.
//
// A trace context refers to strings owned by others and is set by scopes; no text is built until it is needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/tensor/device.h"

namespace witan {

struct TraceContext {
  enum class Phase : uint8_t {
    none,
    set_up,
    loading,
    forward,
    backward,
    gradients,
    optimizer,
    logging,
    evaluation,
    sample,
    saving
  };
  static constexpr int kPhases = 11;

  int64_t step = 0;  // from 1; 0: none
  Phase phase = Phase::none;
  int64_t micro_batch = -1;      // of this rank, from 0; -1: none
  std::string_view module = {};  // path of a module, "layers.2.moe", or a parameter's name
  std::string_view op = {};      // in a backward: the name under which its op was recorded
  int chunk = 0;                 // of a pipeline rank's layers that it passes through

  bool operator==(const TraceContext&) const = default;
};
std::string_view name_of(TraceContext::Phase phase);
// "step 3, backward of micro-batch 1, layers.2.moe (combine)"; empty if nothing is set.
std::string describe(const TraceContext& trace_context);
// The same as the end of a sentence: " in step 3, …", or nothing.
std::string in_words(const TraceContext& trace_context);

// Restores the stream's trace context when it is destroyed, whatever was set in between.
class TraceContextScope {
 public:
  explicit TraceContextScope(Stream& stream) : trace_context_(stream.trace_context()), before_(trace_context_) {}
  TraceContextScope(Stream& stream, TraceContext::Phase phase, int64_t micro_batch = -1) : TraceContextScope(stream) {
    trace_context_.phase = phase;
    trace_context_.micro_batch = micro_batch;
  }
  TraceContextScope(Stream& stream, std::string_view module) : TraceContextScope(stream) {
    if (!module.empty()) trace_context_.module = module;
  }
  ~TraceContextScope() { trace_context_ = before_; }
  TraceContextScope(const TraceContextScope&) = delete;
  TraceContextScope& operator=(const TraceContextScope&) = delete;

  TraceContext& operator*() const { return trace_context_; }
  TraceContext* operator->() const { return &trace_context_; }

 private:
  TraceContext& trace_context_;
  const TraceContext before_;
};

}  // namespace witan
