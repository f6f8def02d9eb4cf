// How kernels of different GPUs wait for each other: by words in memory that both reach, with release and acquire over
// the whole system.
#pragma once

#include <cuda_runtime.h>

#include "witan/comm/cuda/waits.h"

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

__device__ inline void give_up(const Waits& waits, Trouble trouble, int peer) {
  *reinterpret_cast<volatile uint32_t*>(waits.trouble) =
      kTroubled | static_cast<uint32_t>(trouble) << kTroubleBits | static_cast<uint32_t>(peer);
  __threadfence_system();
}

// Whether the rank's own memory or the host says that there is nothing to wait for.
__device__ inline bool stopped(const Waits& waits, bool asks_host) {
  if (*reinterpret_cast<volatile uint32_t*>(waits.failed) != 0) return true;
  if (!asks_host || *reinterpret_cast<const volatile uint32_t*>(waits.abort) == 0) return false;
  *reinterpret_cast<volatile uint32_t*>(waits.failed) = 1;
  return true;
}

// Waits until the word has reached `value`; false when it never will, as `peer`, which counts it up, is too late or the
// world has failed. One block asks the host, whose memory is far away.
__device__ inline bool wait_for(const Waits& waits, const uint32_t* word, uint32_t value, int peer, Trouble trouble,
                                bool asks_host) {
  constexpr uint32_t kLook = 256;  // polls between looks at anything else: some 100 us
  uint64_t begin = 0;
  for (uint32_t polls = 1;; ++polls) {
    if (static_cast<int32_t>(load_acquire(word) - value) >= 0) return true;
    if (polls % kLook != 0) continue;
    if (stopped(waits, asks_host)) return false;
    const uint64_t now = nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin < waits.deadline) continue;
    give_up(waits, trouble, peer);
    *reinterpret_cast<volatile uint32_t*>(waits.failed) = 1;
    return false;
  }
}

}  // namespace witan::cuda
