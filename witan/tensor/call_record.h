// What calls a rank's work consists of: how often each kind of call is made, and what it costs. A plan's time comes
// from it, since the speed of a call depends on its shape, and on what else goes on at that moment.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "witan/tensor/trace_context.h"

namespace witan {

// The extents of a call that decide how fast it is; zeros: its cost says it all.
//   products        rows, columns and summed elements of one product, and how many there are
//   grouped ones    rows of all groups together, columns, summed elements, groups
//   attention       queries and keys of a sequence, channels of a head, sequences times heads
//   exchanges       bytes that a rank sends, and the ranks of the group
struct CallShape {
  int64_t m = 0, n = 0, k = 0, batch = 0;
  auto operator<=>(const CallShape&) const = default;
};

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

// Cost::calls says how many there are; of exchanges bytes are those that a rank sends.
using CallCosts = std::map<CallKind, Cost>;

}  // namespace witan
