// How kernels of different GPUs wait for each other: flags that a rank stores into its peers' memory, with release and
// acquire over the whole system, and numbers of calls (epochs) that live on the device, so that a graph can be
// replayed.
#pragma once

#include <cuda_runtime.h>

#include "witan/comm/cuda/peer_window.h"

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

// A call that moves rows: come(), work of all blocks unless it is false, leave(). `epoch` is the call's number.
__device__ __forceinline__ uint32_t epoch_of_move(const Peers& peers) {
  return *reinterpret_cast<volatile uint32_t*>(&peers.windows[peers.rank]->moves) + 1;
}

// Returns when every rank has come to this call: all their work before it is done. Called by all threads of all blocks;
// false when the world has failed.
__device__ inline bool come(const Peers& peers, uint32_t epoch) {
  bool all = true;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.size) {
    all = !stopped(peers, false);
    if (all && blockIdx.x == 0) store_release(&peers.windows[peer]->came[peers.rank], epoch);
    all = all && wait_for(peers, &peers.windows[peers.rank]->came[peer], epoch, peer, Trouble::coming, blockIdx.x == 0);
  }
  return __syncthreads_and(all) != 0;
}

// The last block to come here waits until every rank's last block has: after the kernel all rows have arrived and all
// pools have been read. Called by all threads of all blocks.
__device__ inline void leave(const Peers& peers, uint32_t epoch) {
  __shared__ bool last;
  Window* own = peers.windows[peers.rank];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // what this block has stored comes before what follows
    last = atomicAdd(&own->arrived, 1u) == gridDim.x - 1;
    __threadfence_system();
  }
  __syncthreads();
  if (!last) return;
  const int peer = static_cast<int>(threadIdx.x);
  // A rank that has failed says nothing: its rows have not all been moved.
  if (peer < peers.size && !stopped(peers, false)) {
    store_release(&peers.windows[peer]->left[peers.rank], epoch);
    wait_for(peers, &own->left[peer], epoch, peer, Trouble::leaving, true);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  own->arrived = 0;
  own->moves = epoch;
}

}  // namespace witan::cuda
