// The stable counting sort of assignments by expert, which the send order and expert capacity both start from.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

struct ExpertOrder {
  const int32_t* ids;     // [assignments] in [0, experts), or -1: no row
  const int64_t* counts;  // [experts], their histogram
  int64_t* slot;          // [assignments] the row of each, or null
  int64_t* source;        // [rows] the assignment in each row, -1 behind the last
  int64_t assignments, rows;
  int experts;
};
// Takes the stream's scratch memory.
void order_by_expert(Stream& stream, const ExpertOrder& order);

// write(i, sum of read(0) … read(i - 1)) for i < n, by the calling warp; returns the sum of all.
template <class Read, class Write>
__device__ __forceinline__ int64_t warp_exclusive_scan(int n, const Read& read, const Write& write) {
  const int lane = threadIdx.x % 32;
  int64_t before = 0;
  for (int first = 0; first < n; first += 32) {
    const int i = first + lane;
    const int64_t value = i < n ? read(i) : 0;
    int64_t through = value;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int64_t left = __shfl_up_sync(0xffffffffu, through, apart);
      if (lane >= apart) through += left;
    }
    if (i < n) write(i, before + through - value);
    before += __shfl_sync(0xffffffffu, through, 31);
  }
  return before;
}

}  // namespace witan::kernels::cuda
