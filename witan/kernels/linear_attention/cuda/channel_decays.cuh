// Decays of channels in a chunk on tensor cores: γ in shared memory, in units of log2, and operands with decays.
//
// e^(γ[i] - γ[j]) between tokens of different blocks of 16 is taken apart at a token r between them, into e^(γ[i] -
// γ[r]) and e^(γ[r] - γ[j]), which are at most 1 however strong decays are: either may vanish only where the product
// does.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// γ [64, kColumns] of a chunk. A padding of 8 spreads a warp's reads over the banks for operands whose registers hold
// pairs of channels, a padding of 4 for those with pairs of tokens (RightDecays).
template <int kColumns, int kPadding>
struct ChannelGamma {
  static constexpr int kRow = kColumns + kPadding;
  static constexpr int64_t kBytes = kTileL * kRow * static_cast<int64_t>(sizeof(float));
  float* at;

  __device__ float* row(int i) const { return at + i * kRow; }
  // Reads channels d and d + 1; d is even.
  __device__ float2 pair(int i, int d) const { return *reinterpret_cast<const float2*>(row(i) + d); }

  // Copies g of a head: 0 beyond the chunk's L tokens and dk channels. Called by kThreads threads.
  template <int kThreads>
  __device__ void copy(const DeltaTensors& in, int64_t first, int L, int head) const {
    constexpr int kUnits = kColumns / 4;
    for (int i = static_cast<int>(threadIdx.x); i < kTileL * kUnits; i += kThreads) {
      const int token = i / kUnits, d = i % kUnits * 4;
      const bool wanted = token < L && d < in.dk;
      copy_async(row(token) + d, wanted ? in.g + ((first + token) * in.H + head) * in.dk + d : in.g, wanted);
    }
  }
  // Sums g of channel d.
  __device__ void sum(int d) const {
    float sum = 0;
#pragma unroll 16
    for (int i = 0; i < kTileL; ++i) row(i)[d] = sum = fmaf(row(i)[d], kLog2E, sum);
  }
};

// 2^x of two numbers that are not above 0, or of 0.
__device__ __forceinline__ float2 shrink(float first, float second) {
  return {exp2_fast(fminf(first, 0.0f)), exp2_fast(fminf(second, 0.0f))};
}
__device__ __forceinline__ uint32_t scaled_pair(uint32_t x, const float2& by) {
  const float2 values = unpack_pair<Bf16>(x);
  return pack_pair<Bf16>(values.x * by.x, values.y * by.y);
}

// Multiplies left_operand(), whose rows are tokens i, by e^(γ[i] - γ[r]).
template <int kColumns, class Gamma>
__device__ __forceinline__ FragmentA grown_left(const SharedTile<kColumns>& x, const Gamma& gamma, int row, int d,
                                                int r) {
  FragmentA out = left_operand(x, row, d);
  const int i = row + warp_lane() / 4, column = d + warp_lane() % 4 * 2;
#pragma unroll
  for (int at = 0; at < 4; ++at) {
    const float2 own = gamma.pair(i + at % 2 * 8, column + at / 2 * 8), from = gamma.pair(r, column + at / 2 * 8);
    out.at[at] = scaled_pair(out.at[at], shrink(own.x - from.x, own.y - from.y));
  }
  return out;
}
// Multiplies right_transposed(), whose columns are tokens j, by e^(γ[r] - γ[j]).
template <int kColumns, class Gamma>
__device__ __forceinline__ FragmentPair left_right_transposed(const SharedTile<kColumns>& x, const Gamma& gamma,
                                                              int row, int d, int r) {
  FragmentPair out = right_transposed(x, row, d);
  const int j = row + warp_lane() / 4, column = d + warp_lane() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int at = 0; at < 2; ++at) {
      const float2 own = gamma.pair(j + 8 * half, column + 8 * at), from = gamma.pair(r, column + 8 * at);
      out.at[half].at[at] = scaled_pair(out.at[half].at[at], shrink(from.x - own.x, from.y - own.y));
    }
  return out;
}

// Decays of right_operand(), whose rows are tokens j: e^-|γ[r] - γ[j]|.
struct RightDecays {
  float2 at[2][2];

  template <class Gamma>
  __device__ __forceinline__ RightDecays(const Gamma& gamma, int row, int d, int r) {
    const int j = row + warp_lane() % 4 * 2, column = d + warp_lane() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = gamma.row(r)[column + 8 * half];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = gamma.row(j + 8 * i)[column + 8 * half],
                    second = gamma.row(j + 8 * i + 1)[column + 8 * half];
        at[half][i] = shrink(-fabsf(from - first), -fabsf(from - second));
      }
    }
  }
  template <int kColumns>
  __device__ __forceinline__ FragmentPair of(const SharedTile<kColumns>& x, int row, int d) const {
    FragmentPair out = right_operand(x, row, d);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) out.at[half].at[i] = scaled_pair(out.at[half].at[i], at[half][i]);
    return out;
  }
};

}  // namespace witan::kernels::cuda
