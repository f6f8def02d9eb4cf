// Computes the maps of rows; dispatch_rows.cu moves the rows.
#include "witan/kernels/moe/cuda/expert_order.cuh"
#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostRuns = 2048;  // ranks times local experts, whose starts fit in shared memory

// One warp per rank.
__global__ void rank_counts_kernel(int64_t* send_counts, const int64_t* counts, int experts) {
  const int64_t* of_rank = counts + static_cast<int64_t>(blockIdx.x) * experts;
  int64_t sum = 0;
  for (int e = threadIdx.x; e < experts; e += 32) sum += of_rank[e];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) send_counts[blockIdx.x] = sum;
}

struct DeviceGroups {
  int64_t *begin, *count;                // [E]
  int64_t *source_begin, *source_count;  // [R, E]
};

struct Arrivals {
  const int64_t* received;               // [R, E]
  int64_t *begin, *count;                // [E]
  int64_t *source_begin, *source_count;  // [R, E]
  int64_t* recv_counts;                  // [R]
  int64_t* place;                        // [capacity]
  int64_t capacity;
  int ranks, experts;
};

// Every block scans the runs in both orders, as they arrive and as they are kept, and then places its share of rows.
__global__ void __launch_bounds__(kThreads) receive_order_kernel(Arrivals a) {
  extern __shared__ int64_t arrives[];  // [R, E]: each run's first row on arrival; then its first row as kept
  __shared__ int64_t total;
  const int R = a.ranks, E = a.experts, runs = R * E;
  int64_t* kept = arrives + runs;
  if (threadIdx.x < 32) {
    const int64_t sum = warp_exclusive_scan(
        runs, [&](int i) { return a.received[i]; }, [&](int i, int64_t row) { arrives[i] = row; });
    if (threadIdx.x == 0) total = sum;
  } else if (threadIdx.x < 64) {
    const auto run = [&](int i) { return i % R * E + i / R; };  // the i-th run by expert, then rank
    warp_exclusive_scan(
        runs, [&](int i) { return a.received[run(i)]; }, [&](int i, int64_t row) { kept[run(i)] = row; });
  }
  __syncthreads();

  const int64_t rows = min(total, a.capacity), stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < rows; row += stride) {
    int run = 0;  // the last run that begins at or before the row, which is never empty
    for (int behind = runs; behind - run > 1;) {
      const int middle = (run + behind) / 2;
      (arrives[middle] <= row ? run : behind) = middle;
    }
    a.place[row] = kept[run] + row - arrives[run];
  }
  if (blockIdx.x != 0) return;
  for (int i = threadIdx.x; i < runs; i += kThreads) {
    a.source_begin[i] = kept[i];
    a.source_count[i] = a.received[i];
  }
  for (int e = threadIdx.x; e < E; e += kThreads) {
    a.begin[e] = kept[e];
    a.count[e] = (e + 1 < E ? kept[e + 1] : total) - kept[e];
  }
  for (int r = threadIdx.x; r < R; r += kThreads)
    a.recv_counts[r] = (r + 1 < R ? arrives[(r + 1) * E] : total) - arrives[r * E];
}

// A warp scans the runs by expert, then rank.
__global__ void gathered_groups_kernel(DeviceGroups groups, const int64_t* received, int ranks, int experts) {
  const int runs = ranks * experts;
  const auto run = [&](int i) { return i % ranks * experts + i / ranks; };
  const int64_t total = warp_exclusive_scan(
      runs, [&](int i) { return groups.source_count[run(i)] = received[run(i)]; },
      [&](int i, int64_t row) { groups.source_begin[run(i)] = row; });
  __syncwarp();
  for (int e = threadIdx.x; e < experts; e += 32) {
    const int64_t first = groups.source_begin[e];
    groups.begin[e] = first;
    groups.count[e] = (e + 1 < experts ? groups.source_begin[e + 1] : total) - first;
  }
}

