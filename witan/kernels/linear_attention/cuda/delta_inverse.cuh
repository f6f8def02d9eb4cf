// The inverse of 1 + A, A strictly lower triangular [64, 64] float32 in shared memory. Diagonal blocks of 16 x 16 are
// inverted in float32; the blocks below them follow, column by column, from products whose operands are pairs of
// bfloat16 numbers, high and low, which keep 16 bits.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kLinkRow = 72;  // floats: pairs of eight rows lie in different banks

// Two float32 numbers as the sum of bfloat16 numbers.
struct SplitPair {
  uint32_t high, low;
  __device__ SplitPair(float first, float second) : high(pack_pair<Bf16>(first, second)) {
    const float2 taken = unpack_pair<Bf16>(high);
    low = pack_pair<Bf16>(first - taken.x, second - taken.y);
  }
};
// A left operand [16, 16] of such numbers.
struct SplitA {
  FragmentA high, low;
  __device__ void set(int i, float first, float second) {
    const SplitPair x(first, second);
    high.at[i] = x.high, low.at[i] = x.low;
  }
  // From a warp's sums.
  __device__ void set(const WarpSums<1>& x, float sign) {
#pragma unroll
    for (int i = 0; i < 4; ++i) set(i, sign * x.at[i / 2][i % 2 * 2], sign * x.at[i / 2][i % 2 * 2 + 1]);
  }
};
// sums += a bᵀ, b [16, 16] of rows kLinkRow apart
__device__ __forceinline__ void add_split(WarpSums<1>& sums, const SplitA& a, const float* b) {
  const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    FragmentB high, low;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const from = b + (row + 8 * n) * kLinkRow + column + 8 * half;
      const SplitPair x(from[0], from[1]);
      high.at[half] = x.high, low.at[half] = x.low;
    }
    multiply_add<Bf16>(sums.at[n], a.low, high);
    multiply_add<Bf16>(sums.at[n], a.high, low);
    multiply_add<Bf16>(sums.at[n], a.high, high);
  }
}

// Inverts block (j, j) of 1 + A in place. Lanes 16 apart have the same column.
__device__ inline void invert_diagonal(float* A, const SharedTile<kTileL>& inverse, int j) {
  float* const block = A + 16 * j * kLinkRow + 16 * j;
  const int column = warp_lane() % 16;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int k = 0; k < i; ++k) sum -= block[i * kLinkRow + k] * x[k];
    x[i] = sum;
  }
  __syncwarp();
  if (warp_lane() < 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      block[i * kLinkRow + column] = x[i];
      inverse.unit(16 * j + i, 2 * j + column / 8)[column % 8] = __float2bfloat16_rn(x[i]);
    }
  }
}

// The blocks below (j, j) of the inverse T, one after another: T_ij = -T_ii Σ_k A_ik T_kj for j <= k < i. A warp keeps
// their transposes as left operands.
__device__ inline void invert_column(const float* A, const SharedTile<kTileL>& inverse, int j) {
  const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
  SplitA of_column[3];
  const float* const diagonal = A + 16 * j * kLinkRow + 16 * j;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* const from = diagonal + (column + i / 2 * 8) * kLinkRow + row + i % 2 * 8;
    of_column[0].set(i, from[0], from[kLinkRow]);
  }
#pragma unroll
  for (int down = 1; down < 4; ++down) {
    const int i = j + down;
    if (i >= 4) break;
    WarpSums<1> sum, block;
#pragma unroll
    for (int k = 0; k < down; ++k) add_split(sum, of_column[k], A + 16 * i * kLinkRow + 16 * (j + k));
    SplitA left;
    left.set(sum, -1.0f);
    add_split(block, left, A + 16 * i * kLinkRow + 16 * i);
    if (down < 3) of_column[down].set(block, 1.0f);
    block.each([&](int c, int r, float first, float second) {
      Bf16* const to = inverse.unit(16 * i + r, 2 * j + c / 8) + c % 8;
      *to = __float2bfloat16_rn(first);
      inverse.unit(16 * i + r + 1, 2 * j + c / 8)[c % 8] = __float2bfloat16_rn(second);
    });
  }
}

}  // namespace witan::kernels::cuda
