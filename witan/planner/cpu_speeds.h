// How long calls of kernels take on a CPU. A rate alone would do for large models. Of small ones a call's fixed cost
// (waking the rank's threads, the loops around a kernel) and what it reads and writes outweigh its FLOPs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/tensor/device.h"
#include "witan/tensor/trace_context.h"

namespace witan {

// Seconds of a call, of each of its FLOPs, and of each value or byte that it moves (moved_by()).
struct CallSpeed {
  double call = 0, flop = 0, moved = 0;
  bool operator==(const CallSpeed&) const = default;
};

// What calls of one kind move. Of a kernel with a shape: its FLOPs over the smallest extent, since a product whose sums
// have 16 terms writes a value for every 16 multiply-adds; of another: its bytes.
double moved_by(const std::string& kernel, const CallShape& shape, const Cost& cost);

// Calls of a kernel that were timed: as many as cost.calls, in cost.seconds.
struct TimedCalls {
  double moved = 0;  // by all of them
  Cost cost;
  double weight = 1;  // of the relative error that the fit has there
};

// The speed, without a negative part, whose times are nearest to those that were measured, relative to each; all zeros
// where nothing was.
CallSpeed fit_speed(const std::vector<TimedCalls>& calls);

struct CpuSpeeds {
  std::map<std::string, CallSpeed> kernels;  // by name; "": all that have none of their own
  double exchange_call = 0;                  // seconds of an exchange between ranks, beside its bytes
  double between_call = 0;                   // seconds between two kernels

  bool operator==(const CpuSpeeds&) const = default;
  bool valid() const;  // a file may claim anything
  // Of all calls of a kind; nothing where `kernels` has no speed for them.
  std::optional<double> kernel_seconds(const CallKind& kind, const Cost& cost) const;
};

// What a rank is taken to do of which nothing is known but its peaks, FLOP/s and bytes/s of copying: the shares of them
// that the fits of measured machines have (docs/performance-log.md, "Predicted times on the CPU").
CpuSpeeds typical_cpu_speeds(double flops, double copy_bytes, int threads);

}  // namespace witan