__global__ void __launch_bounds__(kThreads)
    local_choices_kernel(int32_t* local, const int32_t* ids, int64_t assignments, int64_t first, int64_t experts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < assignments; i += stride) {
    const int64_t id = ids[i], at = id - first;
    local[i] = id >= 0 && at >= 0 && at < experts ? static_cast<int32_t>(at) : -1;
  }
}

// blockIdx.x selects a run of assignments and blockIdx.y a share of it; each block counts each expert's assignments in
// shared memory. If a run has several blocks, each adds its integers to counts, which begin at 0, so that their order
// does not matter.
__global__ void count_assignments_kernel(int64_t* counts, const int32_t* ids, int64_t assignments, int64_t per_block,
                                         int experts) {
  extern __shared__ int found[];  // [E]
  for (int e = threadIdx.x; e < experts; e += blockDim.x) found[e] = 0;
  __syncthreads();
  ids += blockIdx.x * assignments;
  const int64_t begin = blockIdx.y * per_block, end = min(begin + per_block, assignments);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    if (ids[i] >= 0) atomicAdd(&found[ids[i]], 1);
  __syncthreads();
  counts += static_cast<int64_t>(blockIdx.x) * experts;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    if (gridDim.y == 1)
      counts[e] = found[e];
    else if (found[e] > 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(counts + e), static_cast<unsigned long long>(found[e]));
  }
}

// One block per run of rows that one rank has for one expert.
__global__ void __launch_bounds__(kThreads)
    merge_order_kernel(int64_t* begin, int64_t* count, int64_t* place, const int64_t* buffers, int64_t capacity,
                       int ranks, int experts) {
  __shared__ int64_t before, of_expert;  // rows of earlier experts, and of this one
  const int rank = static_cast<int>(blockIdx.x) / experts, expert = static_cast<int>(blockIdx.x) % experts;
  const auto rows = [&](int r, int e) { return buffers[(int64_t{2} * r + 1) * experts + e]; };
  if (threadIdx.x < 32) {
    int64_t earlier = 0, own = 0;
    for (int i = threadIdx.x; i < ranks * (expert + 1); i += 32)
      (i / ranks < expert ? earlier : own) += rows(i % ranks, i / ranks);
    earlier = warp_sum(earlier);
    own = warp_sum(own);
    if (threadIdx.x == 0) {
      before = earlier;
      of_expert = own;
    }
  }
  __syncthreads();
  if (rank == 0 && threadIdx.x == 0) {
    begin[expert] = before;
    count[expert] = of_expert;
  }
  int64_t to = before;
  for (int r = 0; r < rank; ++r) to += rows(r, expert);
  const int64_t from = rank * capacity + buffers[int64_t{2} * rank * experts + expert];
  for (int64_t i = threadIdx.x; i < rows(rank, expert); i += kThreads) place[to + i] = from + i;
}

}  // namespace

void send_order(Stream& stream, const Tensor& slot, const Tensor& source, const Tensor& ids, const Tensor& counts) {
  order_by_expert(stream, {.ids = ptr<int32_t>(ids),
                           .counts = ptr<int64_t>(counts),
                           .slot = ptr<int64_t>(slot),
                           .source = ptr<int64_t>(source),
                           .assignments = ids.elements(),
                           .rows = source.elements(),
                           .experts = static_cast<int>(counts.elements())});
}

void local_order(Stream& stream, const LocalOrder& order, const Tensor& ids, const Tensor& counts,
                 const Tensor& weights) {
  const bool narrow = weights.defined() && weights.dtype() == DType::f32;
  order_by_expert(stream, {.ids = ptr<int32_t>(ids),
                           .counts = ptr<int64_t>(counts),
                           .slot = ptr<int64_t>(order.slot),
                           .source = ptr<int64_t>(order.source),
                           .assignments = ids.elements(),
                           .rows = order.source.elements(),
                           .experts = static_cast<int>(counts.elements()),
                           .begin = ptr<int64_t>(order.groups.begin),
                           .count = ptr<int64_t>(order.groups.count),
                           .weights = narrow ? ptr<float>(weights) : nullptr,
                           .row_weights = narrow ? ptr<float>(order.row_weights) : nullptr});
  if (weights.defined() && !narrow)
    cuda::gather_rows(stream, order.row_weights, weights.reshape({weights.elements(), 1}), order.source, 1);
}

