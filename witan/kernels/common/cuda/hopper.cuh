// Wrappers of Hopper's instructions: mbarriers, bulk tensor copies, clusters, register allocation. For device code of
// sm_90a alone; addresses are in the block's own shared memory unless stated otherwise.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace witan::kernels::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A phase of an mbarrier ends when `arrivals` threads have arrived and the bytes announced to it have landed; the next
// phase begins at once. Waiting for parity p returns when the phase with parity p has ended: a fresh barrier is in
// phase 0, and parity 1 counts as ended.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives at the same barrier of another block of the cluster. The multiplies that it has waited for order the arrival;
// with .release.cluster each arrival would be a fence of the whole GPU.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ void barrier_arrive_and_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Loads a box of a three-dimensional tensor map at (inner, outer, slice) to `to`; its bytes count on `barrier`.
// Elements outside the tensor arrive as zeros.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, uint64_t* barrier, int inner, int outer,
                                         int slice) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "r"(slice)
      : "memory");
}
// Loads it to the same address in every block of the cluster whose bit in `blocks` is set; each counts its own bytes.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, uint64_t* barrier, int inner, int outer,
                                         int slice, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "h"(blocks), "r"(inner), "r"(outer), "r"(slice)
      : "memory");
}
// Copies 16 bytes from global memory or, unless it `exists`, writes zeros and reads nothing.
__device__ __forceinline__ void copy_16_async(uint32_t to, const void* from, bool exists) {
  asm volatile(
      "{\n"
      ".reg .pred ignored;\n"
      "setp.eq.b32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, ignored;\n"
      "}\n" ::"r"(to),
      "l"(from), "r"(static_cast<int>(exists))
      : "memory");
}
// Arrives at the barrier when all of this thread's copies by copy_16_async() so far have landed.
__device__ __forceinline__ void barrier_arrive_when_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits until all of this thread's copies have landed.
__device__ __forceinline__ void wait_copied() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies from global memory to this block's; addresses and sizes are multiples of 16, and bytes count on `barrier`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// Copies from this block's memory to global memory, or adds to it; addresses and sizes are multiples of 16 bytes. The
// copies belong to the thread's open group.
__device__ __forceinline__ void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_add(float* to, const void* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the last kLast of this thread's groups have read their memory, so that it may be rewritten.
template <int kLast = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLast) : "memory");
}
// Makes earlier ordinary stores to shared memory visible to later accesses by tensor cores and the copy engine.
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A warp stores four 8 x 8 matrices of 16-bit elements to shared memory, from registers as the tensor cores leave them
// (lane l has columns 2 (l % 4) and the next of row l / 4). Lanes 8 m to 8 m + 7 give matrix m's row addresses.
__device__ __forceinline__ void store_matrices(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Stores their transposes: lanes 8 m to 8 m + 7 give the addresses of matrix m's columns.
__device__ __forceinline__ void store_transposed(void* column, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(column)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Waits for every thread of every block of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Waits for `threads` threads, in whole warps, at the block's barrier `id` (0 is __syncthreads).
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at that barrier without waiting.
__device__ __forceinline__ void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Raises or lowers the warpgroup's registers per thread; called by all of its threads.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace witan::kernels::cuda
