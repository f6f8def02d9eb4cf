// How long calls take on GPUs: kernels by their shape, exchanges by their size. They are measured on the GPUs at hand
// (planner/gpu_measure.h), or typical of a model of GPU.
#pragma once

#include <map>
#include <string>

#include "witan/planner/rate_table.h"
#include "witan/tensor/trace_context.h"

namespace witan {

struct GpuModel;

// A call takes `call` seconds, and its FLOPs or its bytes over their rates, whichever is more.
struct KernelSpeed {
  double call = 0;
  double flops = 0, bytes = 0;  // of a second; 0: they take no time
  bool operator==(const KernelSpeed&) const = default;
};

// A call between n ranks takes `call` seconds, `rank` for each rank beyond two, and the bytes that a rank sends over
// their rate.
struct ExchangeSpeed {
  double call = 0, rank = 0;
  double bytes = 0;  // of a second
  bool operator==(const ExchangeSpeed&) const = default;
};

struct GpuSpeeds {
  std::map<std::string, KernelSpeed> kernels;      // by name; "": all that have none of their own
  std::map<std::string, ExchangeSpeed> exchanges;  // by operation, likewise; within a host

  // FLOP/s beside the fixed cost of a call, where they depend on the shape of the call (CallShape); empty: they do not.
  RateTable products;                               // gemm: by M, N, K
  RateTable grouped;                                // products of groups of rows: by rows of a group
  RateTable attention_forward, attention_backward;  // by keys

  // Of products where there is no table: multiprocessors that compute tiles in waves, and their FLOP/s together.
  double multiprocessors = 0, product_flops = 0;

  // What moves beside kernels slows them down by this share of its own time: both use the same memory.
  double beside = 0;

  // Of all calls of a kind, of a kernel.
  double kernel_seconds(const CallKind& kind, const Cost& cost) const;
  const ExchangeSpeed& exchange(const std::string& operation) const;
  bool valid() const;  // a file may claim anything
  bool operator==(const GpuSpeeds&) const = default;
};

// FLOP/s that tiles of 128 x 256 leave of `flops` on so many multiprocessors: tiles are computed in waves, of which the
// last one is filled partly; few tiles with long sums are divided among multiprocessors (split-K).
double tiled_rate(const CallShape& shape, double multiprocessors, double flops);

// What a GPU that is not at hand is taken to do: its data sheet's figures times what H100s and H200s were measured to
// reach of theirs. Where each figure comes from: docs/performance-log.md, "Predicted times on GPUs".
// `value_bytes`: of the values that products take, 2 or 4.
GpuSpeeds typical_speeds(const GpuModel& gpu, int64_t value_bytes);

}  // namespace witan
