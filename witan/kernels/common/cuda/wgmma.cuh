// Hopper's warpgroup matrix multiply: sums [64, N] += a [64, 16] b [N, 16]^T, of bfloat16 or float16 operands with
// float32 sums. b is in shared memory, a there or in registers. It runs asynchronously to the warps that issue it.
//
// Operands are stored in subtiles of 64 of M (or N) by 64 of K, 8 KiB each, as the copy engine writes them with its
// 128-byte swizzle: rows of 128 bytes, at multiples of 1024 bytes. With Major::k each row of a subtile is one m (or n),
// and K runs along it; with Major::mn it is the other way round. Subtiles follow each other along M (or N).
#pragma once

#include <cstdint>

#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/common/fp8_scale.h"

namespace witan::kernels::cuda {

inline constexpr int kSubtile = 64;                            // M (or N) and K of a subtile
inline constexpr int kSubtileBytes = kSubtile * kSubtile * 2;  // 8192
inline constexpr int kWgmmaK = 16;                             // of one instruction

// The dim that is adjacent in memory.
enum class Major : uint8_t { k, mn };
// The element type of operands, 16 bits each.
enum class Element : uint8_t { bfloat16, float16 };
template <class T>
inline constexpr Element kElementFor = std::is_same_v<T, __half> ? Element::float16 : Element::bfloat16;

// The descriptor of an operand that begins with this subtile; kWgmmaAdvance is its advance per kWgmmaK.
template <Major kMajor>
__device__ __forceinline__ uint64_t wgmma_operand(const void* subtile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 1024 >> 4;                                       // between groups of 8 rows
  constexpr uint64_t kNextSubtile = kMajor == Major::mn ? kSubtileBytes >> 4 : 1;  // unused with Major::k
  return kSwizzle128 | kEightRows << 32 | kNextSubtile << 16 | (shared_address(subtile) & 0x3ffff) >> 4;
}
template <Major kMajor>
inline constexpr uint64_t kWgmmaAdvance = (kMajor == Major::k ? kWgmmaK * 2 : kWgmmaK * 128) >> 4;

// Must be called before the first multiply after other accesses to the registers of `sums`.
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Commits the multiplies since the last commit as a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kGroups` groups are still running.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Keeps the compiler from moving accesses to the sums across this point.
template <int kSums>
__device__ __forceinline__ void pin(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define WITAN_SUMS_8(at)                                                                                              \
  "+f"(sums[at]), "+f"(sums[at + 1]), "+f"(sums[at + 2]), "+f"(sums[at + 3]), "+f"(sums[at + 4]), "+f"(sums[at + 5]), \
      "+f"(sums[at + 6]), "+f"(sums[at + 7])
#define WITAN_SUMS_32(at) WITAN_SUMS_8(at), WITAN_SUMS_8(at + 8), WITAN_SUMS_8(at + 16), WITAN_SUMS_8(at + 24)
#define WITAN_PLACES_0                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WITAN_PLACES_1                                                                                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WITAN_PLACES_2                                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WITAN_PLACES_3                                                                                             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
  "%115, "                                                                                                         \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The four numbers after those of the sums are a, b, add, and whether the operands are transposed.
#define WITAN_WGMMA(columns, type, places, a_at, b_at, add_at, ta_at, tb_at, ...)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns         \
               "k16.f32." type "." type " {" places "}, %" a_at ", %" b_at ", p, 1, 1, %" ta_at ", %" tb_at ";\n}\n" \
               : __VA_ARGS__                                                                                         \
               : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))
#define WITAN_WGMMA_64(type) WITAN_WGMMA("64", type, WITAN_PLACES_0, "32", "33", "34", "35", "36", WITAN_SUMS_32(0))
#define WITAN_WGMMA_128(type)                                                                                  \
  WITAN_WGMMA("128", type, WITAN_PLACES_0 ", " WITAN_PLACES_1, "64", "65", "66", "67", "68", WITAN_SUMS_32(0), \
              WITAN_SUMS_32(32))
#define WITAN_WGMMA_192(type)                                                                                     \
  WITAN_WGMMA("192", type, WITAN_PLACES_0 ", " WITAN_PLACES_1 ", " WITAN_PLACES_2, "96", "97", "98", "99", "100", \
              WITAN_SUMS_32(0), WITAN_SUMS_32(32), WITAN_SUMS_32(64))
#define WITAN_WGMMA_256(type)                                                                                        \
  WITAN_WGMMA("256", type, WITAN_PLACES_0 ", " WITAN_PLACES_1 ", " WITAN_PLACES_2 ", " WITAN_PLACES_3, "128", "129", \
              "130", "131", "132", WITAN_SUMS_32(0), WITAN_SUMS_32(32), WITAN_SUMS_32(64), WITAN_SUMS_32(96))
#define WITAN_WGMMA_OF(columns)   \
  if constexpr (kFloat16)         \
    WITAN_WGMMA_##columns("f16"); \
  else                            \
    WITAN_WGMMA_##columns("bf16")

// Computes d = a b + (add ? d : 0). Thread t of the warpgroup has row t / 32 * 16 + t % 32 / 4, with columns 8 j + t %
// 4 * 2 and the next in sums[4 j] and sums[4 j + 1], and the 8th row after it in sums[4 j + 2] and sums[4 j + 3].
template <int kTileN, Major kMajorA, Major kMajorB, Element kElement = Element::bfloat16>
__device__ __forceinline__ void wgmma(float (&sums)[kTileN / 2], uint64_t a, uint64_t b, int add) {
  static_assert(kTileN == 64 || kTileN == 128 || kTileN == 192 || kTileN == 256);
  constexpr int kTransposeA = kMajorA == Major::mn, kTransposeB = kMajorB == Major::mn;
  constexpr bool kFloat16 = kElement == Element::float16;
  if constexpr (kTileN == 64) {
    WITAN_WGMMA_OF(64);
  } else if constexpr (kTileN == 128) {
    WITAN_WGMMA_OF(128);
  } else if constexpr (kTileN == 192) {
    WITAN_WGMMA_OF(192);
  } else {
    WITAN_WGMMA_OF(256);
  }
}

// The four numbers after those of the sums are the first of a, b, add, and whether b is transposed.
#define WITAN_WGMMA_A(columns, type, places, a_at, b_at, add_at, tb_at, ...)                                 \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " {" places "}, {" a_at "}, %" b_at ", p, 1, 1, %" tb_at ";\n}\n"    \
               : __VA_ARGS__                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposeB))
#define WITAN_WGMMA_A_64(type) \
  WITAN_WGMMA_A("64", type, WITAN_PLACES_0, "%32, %33, %34, %35", "36", "37", "38", WITAN_SUMS_32(0))
#define WITAN_WGMMA_A_128(type)                                                                          \
  WITAN_WGMMA_A("128", type, WITAN_PLACES_0 ", " WITAN_PLACES_1, "%64, %65, %66, %67", "68", "69", "70", \
                WITAN_SUMS_32(0), WITAN_SUMS_32(32))
#define WITAN_WGMMA_A_OF(columns)   \
  if constexpr (kFloat16)           \
    WITAN_WGMMA_A_##columns("f16"); \
  else                              \
    WITAN_WGMMA_A_##columns("bf16")

// The same with a in registers: each warp has 16 rows, as fragments of mma.sync (mma.cuh). They must not change before
// the multiply has been waited for.
template <int kTileN, Major kMajorB, Element kElement = Element::bfloat16>
__device__ __forceinline__ void wgmma(float (&sums)[kTileN / 2], const uint32_t (&a)[4], uint64_t b, int add) {
  static_assert(kTileN == 64 || kTileN == 128);
  constexpr int kTransposeB = kMajorB == Major::mn;
  constexpr bool kFloat16 = kElement == Element::float16;
  if constexpr (kTileN == 64) {
    WITAN_WGMMA_A_OF(64);
  } else {
    WITAN_WGMMA_A_OF(128);
  }
}

#define WITAN_WGMMA_FP8(type)                                                                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32." type \
               ".e4m3 {" WITAN_PLACES_0 ", " WITAN_PLACES_1 "}, %64, %65, p, 1, 1;\n}\n"                     \
               : WITAN_SUMS_32(0), WITAN_SUMS_32(32)                                                         \
               : "l"(a), "l"(b), "r"(add))

// wgmma with a in e4m3 or e5m2 and b in e4m3: sums [64, 128] += a [64, 32] b [128, 32]^T. Subtiles have 64 rows (M or
// N) of 128 bytes along K, as above; both operands are K-major, the only layout of 8-bit wgmma.
template <Fp8Format kFormatA>
__device__ __forceinline__ void wgmma_fp8(float (&sums)[64], uint64_t a, uint64_t b, int add) {
  if constexpr (kFormatA == Fp8Format::e4m3)
    WITAN_WGMMA_FP8("e4m3");
  else
    WITAN_WGMMA_FP8("e5m2");
}

#undef WITAN_WGMMA_FP8
#undef WITAN_WGMMA_A_OF
#undef WITAN_WGMMA_A_128
#undef WITAN_WGMMA_A_64
#undef WITAN_WGMMA_A
#undef WITAN_WGMMA_OF
#undef WITAN_WGMMA_256
#undef WITAN_WGMMA_192
#undef WITAN_WGMMA_128
#undef WITAN_WGMMA_64
#undef WITAN_WGMMA
#undef WITAN_SUMS_8
#undef WITAN_SUMS_32
#undef WITAN_PLACES_0
#undef WITAN_PLACES_1
#undef WITAN_PLACES_2
#undef WITAN_PLACES_3

}  // namespace witan::kernels::cuda