void gathered_groups(Stream& stream, const RowGroups& groups, const Tensor& received) {
  const DeviceGroups to{ptr<int64_t>(groups.begin), ptr<int64_t>(groups.count), ptr<int64_t>(groups.source_begin),
                        ptr<int64_t>(groups.source_count)};
  gathered_groups_kernel<<<1, 32, 0, native(stream)>>>(to, ptr<int64_t>(received), static_cast<int>(received.size(0)),
                                                       static_cast<int>(received.size(1)));
}

void local_choices(Stream& stream, const Tensor& local, const Tensor& ids, int64_t first, int64_t experts) {
  const int64_t assignments = ids.elements();
  if (assignments == 0) return;
  local_choices_kernel<<<blocks_for(stream, (assignments + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(local), ptr<int32_t>(ids), assignments, first, experts);
}

void rank_counts(Stream& stream, const Tensor& send_counts, const Tensor& counts) {
  const int64_t ranks = send_counts.elements();
  rank_counts_kernel<<<static_cast<unsigned>(ranks), 32, 0, native(stream)>>>(
      ptr<int64_t>(send_counts), ptr<int64_t>(counts), static_cast<int>(counts.elements() / ranks));
}

void receive_order(Stream& stream, const RowGroups& groups, const Tensor& recv_counts, const Tensor& place,
                   const Tensor& received) {
  require<ShapeError>(received.elements() <= kMostRuns, "receive_order: ranks times local experts may be at most ",
                      kMostRuns, " on a GPU, got ", received.shape());
  const Arrivals arrivals{.received = ptr<int64_t>(received),
                          .begin = ptr<int64_t>(groups.begin),
                          .count = ptr<int64_t>(groups.count),
                          .source_begin = ptr<int64_t>(groups.source_begin),
                          .source_count = ptr<int64_t>(groups.source_count),
                          .recv_counts = ptr<int64_t>(recv_counts),
                          .place = ptr<int64_t>(place),
                          .capacity = place.elements(),
                          .ranks = static_cast<int>(received.size(0)),
                          .experts = static_cast<int>(received.size(1))};
  const unsigned blocks = blocks_for(stream, (place.elements() + 4 * kThreads - 1) / (4 * kThreads), 1);
  const size_t shared = 2 * static_cast<size_t>(received.elements()) * sizeof(int64_t);
  receive_order_kernel<<<blocks, kThreads, shared, native(stream)>>>(arrivals);
}

void count_assignments(Stream& stream, const Tensor& counts, const Tensor& ids) {
  const int64_t experts = counts.shape().last(), runs = counts.elements() / experts, each = ids.elements() / runs;
  constexpr unsigned kMostThreads = 1024;
  constexpr int64_t kPerBlock = 16 * kMostThreads;
  const size_t shared = static_cast<size_t>(experts) * sizeof(int);
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((each + kPerBlock - 1) / kPerBlock, 1, 1024));
  if (blocks > 1) stream.zero(counts);
  count_assignments_kernel<<<dim3(static_cast<unsigned>(runs), blocks), kMostThreads, shared, native(stream)>>>(
      ptr<int64_t>(counts), ptr<int32_t>(ids), each, (each + blocks - 1) / blocks, static_cast<int>(experts));
}

void merge_order(Stream& stream, const RowGroups& groups, const Tensor& place, const Tensor& buffers,
                 int64_t capacity) {
  const auto ranks = static_cast<int>(buffers.size(0)), experts = static_cast<int>(buffers.size(2));
  merge_order_kernel<<<static_cast<unsigned>(ranks * experts), kThreads, 0, native(stream)>>>(
      ptr<int64_t>(groups.begin), ptr<int64_t>(groups.count), ptr<int64_t>(place), ptr<int64_t>(buffers), capacity,
      ranks, experts);
}

}  // namespace witan::kernels::cuda
