// The trace context of a rank, its current position in its work: errors name the step and layer from it, and traces and
// plans record calls by it.
//
// A trace context refers to strings owned by others and is set by scopes; no text is built until it is needed.
#pragma once

#include <cstdint>
#include <map>
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
// describe() as the end of a sentence: " in step 3, …", or nothing.
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

// The extents of a call that decide its speed; zeros if its cost alone does.
//   products        rows, columns and summed elements of one product, and how many there are
//   grouped ones    rows of all groups together, columns, summed elements, groups
//   attention       queries and keys of a sequence, channels of a head, sequences times heads
//   exchanges       bytes that a rank sends, and the ranks of the group
struct CallShape {
  int64_t m = 0, n = 0, k = 0, batch = 0;
  auto operator<=>(const CallShape&) const = default;
};

// A kind of call. A plan estimates time by kinds, since the speed of a call depends on its shape and on the work beside
// it.
struct CallKind {
  TraceContext::Phase phase = TraceContext::Phase::none;
  int chunk = 0;           // of a pipeline rank's layers, where the phase is a forward or a backward
  bool beside = false;     // on a side stream, while the main one computes
  std::string part = {};   // of the model, "attention"
  std::string group = {};  // of ranks that exchange, "replicate"; empty: a kernel
  std::string name = {};   // of the kernel, or the operation: "gemm", "all_reduce"
  CallShape shape = {};
  auto operator<=>(const CallKind&) const = default;
};

// The calls that a rank's work consists of. Cost::calls is their number; the bytes of an exchange are those that a rank
// sends.
using CallCosts = std::map<CallKind, Cost>;

}  // namespace witan
