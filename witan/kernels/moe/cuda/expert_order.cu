#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/moe/cuda/expert_order.cuh"
#include "witan/kernels/moe/scores.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostExperts = kMostExpertsOnGpu;  // their counters fit in shared memory
constexpr int64_t kLeastPerWarp = 64;

// partial[b, e]: assignments to expert e in block b's run
__global__ void __launch_bounds__(kThreads)
    histogram_kernel(int32_t* partial, const int32_t* ids, int64_t assignments, int64_t per_block, int experts) {
  extern __shared__ int32_t counts[];  // [E]
  for (int e = threadIdx.x; e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * per_block, end = min(begin + per_block, assignments);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    if (ids[i] >= 0) atomicAdd(counts + ids[i], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads)
    partial[static_cast<int64_t>(blockIdx.x) * experts + e] = counts[e];
}

// Each warp places its own run of assignments after those of earlier blocks and earlier warps, so that the order is
// stable however blocks are scheduled. Integer atomics only count. The next kernel begins when this one has ended,
// since it may read the experts of rows early.
__global__ void __launch_bounds__(kThreads) place_kernel(ExpertOrder order, const int32_t* partial, int64_t per_warp) {
  extern __shared__ int32_t start[];  // [E], then the next row of each warp's assignments, [kWarps, E]
  __shared__ int64_t total;
  const int E = order.experts, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t *all_next = start + E, *next = all_next + warp * E;
  for (int i = threadIdx.x; i < kWarps * E; i += kThreads) all_next[i] = 0;
  wait_for_earlier();
  if (warp == 0) {
    const int64_t sum = warp_exclusive_scan(
        E, [&](int e) { return order.counts[e]; }, [&](int e, int64_t row) { start[e] = static_cast<int32_t>(row); });
    if (lane == 0) total = sum;
  }
  __syncthreads();

  if (blockIdx.x == 0 && order.begin)
    for (int e = threadIdx.x; e < E; e += kThreads) {
      order.begin[e] = start[e];
      order.count[e] = order.counts[e];
    }
  const int of_earlier_blocks = static_cast<int>(blockIdx.x) * E;
  for (int i = threadIdx.x; i < of_earlier_blocks; i += kThreads) atomicAdd(start + i % E, partial[i]);
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * per_warp;
  const int64_t end = min(begin + per_warp, order.assignments);
  for (int64_t i = begin + lane; i < end; i += 32)
    if (order.ids[i] >= 0) atomicAdd(next + order.ids[i], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads) {
    int32_t row = start[e];
    for (int w = 0; w < kWarps; ++w) {
      const int32_t count = all_next[w * E + e];
      all_next[w * E + e] = row;
      row += count;
    }
  }
  __syncthreads();

  for (int64_t first = begin; first < end; first += 32) {
    const int64_t i = first + lane;
    const int id = i < end ? order.ids[i] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, id);
    const int before = __popc(same & ((1u << lane) - 1));
    const int64_t row = id < 0 ? -1 : next[id] + before;
    __syncwarp();
    if (id >= 0 && before == 0) next[id] += __popc(same);
    __syncwarp();
    if (i < end && order.slot) order.slot[i] = row;
    if (row >= 0) {
      order.source[row] = i;
      if (order.weights) order.row_weights[row] = order.weights[i];
    }
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = total + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < order.rows;
       row += stride) {
    order.source[row] = -1;
    if (order.weights) order.row_weights[row] = 0;
  }
}

}  // namespace

void order_by_expert(Stream& stream, const ExpertOrder& order) {
  require<ShapeError>(order.experts <= kMostExperts, "routing on a GPU supports at most ", kMostExperts,
                      " experts, got ", order.experts);
  assert(order.assignments < int64_t{1} << 31);
  const int64_t wanted = (order.assignments + kWarps * kLeastPerWarp - 1) / (kWarps * kLeastPerWarp);
  const int64_t most = blocks_for(stream, wanted, 1) * kWarps;
  const int64_t per_warp = std::max<int64_t>((order.assignments + most * 32 - 1) / (most * 32), 1) * 32;
  const int64_t per_block = per_warp * kWarps;
  const auto blocks = static_cast<unsigned>(std::max<int64_t>((order.assignments + per_block - 1) / per_block, 1));
  const size_t counters = static_cast<size_t>(order.experts) * sizeof(int32_t);
  auto* partial = reinterpret_cast<int32_t*>(stream.scratch(static_cast<int64_t>(blocks * counters)));
  if (blocks > 1)
    histogram_kernel<<<blocks, kThreads, counters, native(stream)>>>(partial, order.ids, order.assignments, per_block,
                                                                     order.experts);
  launch_early(stream, place_kernel, blocks, kThreads, static_cast<int64_t>((kWarps + 1) * counters), order, partial,
               per_warp);
}

}  // namespace witan::kernels::cuda
