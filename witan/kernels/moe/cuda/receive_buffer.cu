#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/receive_buffer.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kLimitThreads = 1024;

struct Limit {
  const int64_t* counts;  // [R, columns], the first of which belong to experts
  int64_t* kept;          // [E]
  double* fill;
  int ranks, experts, columns;
  PassBounds bounds;
};

__device__ double share_of(unsigned long long rows, int64_t bound) {
  return bound > 0 ? static_cast<double>(rows) / static_cast<double>(bound) : 0;
}

// Runs as one block: all ranks' counts are a few thousand numbers.
__global__ void __launch_bounds__(kLimitThreads) limit_counts_kernel(Limit l) {
  // The atomics add integers, so that their order does not matter.
  extern __shared__ unsigned long long loads[];  // [R] rows for each rank
  unsigned long long* sends = loads + l.ranks;   // [H, R / H] rows for each host from each position
  __shared__ unsigned long long most_of_one,
      most_copies;  // most rows from one rank for another, most tokens for a host
  __shared__ bool fits;
  const int local = l.experts / l.ranks, hosts = static_cast<int>(l.bounds.hosts), places = l.ranks / hosts;
  const auto in_pass = [&](int expert) { return expert % local * l.bounds.passes / local == l.bounds.pass; };
  for (int r = threadIdx.x; r < l.ranks; r += kLimitThreads) loads[r] = sends[r] = 0;
  if (threadIdx.x == 0) most_of_one = most_copies = 0;
  __syncthreads();
  for (int pair = threadIdx.x; pair < places * l.ranks; pair += kLimitThreads) {
    const int place = pair / l.ranks, to = pair % l.ranks;
    unsigned long long part = 0;  // from the ranks at this position on every host
    for (int from = place; from < l.ranks; from += places)
      for (int expert = to * local; expert < (to + 1) * local; ++expert)
        if (in_pass(expert)) part += static_cast<unsigned long long>(l.counts[from * l.columns + expert]);
    atomicAdd(&loads[to], part);
    atomicAdd(&sends[to / places * places + place], part);
    atomicMax(&most_of_one, part);
  }
  if (l.bounds.copies > 0)
    for (int i = threadIdx.x; i < l.ranks * hosts; i += kLimitThreads)
      atomicMax(&most_copies, static_cast<unsigned long long>(l.counts[i / hosts * l.columns + l.experts + i % hosts]));
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long most = 0, most_sent = 0;
    for (int r = 0; r < l.ranks; ++r) {
      most = max(most, loads[r]);
      most_sent = max(most_sent, sends[r]);
    }
    const double found = fmax(fmax(share_of(most, l.bounds.rows), share_of(most_of_one, l.bounds.part_rows)),
                              fmax(share_of(most_sent, l.bounds.send_rows), share_of(most_copies, l.bounds.copies)));
    fits = found <= 1;
    *l.fill = fmax(*l.fill, found);
  }
  __syncthreads();
  const int64_t* own = l.counts + l.bounds.rank * l.columns;
  for (int expert = threadIdx.x; expert < l.experts; expert += kLimitThreads)
    l.kept[expert] = fits && in_pass(expert) ? own[expert] : 0;
}

// Assignments to experts for which this rank keeps no rows are left out.
__global__ void limit_ids_kernel(int32_t* sent, const int32_t* ids, const int64_t* kept, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    const int32_t id = ids[i];
    sent[i] = id >= 0 && kept[id] > 0 ? id : -1;
  }
}

__global__ void number_rows_kernel(int64_t* index, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) index[i] = i;
}

__global__ void skip_overflow_kernel(double* step, const double* fill) {
  if (*fill > 1) step[step_value::skip] = *fill;
}

}  // namespace

void limit_to_buffer(Stream& stream, const SentAssignments& sent, const Tensor& fill, const Tensor& ids,
                     const Tensor& counts, const PassBounds& bounds) {
  const auto ranks = static_cast<int>(counts.size(0));
  const Limit limit{.counts = ptr<int64_t>(counts),
                    .kept = ptr<int64_t>(sent.counts),
                    .fill = ptr<double>(fill),
                    .ranks = ranks,
                    .experts = static_cast<int>(sent.counts.elements()),
                    .columns = static_cast<int>(counts.size(1)),
                    .bounds = bounds};
  limit_counts_kernel<<<1, kLimitThreads, 2 * static_cast<size_t>(ranks) * sizeof(int64_t), native(stream)>>>(limit);
  const int64_t n = ids.elements();
  if (n == 0) return;
  limit_ids_kernel<<<blocks_for(stream, (n + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(sent.ids), ptr<int32_t>(ids), ptr<int64_t>(sent.counts), n);
}

void number_rows(Stream& stream, const Tensor& index) {
  const int64_t n = index.elements();
  if (n == 0) return;
  number_rows_kernel<<<blocks_for(stream, (n + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
      ptr<int64_t>(index), n);
}

void skip_overflow(Stream& stream, const Tensor& step, const Tensor& fill) {
  skip_overflow_kernel<<<1, 1, 0, native(stream)>>>(ptr<double>(step), ptr<double>(fill));
}

}  // namespace witan::kernels::cuda
