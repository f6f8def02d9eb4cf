// Products on tensor cores (mma.cuh) whose operands lie in shared memory: tiles, a warp's operands and
// sums. Of bfloat16 numbers, if nothing else is said.
#pragma once

#include "witan/base/error.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"

namespace witan::kernels::cuda {

using Bf16 = __nv_bfloat16;

// A row-major tile in shared memory. The 16-byte units of a row are permuted so that eight rows of a unit lie in
// different banks.
template <int kColumns, class T = Bf16>
struct SharedTile {
  static constexpr int kUnits = kColumns / 8;
  T* at;
  // Units of a row are permuted by an exclusive or with this; rows 16 apart have the same permutation.
  __device__ static int turn(int row) { return kUnits >= 8 ? row & 7 : (row >> 1) & 3; }
  __device__ T* unit(int row, int unit) const { return at + row * kColumns + (unit ^ turn(row)) * 8; }
  // Elements (row, column) and (row, column + 1); the column is even.
  __device__ uint32_t& pair(int row, int column) const {
    return *reinterpret_cast<uint32_t*>(unit(row, column / 8) + column % 8);
  }
  __device__ float2 values(int row, int column) const { return unpack_pair<T>(pair(row, column)); }
  __device__ void set(int row, int column, float first, float second) const {
    pair(row, column) = pack_pair<T>(first, second);
  }
  // A lane's unit of the [16, 16] from (row, column) on, multiples of 16; its offset within the block depends on the
  // lane alone.
  __device__ const T* lane_unit(int row, int column, int lane_row, int lane_unit) const {
    return at + lane_row * kColumns + row * kColumns + ((lane_unit ^ turn(lane_row)) ^ (column / 8)) * 8;
  }
};

__device__ __forceinline__ int warp_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
// The warp of the thread, which the compiler then knows to be that of all its lanes.
__device__ __forceinline__ int own_warp() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

__device__ __forceinline__ FragmentA fragment_of(const uint4& x) {
  return {{x.x, x.y, x.z, x.w}};
}
// The left operand's [16, 16] from (row, column) on.
template <int kColumns, class T>
__device__ __forceinline__ FragmentA left_operand(const SharedTile<kColumns, T>& tile, int row, int column) {
  const int lane = warp_lane();
  return fragment_of(load_matrices(tile.lane_unit(row, column, lane % 16, lane / 16)));
}
// The transpose of the tile's [16, 16] from (row, column) on, as a left operand.
template <int kColumns, class T>
__device__ __forceinline__ FragmentA left_transposed(const SharedTile<kColumns, T>& tile, int row, int column) {
  const int lane = warp_lane();
  return fragment_of(load_matrices_transposed(tile.lane_unit(row, column, lane % 8 + lane / 16 * 8, lane / 8 % 2)));
}
// A right operand's [16, 16]: columns 0 to 7 and 8 to 15.
struct FragmentPair {
  FragmentB at[2];
};
template <int kColumns, class T>
__device__ __forceinline__ FragmentPair right_operand(const SharedTile<kColumns, T>& tile, int row, int column) {
  const int lane = warp_lane();
  const uint4 x = load_matrices_transposed(tile.lane_unit(row, column, lane % 16, lane / 16));
  return {{{{x.x, x.y}}, {{x.z, x.w}}}};
}
// The transpose of the tile's [16, 16] from (row, column) on, as a right operand.
template <int kColumns, class T>
__device__ __forceinline__ FragmentPair right_transposed(const SharedTile<kColumns, T>& tile, int row, int column) {
  const int lane = warp_lane();
  const uint4 x = load_matrices(tile.lane_unit(row, column, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  return {{{{x.x, x.y}}, {{x.z, x.w}}}};
}

// A warp's sums of 16 rows and 16 kPairs columns.
template <int kPairs, class T = Bf16>
struct WarpSums {
  float at[2 * kPairs][4] = {};

  __device__ void add(int pair, const FragmentA& left, const FragmentPair& right) {
    multiply_add<T>(at[2 * pair], left, right.at[0]);
    multiply_add<T>(at[2 * pair + 1], left, right.at[1]);
  }
  // Multiplies rows lane / 4 and lane / 4 + 8.
  __device__ void scale(float upper, float lower) {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
      at[n][0] *= upper, at[n][1] *= upper;
      at[n][2] *= lower, at[n][3] *= lower;
    }
  }
  // Columns [16 block, 16 block + 16) as a left operand, those of a lane times two factors each: factor(n) of columns
  // 16 block + 8 n + lane % 4 * 2 and the next one.
  template <class Factor>
  __device__ FragmentA operand(int block, const Factor& factor) const {
    FragmentA out;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 by = factor(n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const sums = at[2 * block + n] + 2 * half;
        out.at[2 * n + half] = pack_pair<T>(by.x * sums[0], by.y * sums[1]);
      }
    }
    return out;
  }
  __device__ FragmentA operand(int block) const {
    FragmentA out;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out.at[i] = pack_pair<T>(at[2 * block + i / 2][i % 2 * 2], at[2 * block + i / 2][i % 2 * 2 + 1]);
    return out;
  }
  // Sets each sum to value(row, column).
  template <class Value>
  __device__ void fill(const Value& value) {
    const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) at[n][i] = value(row + i / 2 * 8, column + 8 * n + i % 2);
  }
  // body(row, column, first, second) for pairs of neighbouring sums.
  template <class Body>
  __device__ void each(const Body& body) {
    const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) body(row + 8 * half, column + 8 * n, at[n][2 * half], at[n][2 * half + 1]);
  }
};

// Copies kRows rows of a tile from rows that lie `stride` apart; zeros from row L and channel `channels` on. Thread
// `thread` of kThreads.
template <int kRows, int kThreads, int kColumns, class T>
__device__ __forceinline__ void copy_rows(const SharedTile<kColumns, T>& to, const T* from, int64_t stride, int L,
                                          int channels, int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kUnits = SharedTile<kColumns, T>::kUnits, kStep = kThreads / kUnits;
  static_assert(kThreads % kUnits == 0 && kRows % kStep == 0);
  const int unit = thread % kUnits, first = thread / kUnits;
  const bool inside = unit * 8 < channels;
  const T* source = from + first * stride + unit * 8;
  if (L >= kRows && channels >= kColumns) {
#pragma unroll
    for (int row = 0; row < kRows; row += kStep) copy_async(to.unit(first + row, unit), source + row * stride, true);
    return;
  }
#pragma unroll
  for (int row = 0; row < kRows; row += kStep, source += kStep * stride) {
    const bool wanted = inside && first + row < L;
    copy_async(to.unit(first + row, unit), wanted ? source : from, wanted);
  }
}
// Asks for so much shared memory. Throws ShapeError where the device has less.
template <class Kernel>
void take_shared_memory(Stream& stream, const char* name, Kernel* kernel, int64_t bytes) {
  const int64_t most = witan::cuda::properties(stream.device().index).shared_per_block;
  require<ShapeError>(bytes <= most, name, ": needs ", bytes, " bytes of shared memory, of ", most,
                      " on this GPU; use float32");
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                     name);
}

}  // namespace witan::kernels::cuda
