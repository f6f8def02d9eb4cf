// The plain epilogue of the grouped products: sums rounded to T and stored, or added to what is there. Lanes of a quad
// exchange values first, so that each has 16 adjacent bytes and a quad 64.
#pragma once

#include "witan/kernels/cuda/common.cuh"
#include "witan/kernels/cuda/grouped_gemm_hopper.cuh"

namespace witan::kernels::cuda {

// Lane q of each quad has value[i] of column i; afterwards value[i] is lane i's of column q.
template <class V>
__device__ __forceinline__ void transpose_in_quad(V (&value)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = threadIdx.x & static_cast<unsigned>(bit);
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & bit) continue;
      const V got = __shfl_xor_sync(0xffffffffu, upper ? value[low] : value[low + bit], bit);
      value[low] = upper ? got : value[low];
      value[low + bit] = upper ? value[low + bit] : got;
    }
  }
}

template <class T, bool kAccumulate>
struct Store {
  static constexpr bool kAccumulates = kAccumulate;
  T* out;
  int64_t expert_stride, row_stride;

  static constexpr int kWide = kPack<T>;       // columns of a store
  static constexpr int kTogether = kWide * 4;  // of a quad's
  static constexpr int kInFlight = 4;          // stores whose former values are loaded together

  template <int kColumns>
  __device__ __forceinline__ void operator()(const float (&sums)[kColumns / 2], const Part& part) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    const int quad = lane % 4;
    T* const base = out + part.expert * expert_stride + part.row * row_stride + part.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + half * 8;
      T* const to = base + row * row_stride;
#pragma unroll
      for (int first = 0; first < kColumns; first += kTogether * kInFlight) {
        Pack<T, kWide> packs[kInFlight];
        bool inside[kInFlight];
        int column[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          column[i] = first + i * kTogether + own_column(quad);
          inside[i] = first + i * kTogether < kColumns && row < part.rows && column[i] < part.columns;
          if (kAccumulate && inside[i]) packs[i] = load_pack<T, kWide>(to + column[i]);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (first + i * kTogether >= kColumns) continue;
          exchange<kColumns>(packs[i], sums, first + i * kTogether, half, quad);
          if (inside[i]) store_pack(to + column[i], packs[i]);
        }
      }
    }
  }

 private:
  // Of the kTogether columns of a quad's stores, the first that this lane stores.
  static __device__ __forceinline__ int own_column(int quad) {
    if constexpr (kWide == 8)
      return quad * 8;
    else
      return quad % 2 * 8 + quad / 2 * 4;
  }

  // pack (=|+=) the lane's columns of those from `column` on. All lanes together.
  template <int kColumns>
  static __device__ __forceinline__ void exchange(Pack<T, kWide>& pack, const float (&sums)[kColumns / 2], int column,
                                                  int half, int quad) {
    const int at = column / 2 + half * 2;  // of the first 8 columns, the lane's two
    if constexpr (kWide == 4) {
      const bool odd = quad % 2 == 1;
      float got[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) got[i] = __shfl_xor_sync(0xffffffffu, odd ? sums[at + i] : sums[at + 4 + i], 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float own = odd ? sums[at + 4 + i] : sums[at + i];
        put(pack.at[i], odd ? got[i] : own);
        put(pack.at[2 + i], odd ? own : got[i]);
      }
    } else if constexpr (kAccumulate) {
      float low[4] = {sums[at], sums[at + 4], sums[at + 8], sums[at + 12]};
      float high[4] = {sums[at + 1], sums[at + 5], sums[at + 9], sums[at + 13]};
      transpose_in_quad(low);
      transpose_in_quad(high);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        put(pack.at[2 * i], low[i]);
        put(pack.at[2 * i + 1], high[i]);
      }
    } else {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sums[at + 4 * i], sums[at + 4 * i + 1]);
        pairs[i] = reinterpret_cast<const uint32_t&>(pair);
      }
      transpose_in_quad(pairs);
      pack = reinterpret_cast<const Pack<T, kWide>&>(pairs);
    }
  }
  static __device__ __forceinline__ void put(T& to, float value) {
    to = convert<T>(kAccumulate ? convert<float>(to) + value : value);
  }
};

}  // namespace witan::kernels::cuda
