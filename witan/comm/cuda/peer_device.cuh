// How kernels of different GPUs wait for each other: flags that a rank stores into its peers' memory, with release and
// acquire over the whole system, and numbers of calls (epochs) that live on the device, so that a graph can be
// replayed.
#pragma once

#include <cuda_runtime.h>

#include "witan/comm/cuda/peer_window.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::cuda {

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ inline void give_up(const Peers& peers, Trouble trouble, int peer) {
  *reinterpret_cast<volatile uint32_t*>(peers.trouble) =
      kTroubled | static_cast<uint32_t>(trouble) << kTroubleBits | static_cast<uint32_t>(peer);
  __threadfence_system();
}

// Whether the rank's own memory or the host says that there is nothing to wait for.
__device__ inline bool stopped(const Peers& peers, bool asks_host) {
  uint32_t* failed = &peers.windows[peers.rank]->failed;
  if (*reinterpret_cast<volatile uint32_t*>(failed) != 0) return true;
  if (!asks_host || *reinterpret_cast<const volatile uint32_t*>(peers.abort) == 0) return false;
  *reinterpret_cast<volatile uint32_t*>(failed) = 1;
  return true;
}

// Waits until `peer` has written `epoch` into its flag; false when it never will. One block asks the host, whose memory
// is far away.
__device__ inline bool wait_for(const Peers& peers, const uint32_t* flag, uint32_t epoch, int peer, Trouble trouble,
                                bool asks_host) {
  constexpr uint32_t kLook = 256;  // polls between looks at anything else: some 100 us
  uint64_t begin = 0;
  for (uint32_t polls = 1;; ++polls) {
    if (static_cast<int32_t>(load_acquire(flag) - epoch) >= 0) return true;
    if (polls % kLook != 0) continue;
    if (stopped(peers, asks_host)) return false;
    const uint64_t now = nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin < peers.deadline) continue;
    give_up(peers, trouble, peer);
    *reinterpret_cast<volatile uint32_t*>(&peers.windows[peers.rank]->failed) = 1;
    return false;
  }
}

// A call that moves rows: come(), work that needs no peers, all_came(), work of all blocks unless that is false,
// leave(). `epoch` is the call's number, and kMostBlocks the largest grid.
__device__ __forceinline__ uint32_t epoch_of_move(const Peers& peers) {
  return *reinterpret_cast<volatile uint32_t*>(&peers.windows[peers.rank]->moves) + 1;
}

// Signals all ranks that this one has come to the call, i.e. its earlier work is done. Must precede any load that the
// call's work waits for, since the signal would wait for it too.
__device__ inline void come(const Peers& peers, uint32_t epoch) {
  const int peer = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && peer < peers.size && !stopped(peers, false))
    store_release(&peers.windows[peer]->came[peers.rank], epoch);
}

// Returns when every rank has come. Called by all threads of all blocks; false when the world has failed.
__device__ inline bool all_came(const Peers& peers, uint32_t epoch) {
  bool all = true;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.size)
    all = !stopped(peers, false) &&
          wait_for(peers, &peers.windows[peers.rank]->came[peer], epoch, peer, Trouble::coming, blockIdx.x == 0);
  return __syncthreads_and(all) != 0;
}

// Every block signals all ranks that its rows have been moved, and the first block waits for all signals: after the
// kernel all rows have arrived and all receive buffers have been read. Blocks are not counted, which would take another
// round trip through memory before the first signal; a block of a smaller grid signals for several of the largest.
// Called by all threads of all blocks with the result of all_came(): a rank that has failed signals nothing.
__device__ inline void leave(const Peers& peers, uint32_t epoch, bool came) {
  Window* own = peers.windows[peers.rank];
  const auto size = static_cast<unsigned>(peers.size);
  __syncthreads();
  if (came) {
    const unsigned words = (kMostBlocks - blockIdx.x + gridDim.x - 1) / gridDim.x * size;
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
      store_release(&peers.windows[i % size]->left[peers.rank][blockIdx.x + i / size * gridDim.x], epoch);
  }
  if (blockIdx.x != 0) return;
  for (unsigned i = threadIdx.x; came && i < size * kMostBlocks; i += blockDim.x) {
    const unsigned peer = i / kMostBlocks;
    came = wait_for(peers, &own->left[peer][i % kMostBlocks], epoch, static_cast<int>(peer), Trouble::leaving, true);
  }
  __syncthreads();
  if (threadIdx.x == 0) own->moves = epoch;
}

// Loads what a peer has written: past the first-level cache.
template <class T, int N>
__device__ __forceinline__ kernels::cuda::Pack<T, N> load_far(const T* from) {
  if constexpr (sizeof(kernels::cuda::Pack<T, N>) == sizeof(uint4)) {
    const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(from));
    return reinterpret_cast<const kernels::cuda::Pack<T, N>&>(bits);
  } else {
    static_assert(N == 1);
    return {__ldcg(from)};
  }
}

}  // namespace witan::cuda
