#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/fp8/fp8.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

struct Places {
  const int64_t *begin, *count;  // of groups, [sources, experts]
  int sources, experts;
  int64_t *block_begin, *block_count;    // [experts]
  int64_t *source_begin, *source_count;  // [sources, experts], or null
  int2* table;
  int most;
};

__device__ int warp_prefix(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const int left = __shfl_up_sync(0xffffffffu, value, apart);
    if (lane >= apart) value += left;
  }
  return value;
}

// The sum of the values of this thread and of all before it; called by the whole block.
__device__ int block_prefix(int value, int* warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own = warp_prefix(value);
  if (lane == 31) warps[warp] = own;
  __syncthreads();
  if (warp == 0) warps[lane] = warp_prefix(warps[lane]);
  __syncthreads();
  const int sum = own + (warp > 0 ? warps[warp - 1] : 0);
  __syncthreads();
  return sum;
}

// Runs as one block, which goes through the groups expert by expert.
__global__ void __launch_bounds__(kThreads) row_blocks_kernel(const __grid_constant__ Places p) {
  __shared__ int warps[kWarps], shared_total;
  const int groups = p.experts * p.sources, block = static_cast<int>(kFp8Block);
  int before = 0;
  for (int base = 0; base < groups; base += kThreads) {
    const int g = base + static_cast<int>(threadIdx.x), e = g / p.sources, r = g - e * p.sources;
    const bool exists = g < groups;
    const int at = exists ? r * p.experts + e : 0;
    const int begin = exists ? static_cast<int>(p.begin[at]) : 0, rows = exists ? static_cast<int>(p.count[at]) : 0;
    const int blocks = (rows + block - 1) / block, end = before + block_prefix(blocks, warps), first = end - blocks;
    if (exists) {
      if (r == 0) p.block_begin[e] = first;
      if (p.source_begin != nullptr) {
        p.source_begin[at] = first;
        p.source_count[at] = blocks;
      }
      for (int i = 0; i < blocks; ++i) p.table[first + i] = make_int2(begin + i * block, min(block, rows - i * block));
    }
    if (threadIdx.x == kThreads - 1) shared_total = end;
    __syncthreads();
    before = shared_total;
    __syncthreads();
  }
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += kThreads)
    p.block_count[e] = (e + 1 < p.experts ? p.block_begin[e + 1] : before) - p.block_begin[e];
  for (int i = before + static_cast<int>(threadIdx.x); i < p.most; i += kThreads) p.table[i] = make_int2(0, 0);
}

}  // namespace

void fp8_row_blocks(Stream& stream, const Fp8RowBlocks& blocks, const RowGroups& groups) {
  const bool by_source = groups.source_count.defined();
  const Places places{ptr<int64_t>(by_source ? groups.source_begin : groups.begin),
                      ptr<int64_t>(by_source ? groups.source_count : groups.count),
                      static_cast<int>(groups.sources()),
                      static_cast<int>(groups.experts()),
                      ptr<int64_t>(blocks.groups.begin),
                      ptr<int64_t>(blocks.groups.count),
                      ptr<int64_t>(blocks.groups.source_begin),
                      ptr<int64_t>(blocks.groups.source_count),
                      ptr<int2>(blocks.table),
                      static_cast<int>(blocks.most)};
  row_blocks_kernel<<<1, kThreads, 0, native(stream)>>>(places);
}

}  // namespace witan::kernels::cuda
