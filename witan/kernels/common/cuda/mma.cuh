// Warp-level matrix multiplication on the tensor cores of sm_80 and later: bfloat16 or float16 products of 16 x 8 x 16
// with float32 sums, loads of operands from shared memory, and asynchronous copies to it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace witan::kernels::cuda {

// The operands of one product. With g = lane / 4 and t = lane % 4, a lane of a 16 x 8 sum holds rows g (c[0], c[1]) and
// g + 8 (c[2], c[3]), columns 2 t and 2 t + 1.
struct FragmentA {
  uint32_t at[4];
};
struct FragmentB {
  uint32_t at[2];
};

#define WITAN_MULTIPLY_ADD(type)                                   \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])             \
      : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]))

// c += a b, for elements of type T.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const FragmentA& a, const FragmentB& b) {
  if constexpr (std::is_same_v<T, __half>) {
    WITAN_MULTIPLY_ADD("f16");
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    WITAN_MULTIPLY_ADD("bf16");
  }
}

#undef WITAN_MULTIPLY_ADD

// Loads four 8 x 8 matrices: lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ uint4 load_matrices(const void* row) {
  uint4 out;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
  return out;
}
__device__ __forceinline__ uint4 load_matrices_transposed(const void* row) {
  uint4 out;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
  return out;
}

// Copies 16 bytes to shared memory, or writes zeros unless `wanted`; visible after wait_copies() and a barrier.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(wanted ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the last `kLeft` groups of this thread's copies have landed.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace witan::kernels::cuda
