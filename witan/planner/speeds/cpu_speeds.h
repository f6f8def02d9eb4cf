// The time of kernel calls on a CPU. For large models a rate alone would do. In small ones a call's fixed cost (waking
// the rank's threads, the loops around a kernel) and what it reads and writes outweigh its FLOPs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "witan/tensor/device.h"
#include "witan/tensor/trace_context.h"

namespace witan {

// Seconds per call, per FLOP, and per value or byte moved (moved_by()).
struct CallSpeed {
  double call = 0, flop = 0, moved = 0;
  bool operator==(const CallSpeed&) const = default;
};

// The values or bytes that calls of one kind move. For a kernel with a shape: its FLOPs over the smallest extent, since
// a product whose sums have 16 terms writes a value for every 16 multiply-adds. For any other kernel: its bytes.
double moved_by(const std::string& kernel, const CallShape& shape, const Cost& cost);

// Timed calls of a kernel: cost.calls of them in cost.seconds.
struct TimedCalls {
  double moved = 0;  // by all of the calls
  Cost cost;
  double weight = 1;  // weight of their relative error in the fit
};

// The speed with non-negative terms that minimises the relative errors of the times; all zeros if nothing was measured.
CallSpeed fit_speed(const std::vector<TimedCalls>& calls);

struct CpuSpeeds {
  std::map<std::string, CallSpeed> kernels;  // by name; "": the default for all others
  double exchange_call = 0;                  // fixed seconds of an exchange between ranks
  double between_call = 0;                   // seconds between two kernels

  bool operator==(const CpuSpeeds&) const = default;
  bool valid() const;  // checks values that were read from a file
  // Seconds of all calls of a kind; nullopt if `kernels` has no speed for them.
  std::optional<double> kernel_seconds(const CallKind& kind, const Cost& cost) const;
};

// Speeds assumed for a rank of which only the peaks are known, FLOP/s and bytes/s of copying: the shares of these peaks
// that the fits of measured machines have (docs/performance-log.md, "Predicted times on the CPU").
CpuSpeeds typical_cpu_speeds(double flops, double copy_bytes, int threads);

}  // namespace witan
