// The time of calls on GPUs: kernels by their shape, exchanges by their size. They are measured on the GPUs at hand
// (gpu_measure.cpp), or typical of a GPU model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/tensor/trace_context.h"

namespace witan {

// Rates measured at some sizes and interpolated between them: a value at every point of a grid. Between points the
// logarithm of the value is linear in the logarithms of the sizes, so that it is exact at the points, lies between its
// neighbours, and rises wherever they do. Beyond the grid the value at its border holds.
struct RateTable {
  std::vector<std::vector<double>> axes;  // sizes along each axis, ascending, above 0
  std::vector<double> values;             // [product of the axes' sizes], above 0; the last axis is the innermost

  bool empty() const { return values.empty(); }
  // Checks a table that was read from a file.
  bool valid() const;
  // The rate at `at`, one size above 0 per axis. The table must be valid and not empty.
  double of(const std::vector<double>& at) const;
  bool operator==(const RateTable&) const = default;
};

struct GpuModel;

// A call takes `call` seconds plus the larger of its FLOPs and its bytes over their rates.
struct KernelSpeed {
  double call = 0;
  double flops = 0, bytes = 0;  // per second; 0: they take no time
  bool operator==(const KernelSpeed&) const = default;
};

// A call between n ranks takes `call` seconds, `rank` for each rank beyond two, and the bytes that a rank sends over
// their rate.
struct ExchangeSpeed {
  double call = 0, rank = 0;
  double bytes = 0;  // per second
  bool operator==(const ExchangeSpeed&) const = default;
};

struct GpuSpeeds {
  std::map<std::string, KernelSpeed> kernels;      // by name; "": the default for all others
  std::map<std::string, ExchangeSpeed> exchanges;  // by operation, with the same default; within a host

  // FLOP/s without the fixed cost of a call, for calls whose rate depends on their shape (CallShape); empty: it does
  // not.
  RateTable products;                               // gemm: by M, N, K
  RateTable grouped;                                // grouped products, by rows per group
  RateTable attention_forward, attention_backward;  // by number of keys

  // For products without a table: multiprocessors that compute tiles in waves, and their total FLOP/s.
  double multiprocessors = 0, product_flops = 0;

  // An overlapped exchange slows down kernels by this share of its own time, because both use the same memory.
  double beside = 0;

  // Seconds of all calls of a kernel of one kind.
  double kernel_seconds(const CallKind& kind, const Cost& cost) const;
  const ExchangeSpeed& exchange(const std::string& operation) const;
  bool valid() const;  // checks values that were read from a file
  bool operator==(const GpuSpeeds&) const = default;
};

// The FLOP/s that remain of `flops` when a product is computed in tiles of 128 x 256 on so many multiprocessors: tiles
// run in waves, of which the last is only partly filled; few tiles with long sums are split over multiprocessors
// (split-K).
double tiled_rate(const CallShape& shape, double multiprocessors, double flops);

// Speeds assumed for a GPU that is not at hand: its data sheet's figures times the shares that H100s and H200s were
// measured to reach. docs/performance-log.md, "Predicted times on GPUs", has the source of each figure.
// `value_bytes`: size of the values that matrix products take, 2 or 4.
GpuSpeeds typical_speeds(const GpuModel& gpu, int64_t value_bytes);

// The sizes at which calls are measured: sides of products, keys of attention, rows per group.
struct MeasuredSizes {
  std::vector<int64_t> sides = {128, 512, 1024, 2048, 4096, 16384};
  std::vector<int64_t> keys = {256, 512, 1024, 2048, 4096, 8192};
  std::vector<int64_t> group_rows = {64, 256, 1024, 4096};
  int64_t tokens = 16384;  // tokens of all sequences in an attention call; rows of other kernels
  double most_flops =
      2.2e12;             // the largest product that is measured: larger ones are assumed to be as fast as the largest
  double seconds = 0.01;  // measuring time of each figure
  static int64_t arena_bytes();  // enough for these sizes
};

// Measures how fast the calls of a step are on a device, by their shapes; `witan doctor --gpu` keeps the result for
// plans. Returns `typical` with the measured values in place of its own: products, attention, grouped products, fixed
// costs, and the rate of memory-bound kernels, on random values. On a GPU calls are replayed as a CUDA graph, as in a
// step. About 230 figures, 10 s on an H100. Throws OutOfMemoryError, DeviceError.
GpuSpeeds measure_speeds(Stream& stream, const GpuSpeeds& typical, DType dtype, const MeasuredSizes& sizes = {});

}  // namespace witan
