// How long calls take on GPUs: kernels by their shape, exchanges by their size. They are measured on the GPUs at hand
// (gpu_measure.cpp), or typical of a model of GPU.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/tensor/call_record.h"

namespace witan {

// A value at every point of a grid. Between points it is linear in the logarithms of sizes and value, so that it is
// exact at the points, lies between its neighbours, and rises wherever they do; beyond the grid it is that of its
// border.
struct RateTable {
  std::vector<std::vector<double>> axes;  // sizes above 0, ascending, of each axis
  std::vector<double> values;             // above 0; the last axis is the innermost

  bool empty() const { return values.empty(); }
  // Whether it is what it claims to be: it may come from a file.
  bool valid() const;
  // `at`: a size for each axis, above 0. The table is valid and not empty.
  double of(const std::vector<double>& at) const;
  bool operator==(const RateTable&) const = default;
};

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

// What is measured: the sides of products, keys of attention, rows of a group.
struct MeasuredSizes {
  std::vector<int64_t> sides = {128, 512, 1024, 2048, 4096, 16384};
  std::vector<int64_t> keys = {256, 512, 1024, 2048, 4096, 8192};
  std::vector<int64_t> group_rows = {64, 256, 1024, 4096};
  int64_t tokens = 16384;        // of all sequences of attention together; rows of other kernels
  double most_flops = 2.2e12;    // of a product: larger ones are as fast as the largest
  double seconds = 0.01;         // for each figure
  static int64_t arena_bytes();  // enough for these
};

// `typical` with what was measured in place of it: products, attention, products of groups, the fixed cost and the rate
// of kernels that memory bounds, on random values. On a GPU calls are replayed as a CUDA graph, as in a step. About 230
// figures, 10 s on an H100. Throws OutOfMemoryError, DeviceError.
GpuSpeeds measure_speeds(Stream& stream, const GpuSpeeds& typical, DType dtype, const MeasuredSizes& sizes = {});

}  // namespace witan
