#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/expert_replicas.h"
#include "witan/kernels/moe/replica_rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kChooseThreads = 256;

ReplicaTables tables_of(const ReplicaChoice& choice) {
  return {ptr<int64_t>(choice.hosted), ptr<int64_t>(choice.place), choice.hosted.size(0), choice.hosted.size(1),
          choice.place.size(1)};
}

// A move's expert: the first of those with the largest gain.
struct Candidate {
  int64_t gain, sources, expert;  // as in ReplicaGain
};

// Leaves the best of all threads' candidates in each[0].
__device__ void find_best(Candidate* each) {
  for (int apart = kChooseThreads / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (threadIdx.x >= apart) continue;
    const Candidate mine = each[threadIdx.x], other = each[threadIdx.x + apart];
    if (other.gain > mine.gain || (other.gain == mine.gain && other.expert < mine.expert)) each[threadIdx.x] = other;
  }
  __syncthreads();
}

// Runs as one block, because each choice depends on those before it. Global memory that one thread has written is read
// by all threads after a barrier.
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(ReplicaTables tables, const int64_t* counts) {
  extern __shared__ unsigned long long loads[];  // [R], and then the slots that each rank has filled, [R]
  __shared__ Candidate each[kChooseThreads];
  const int64_t R = tables.ranks, E = tables.experts, all = R * E;
  int64_t* const used = reinterpret_cast<int64_t*>(loads + R);
  for (int64_t r = threadIdx.x; r < R; r += kChooseThreads) loads[r] = 0, used[r] = 0;
  for (int64_t i = threadIdx.x; i < R * tables.slots; i += kChooseThreads) tables.hosted[i] = -1;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < all; i += kChooseThreads) {
    tables.place[i] = tables.home_place(i % E);
    // The atomics add integers, so that their order does not matter.
    atomicAdd(&loads[tables.home(i % E)], static_cast<unsigned long long>(counts[i]));
  }
  __syncthreads();
  int64_t total = 0;
  for (int64_t r = 0; r < R; ++r) total += static_cast<int64_t>(loads[r]);

  while (true) {
    const ReplicaMove move = next_move(reinterpret_cast<const int64_t*>(loads), used, total, R, tables.slots);
    if (move.to == move.from) return;  // all threads take the same branch, here and below
    Candidate best{0, 0, E};
    const int64_t end = (move.from + 1) * tables.own();
    for (int64_t e = move.from * tables.own() + threadIdx.x; e < end; e += kChooseThreads)
      if (const ReplicaGain found = gain_of(tables, counts, move, e); found.gain > best.gain)
        best = {found.gain, found.sources, e};
    each[threadIdx.x] = best;
    find_best(each);
    best = each[0];
    if (best.gain == 0 || best.gain * kLeastReplicaGain < total) return;
    if (threadIdx.x == 0) {
      const int64_t moved = make_move(tables, counts, move, best.expert, used[move.to]++, best.sources);
      loads[move.from] -= static_cast<unsigned long long>(moved);
      loads[move.to] += static_cast<unsigned long long>(moved);
    }
    __syncthreads();
  }
}

__global__ void place_ids_kernel(int32_t* placed, const int32_t* ids, const int64_t* place, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
    placed[i] = ids[i] < 0 ? -1 : static_cast<int32_t>(place[ids[i]]);
}

// Runs as one block.
__global__ void __launch_bounds__(kThreads)
    place_counts_kernel(int64_t* placed, const int64_t* counts, const int64_t* place, int64_t places, int64_t experts) {
  for (int64_t i = threadIdx.x; i < places; i += kThreads) placed[i] = 0;
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) placed[place[e]] = counts[e];
}

// One block per slot.
__global__ void __launch_bounds__(kThreads)
    sources_kernel(int64_t* sources, ReplicaTables tables, int64_t rank, int64_t rank_stride, int64_t rows) {
  const int64_t slot = blockIdx.x, expert = tables.held(rank, slot, -1);
  const int64_t first = expert < 0 ? 0 : tables.home(expert) * rank_stride + expert % tables.own() * rows;
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) sources[slot * rows + i] = expert < 0 ? -1 : first + i;
}

// Runs as one block.
__global__ void __launch_bounds__(kThreads)
    homes_kernel(int64_t* homes, ReplicaTables tables, ReplicaRound round, int64_t rank_stride) {
  const int64_t expert = tables.held(round.rank, round.slot, round.part);
  int64_t first = 0;
  if (expert >= 0) {
    const int64_t home = tables.home(expert);
    first = home * rank_stride + tables.held_before(round.rank, round.slot, home, round.part) * round.rows;
  }
  for (int64_t i = threadIdx.x; i < round.rows; i += kThreads) homes[i] = expert < 0 ? -1 : first + i;
}

