// Exchanges counts between all ranks, and computes the place of every row from them.
#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/peer_device.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kMostPeers < kThreads / 32);

struct Placed {
  const int64_t* counts;  // [E] of this rank
  int experts;
  int64_t capacity;
  int64_t *begin, *count;                // [E_local]
  int64_t *source_begin, *source_count;  // [R, E_local]
};

// One warp: values become the sums of those before them; returns the sum of all.
__device__ int64_t exclusive_scan(int64_t* values, int count) {
  const int lane = threadIdx.x % 32;
  int64_t carry = 0;
  for (int start = 0; start < count; start += 32) {
    const int64_t own = start + lane < count ? values[start + lane] : 0;
    int64_t sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t before = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += before;
    }
    if (start + lane < count) values[start + lane] = carry + sum - own;
    carry += __shfl_sync(0xffffffffu, sum, 31);
  }
  return carry;
}

// Sends this rank's counts to all ranks and waits for theirs.
__device__ bool exchange_counts(const Peers& peers, const Placed& out, uint32_t epoch) {
  const int E = out.experts;
  for (int i = threadIdx.x; i < peers.size * E; i += kThreads)
    peers.windows[i / E]->counts[epoch % 2][peers.rank][i % E] = out.counts[i % E];
  __syncthreads();
  bool arrived = true;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.size) {
    __threadfence_system();
    store_release(&peers.windows[peer]->counted[peers.rank], epoch);
    arrived = !stopped(peers.waits, false) &&
              wait_for(peers.waits, &peers.windows[peers.rank]->counted[peer], epoch, peer, Trouble::counts, true);
  }
  return __syncthreads_and(arrived) != 0;
}

// One block. A rank's pool is ordered by expert, then by source rank. All groups are empty when the world has failed,
// or when the pool is too small.
__global__ void __launch_bounds__(kThreads) place_kernel(const __grid_constant__ Peers peers, Placed out) {
  __shared__ int64_t start[PeerMemory::kMostExperts];  // rows of each expert; then its first row in its rank's pool
  __shared__ int64_t first[PeerMemory::kMostExperts];  // own rows for each expert; then the first of them
  __shared__ bool fits;
  Window* own = peers.windows[peers.rank];
  const uint32_t epoch = own->counts_taken + 1;
  const int E = out.experts, local = E / peers.size, warp = threadIdx.x / 32;
  const bool arrived = exchange_counts(peers, out, epoch);
  const auto rows = [&](int rank, int e) { return arrived ? __ldcg(&own->counts[epoch % 2][rank][e]) : int64_t{0}; };

  for (int e = threadIdx.x; e < E; e += kThreads) {
    int64_t total = 0;
    for (int rank = 0; rank < peers.size; ++rank) total += rows(rank, e);
    start[e] = total;
    first[e] = rows(peers.rank, e);
  }
  __syncthreads();
  if (warp < peers.size) {
    const int64_t received = exclusive_scan(start + warp * local, local);
    if (warp == peers.rank && threadIdx.x % 32 == 0) {
      fits = received <= out.capacity;
      if (!fits) give_up(peers.waits, Trouble::capacity, peers.rank);
    }
  } else if (warp == peers.size) {
    const int64_t sent = exclusive_scan(first, E);
    if (threadIdx.x % 32 == 0) own->first[E] = sent;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads) {
    const bool here = e / local == peers.rank;
    int64_t row = start[e];
    const int64_t begin = row;
    for (int rank = 0; rank < peers.size; ++rank) {
      if (rank == peers.rank) own->place[e] = e / local * PeerMemory::kRank + row;
      if (here) {
        out.source_begin[rank * local + e % local] = fits ? row : 0;
        out.source_count[rank * local + e % local] = fits ? rows(rank, e) : 0;
      }
      row += rows(rank, e);
    }
    if (here) {
      out.begin[e % local] = fits ? begin : 0;
      out.count[e % local] = fits ? row - begin : 0;
    }
    own->first[e] = first[e];
  }
  if (threadIdx.x == 0) own->counts_taken = epoch;
}

constexpr int kRowThreads = 256;

// remote[i] of send row i: its expert is the last whose first row is not after i.
__global__ void __launch_bounds__(kRowThreads)
    remote_kernel(int64_t* remote, int64_t count, const Window* own, int experts, int64_t capacity) {
  const int64_t sent = own->first[experts];
  for (int64_t i = blockIdx.x * int64_t{kRowThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kRowThreads) {
    int64_t place = -1;
    if (i < sent) {
      int low = 0, high = experts;  // first[low] <= i < first[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (own->first[middle] <= i ? low : high) = middle;
      }
      place = own->place[low] + i - own->first[low];
      if ((place & (PeerMemory::kRank - 1)) >= capacity) place = -1;
    }
    remote[i] = place;
  }
}

}  // namespace

void launch_place(Stream& stream, const Peers& peers, const RowGroups& groups, const Tensor& remote,
                  const Tensor& counts, int64_t capacity) {
  const int experts = static_cast<int>(counts.elements());
  const Placed out{counts.data<int64_t>(),
                   experts,
                   capacity,
                   groups.begin.data<int64_t>(),
                   groups.count.data<int64_t>(),
                   groups.source_begin.data<int64_t>(),
                   groups.source_count.data<int64_t>()};
  place_kernel<<<1, kThreads, 0, native(stream)>>>(peers, out);
  const int64_t N = remote.elements();
  if (N == 0) return;
  const unsigned blocks = kernels::cuda::blocks_for(stream, (N + kRowThreads - 1) / kRowThreads);
  remote_kernel<<<blocks, kRowThreads, 0, native(stream)>>>(remote.data<int64_t>(), N, peers.windows[peers.rank],
                                                            experts, capacity);
}

}  // namespace witan::cuda
