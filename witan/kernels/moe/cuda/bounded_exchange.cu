#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// blockIdx.y is a rank. Rows beyond its part or beyond the send order are left out; there are none if the counts fit.
__global__ void __launch_bounds__(kThreads)
    spread_to_parts_kernel(int64_t* slot, int64_t* parts, const int64_t* source, const int64_t* counts,
                           int64_t part_rows, int64_t sent) {
  __shared__ int64_t first;  // the rank's first row in the send order
  const int rank = static_cast<int>(blockIdx.y);
  if (threadIdx.x < 32) {
    int64_t before = 0;
    for (int r = static_cast<int>(threadIdx.x); r < rank; r += 32) before += counts[r];
    before = warp_sum(before);
    if (threadIdx.x == 0) first = before;
  }
  __syncthreads();
  const int64_t count = min(counts[rank], sent - first), stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < part_rows; i += stride) {
    const int64_t assignment = i < count ? source[first + i] : -1, row = rank * part_rows + i;
    parts[row] = assignment;
    if (assignment >= 0) slot[assignment] = row;
  }
}

// One block per run of rows that one rank has for one expert.
__global__ void __launch_bounds__(kThreads)
    find_in_parts_kernel(int64_t* arrival, const int64_t* source_begin, const int64_t* source_count, int64_t part_rows,
                         int64_t capacity, int experts) {
  __shared__ int64_t first;  // the run's first row in its part
  const int rank = static_cast<int>(blockIdx.x) / experts, expert = static_cast<int>(blockIdx.x) % experts;
  const int64_t* counts = source_count + static_cast<int64_t>(rank) * experts;
  if (threadIdx.x < 32) {
    int64_t before = 0;
    for (int e = static_cast<int>(threadIdx.x); e < expert; e += 32) before += counts[e];
    before = warp_sum(before);
    if (threadIdx.x == 0) first = before;
  }
  __syncthreads();
  const int64_t to = source_begin[blockIdx.x], from = rank * part_rows + first,
                count = min(counts[expert], capacity - to);
  for (int64_t i = threadIdx.x; i < count; i += kThreads) arrival[to + i] = from + i;
}

}  // namespace

void spread_to_parts(Stream& stream, const Tensor& slot, const Tensor& parts, const Tensor& source,
                     const Tensor& counts) {
  const int64_t ranks = counts.elements(), part_rows = parts.elements() / ranks;
  if (part_rows == 0) return;
  const dim3 blocks(blocks_for(stream, (part_rows + kThreads - 1) / kThreads), static_cast<unsigned>(ranks));
  spread_to_parts_kernel<<<blocks, kThreads, 0, native(stream)>>>(ptr<int64_t>(slot), ptr<int64_t>(parts),
                                                                  ptr<int64_t>(source), ptr<int64_t>(counts), part_rows,
                                                                  source.elements());
}

void find_in_parts(Stream& stream, const Tensor& arrival, const RowGroups& groups, int64_t part_rows) {
  const int64_t runs = groups.source_count.elements();
  find_in_parts_kernel<<<static_cast<unsigned>(runs), kThreads, 0, native(stream)>>>(
      ptr<int64_t>(arrival), ptr<int64_t>(groups.source_begin), ptr<int64_t>(groups.source_count), part_rows,
      arrival.elements(), static_cast<int>(groups.source_count.size(1)));
}

}  // namespace witan::kernels::cuda