// One block per rank that may hold one of this rank's experts: its matrix is placed after those of lower ranks. The
// blocks of ranks that hold none fill the places after the last matrix.
__global__ void __launch_bounds__(kThreads)
    counts_kernel(int64_t* own, int64_t* hosted, int64_t* rows, ReplicaTables tables, ReplicaRound round) {
  const int64_t rank = blockIdx.x, expert = tables.held(rank, round.slot, round.rank, round.part);
  const int64_t mine = tables.held(round.rank, round.slot, round.part);
  if (threadIdx.x == 0) {
    own[rank] = expert >= 0 ? round.rows : 0;
    hosted[rank] = mine >= 0 && tables.home(mine) == rank ? round.rows : 0;
  }
  const int64_t before = tables.held_before(rank, round.slot, round.rank, round.part);
  // The n-th of the ranks that hold none fills the n-th place from the end.
  const int64_t at = expert >= 0 ? before : tables.ranks - 1 - (rank - before);
  const int64_t first = expert % tables.own() * round.rows;
  for (int64_t i = threadIdx.x; i < round.rows; i += kThreads) rows[at * round.rows + i] = expert >= 0 ? first + i : -1;
}

__global__ void experts_kernel(int64_t* experts, ReplicaTables tables, ReplicaRound round) {
  int64_t next = 0;
  for (int64_t rank = 0; rank < tables.ranks; ++rank)
    if (const int64_t expert = tables.held(rank, round.slot, round.rank, round.part); expert >= 0)
      experts[next++] = expert % tables.own();
  for (; next < tables.ranks; ++next) experts[next] = -1;
}

// Each thread handles the same elements of all matrices, so that an expert's matrices are added in order.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add_kernel(T* w, const T* found, const int64_t* experts, int64_t matrices, int64_t packs) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = 0; i < matrices; ++i) {
    const int64_t expert = experts[i];
    if (expert < 0) return;  // nor does any later matrix have one
    T* const to = w + expert * packs * N;
    const T* const from = found + i * packs * N;
    for (int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; j < packs; j += stride) {
      Pack<T, N> sum = load_pack<T, N>(to + j * N);
      const Pack<T, N> more = load_pack<T, N>(from + j * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum.at[k] = convert<T>(convert<Acc<T>>(sum.at[k]) + convert<Acc<T>>(more.at[k]));
      store_pack<T, N>(to + j * N, sum);
    }
  }
}

}  // namespace

void choose_replicas(Stream& stream, const ReplicaChoice& choice, const Tensor& counts) {
  const ReplicaTables tables = tables_of(choice);
  const size_t shared = 2 * static_cast<size_t>(tables.ranks) * sizeof(int64_t);
  choose_kernel<<<1, kChooseThreads, shared, native(stream)>>>(tables, ptr<int64_t>(counts));
}

void place_assignments(Stream& stream, const PlacedAssignments& placed, const Tensor& ids, const Tensor& counts,
                       const Tensor& place) {
  place_counts_kernel<<<1, kThreads, 0, native(stream)>>>(ptr<int64_t>(placed.counts), ptr<int64_t>(counts),
                                                          ptr<int64_t>(place), placed.counts.elements(),
                                                          place.elements());
  const int64_t n = ids.elements();
  if (n == 0) return;
  place_ids_kernel<<<blocks_for(stream, (n + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
      ptr<int32_t>(placed.ids), ptr<int32_t>(ids), ptr<int64_t>(place), n);
}

void replica_sources(Stream& stream, const Tensor& sources, const ReplicaChoice& choice, int64_t rank,
                     int64_t rank_stride) {
  const ReplicaTables tables = tables_of(choice);
  sources_kernel<<<static_cast<unsigned>(tables.slots), kThreads, 0, native(stream)>>>(
      ptr<int64_t>(sources), tables, rank, rank_stride, sources.elements() / tables.slots);
}

void replica_homes(Stream& stream, const Tensor& homes, const ReplicaChoice& choice, const ReplicaRound& round,
                   int64_t rank_stride) {
  homes_kernel<<<1, kThreads, 0, native(stream)>>>(ptr<int64_t>(homes), tables_of(choice), round, rank_stride);
}

void replica_counts(Stream& stream, const ReplicaCounts& counts, const ReplicaChoice& choice,
                    const ReplicaRound& round) {
  const ReplicaTables tables = tables_of(choice);
  counts_kernel<<<static_cast<unsigned>(tables.ranks), kThreads, 0, native(stream)>>>(
      ptr<int64_t>(counts.own), ptr<int64_t>(counts.hosted), ptr<int64_t>(counts.rows), tables, round);
}

void replica_experts(Stream& stream, const Tensor& experts, const ReplicaChoice& choice, const ReplicaRound& round) {
  experts_kernel<<<1, 1, 0, native(stream)>>>(ptr<int64_t>(experts), tables_of(choice), round);
}

void add_to_experts(Stream& stream, const Tensor& w, const Tensor& found, const Tensor& experts) {
  const int64_t matrices = experts.elements(), elements = matrices == 0 ? 0 : found.elements() / matrices;
  if (elements == 0) return;
  dispatch_device(w.dtype(), [&]<class T>() {
    constexpr int N = kPack<T>;
    const auto add = [&]<int kElements>() {
      const int64_t packs_of_matrix = elements / kElements;
      add_kernel<T, kElements>
          <<<blocks_for(stream, (packs_of_matrix + kThreads - 1) / kThreads, 8), kThreads, 0, native(stream)>>>(
              ptr<T>(w), ptr<T>(found), ptr<int64_t>(experts), matrices, packs_of_matrix);
    };
    if (packs<T>(w.raw(), elements) && packs<T>(found.raw(), elements))
      add.template operator()<N>();
    else
      add.template operator()<1>();
  });
}

}  // namespace witan::kernels::cuda
