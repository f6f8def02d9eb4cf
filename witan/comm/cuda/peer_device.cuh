// How kernels of GPUs that reach each other's memory wait for each other: by flags that a rank stores into its peers'
// memory, and numbers of calls (epochs) that live on the device, so that a graph can be replayed.
#pragma once

#include <cuda_runtime.h>

#include "witan/comm/cuda/peer_window.h"
#include "witan/comm/cuda/waits.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::cuda {

// A call that moves rows: come(), work that needs no peers, all_came(), work of all blocks unless that is false,
// leave(). `epoch` is the call's number, and kMostBlocks the largest grid.
__device__ __forceinline__ uint32_t epoch_of_move(const Peers& peers) {
  return *reinterpret_cast<volatile uint32_t*>(&peers.windows[peers.rank]->moves) + 1;
}

// Signals all ranks that this one has come to the call, i.e. its earlier work is done. Must precede any load that the
// call's work waits for, since the signal would wait for it too.
__device__ inline void come(const Peers& peers, uint32_t epoch) {
  const int peer = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && peer < peers.size && !stopped(peers.waits, false))
    store_release(&peers.windows[peer]->came[peers.rank], epoch);
}

// Returns when every rank has come. Called by all threads of all blocks; false when the world has failed.
__device__ inline bool all_came(const Peers& peers, uint32_t epoch) {
  bool all = true;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.size)
    all = !stopped(peers.waits, false) &&
          wait_for(peers.waits, &peers.windows[peers.rank]->came[peer], epoch, peer, Trouble::coming, blockIdx.x == 0);
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
    came =
        wait_for(peers.waits, &own->left[peer][i % kMostBlocks], epoch, static_cast<int>(peer), Trouble::leaving, true);
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
