// Block sums (kernels/common/block_sums.h) of the values that an epilogue stores: each warp's 16 rows are whole blocks.
#pragma once

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// Counts zeros.
template <class T>
struct ZeroCount;
template <>
struct ZeroCount<float> {
  int zeros = 0;
  __device__ __forceinline__ void add(float value) { zeros += value == 0; }
  __device__ __forceinline__ int count() const { return zeros; }
};
// Counts two elements at a time, up to 256 pairs: bfloat16 counts exactly that far.
template <>
struct ZeroCount<__nv_bfloat16> {
  __nv_bfloat162 zeros = __float2bfloat162_rn(0);
  __device__ __forceinline__ void add(__nv_bfloat162 pair) {
    zeros = __hadd2(zeros, __heq2(pair, __float2bfloat162_rn(0)));
  }
  __device__ __forceinline__ int count() const {
    return static_cast<int>(__low2float(zeros)) + static_cast<int>(__high2float(zeros));
  }
};

// A lane's sums over its 64 elements of a block, in two independent float32 accumulators.
template <class T>
struct LaneSums {
  float squares[2] = {};
  ZeroCount<T> zeros;

  __device__ __forceinline__ void add(const Pack<__nv_bfloat16, 8>& pack) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const __nv_bfloat162 pair = __halves2bfloat162(pack.at[i], pack.at[i + 1]);
      const float2 both = __bfloat1622float2(pair);
      squares[0] = fmaf(both.x, both.x, squares[0]);
      squares[1] = fmaf(both.y, both.y, squares[1]);
      zeros.add(pair);
    }
  }
  __device__ __forceinline__ void add(float first, float second) {
    squares[0] = fmaf(first, first, squares[0]);
    squares[1] = fmaf(second, second, squares[1]);
    zeros.add(first);
    zeros.add(second);
  }
};

struct BlockSums {
  static constexpr bool kWanted = true;
  double2* out = nullptr;  // [E, each]
  int across = 0, each = 0;

  // A lane's sums of its warp's blocks in kColumns columns.
  template <class T, int kColumns>
  using Of = LaneSums<T>[kColumns / kSummedColumns];

  // Called by all lanes of a warp; `row` is the warp's first row in the part.
  template <class T, int kBlocks>
  __device__ __forceinline__ void store(const LaneSums<T> (&blocks)[kBlocks], const Part& part, int row) const {
    if (row >= part.rows) return;
    constexpr int kRows = kSummedRows, kApart = kSummedColumns;
    double2* const to = out + static_cast<int64_t>(part.expert) * each +
                        static_cast<int64_t>((part.row + row) / kRows) * across + part.column / kApart;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block * kApart >= part.columns) break;
      const auto& [squares, zeros] = blocks[block];
      const double sum = warp_sum(static_cast<double>(squares[0]) + static_cast<double>(squares[1]));
      const int none = __reduce_add_sync(0xffffffffu, zeros.count());
      if (threadIdx.x % 32 == 0) to[block] = make_double2(sum, none);
    }
  }
};

inline BlockSums block_sums_to(const WeightGradient& to) {
  const SummedBlocks blocks = SummedBlocks::of(to.dw.size(1), to.dw.size(2));
  assert(blocks.count() <= INT32_MAX);
  return {ptr<double2>(to.block_sums), static_cast<int>(blocks.across), static_cast<int>(blocks.count())};
}

}  // namespace witan::kernels::cuda
