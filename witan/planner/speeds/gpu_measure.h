// Measures how fast the calls of a step are on a device, by their shapes: what `witan doctor --gpu` keeps for plans.
#pragma once

#include <vector>

#include "witan/planner/speeds/gpu_speeds.h"

namespace witan {

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
