// Chunks of the gated delta rule on tensor cores: bfloat16 tiles in shared memory, the memory that passes from kernel
// to kernel, and the walk over a row's chunks. Queries and keys stay as they are stored; the factors of their norms
// and of decays multiply the float32 sums instead, so that nothing is rounded twice.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"
#include "witan/kernels/linear_attention/gated_delta.h"

namespace witan::kernels::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int kTileThreads = 256, kTileL = static_cast<int>(kDeltaChunk);

// A row-major tile in shared memory. The 16-byte units of a row are permuted so that eight rows of a unit lie in
// different banks.
template <int kColumns>
struct DeltaTile {
  static constexpr int kUnits = kColumns / 8;
  Bf16* at;
  // Units of a row are permuted by an exclusive or with this; rows 16 apart have the same permutation.
  __device__ static int turn(int row) { return kUnits >= 8 ? row & 7 : (row >> 1) & 3; }
  __device__ Bf16* unit(int row, int unit) const { return at + row * kColumns + (unit ^ turn(row)) * 8; }
  // Elements (row, column) and (row, column + 1); the column is even.
  __device__ uint32_t& pair(int row, int column) const {
    return *reinterpret_cast<uint32_t*>(unit(row, column / 8) + column % 8);
  }
  __device__ float2 values(int row, int column) const { return unpack_pair<Bf16>(pair(row, column)); }
  __device__ void set(int row, int column, float first, float second) const {
    pair(row, column) = pack_pair<Bf16>(first, second);
  }
  // A lane's unit of the [16, 16] from (row, column) on, multiples of 16; its offset within the block depends on the
  // lane alone.
  __device__ const Bf16* lane_unit(int row, int column, int lane_row, int lane_unit) const {
    return at + lane_row * kColumns + row * kColumns + ((lane_unit ^ turn(lane_row)) ^ (column / 8)) * 8;
  }
};

__device__ __forceinline__ int delta_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ FragmentA fragment_of(const uint4& x) {
  return {{x.x, x.y, x.z, x.w}};
}
// The left operand's [16, 16] from (row, column) on.
template <int kColumns>
__device__ __forceinline__ FragmentA left_operand(const DeltaTile<kColumns>& tile, int row, int column) {
  const int lane = delta_lane();
  return fragment_of(load_matrices(tile.lane_unit(row, column, lane % 16, lane / 16)));
}
// The transpose of the tile's [16, 16] from (row, column) on, as a left operand.
template <int kColumns>
__device__ __forceinline__ FragmentA left_transposed(const DeltaTile<kColumns>& tile, int row, int column) {
  const int lane = delta_lane();
  return fragment_of(load_matrices_transposed(tile.lane_unit(row, column, lane % 8 + lane / 16 * 8, lane / 8 % 2)));
}
// A right operand's [16, 16]: columns 0 to 7 and 8 to 15.
struct FragmentPair {
  FragmentB at[2];
};
template <int kColumns>
__device__ __forceinline__ FragmentPair right_operand(const DeltaTile<kColumns>& tile, int row, int column) {
  const int lane = delta_lane();
  const uint4 x = load_matrices_transposed(tile.lane_unit(row, column, lane % 16, lane / 16));
  return {{{{x.x, x.y}}, {{x.z, x.w}}}};
}
// The transpose of the tile's [16, 16] from (row, column) on, as a right operand.
template <int kColumns>
__device__ __forceinline__ FragmentPair right_transposed(const DeltaTile<kColumns>& tile, int row, int column) {
  const int lane = delta_lane();
  const uint4 x = load_matrices(tile.lane_unit(row, column, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  return {{{{x.x, x.y}}, {{x.z, x.w}}}};
}

// A warp's sums of 16 rows and 16 kPairs columns.
template <int kPairs>
struct DeltaSums {
  float at[2 * kPairs][4] = {};

  __device__ void add(int pair, const FragmentA& left, const FragmentPair& right) {
    multiply_add<Bf16>(at[2 * pair], left, right.at[0]);
    multiply_add<Bf16>(at[2 * pair + 1], left, right.at[1]);
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
        out.at[2 * n + half] = pack_pair<Bf16>(by.x * sums[0], by.y * sums[1]);
      }
    }
    return out;
  }
  __device__ FragmentA operand(int block) const {
    FragmentA out;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out.at[i] = pack_pair<Bf16>(at[2 * block + i / 2][i % 2 * 2], at[2 * block + i / 2][i % 2 * 2 + 1]);
    return out;
  }
  // body(row, column, first, second) for pairs of neighbouring sums.
  template <class Body>
  __device__ void each(const Body& body) {
    const int row = delta_lane() / 4, column = delta_lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) body(row + 8 * half, column + 8 * n, at[n][2 * half], at[n][2 * half + 1]);
  }
};

// Factors of the sums of a token's row. γ counts from its chunk's first token to itself, q̂ = rq q, k̂ = rk k.
struct alignas(16) DeltaScales {
  float key_grown;    // e^γ rk
  float key_left;     // e^(γ[L-1] - γ) rk
  float query_grown;  // e^γ rq
  float beta;
};

// Inputs and workspace. chunks [B, S + 2]: a row's number of chunks, then for each of them twice its first token, + 1
// where it begins a document, then 2 S + 1.
struct DeltaTensors {
  const Bf16* qkv;
  const float *g, *beta;
  const int32_t* ids;
  int32_t* chunks;
  DeltaScales* scales;    // [B, S, H]
  float* decays;          // [B, S, H], at the first token of each chunk: e^γ[L-1]
  Bf16 *inverse, *links;  // [B, S, H, 64]: rows of (1 + A)^-1 and P. Blocks above the diagonal are not written.
  Bf16 *states, *state_gradients;  // [B, slots, H, dv, dk]
  Bf16 *u, *du;                    // [B, S, H, dv]
  int64_t S, channels, key_channels, slots;
  int G, H, dk, dv;
  float factor;

  __device__ const Bf16* query(int64_t token, int group) const { return qkv + token * channels + group * dk; }
  __device__ const Bf16* key(int64_t token, int group) const { return query(token, group) + key_channels; }
  __device__ const Bf16* value(int64_t token, int head) const {
    return qkv + token * channels + 2 * key_channels + head * dv;
  }
  // The state before the chunk that begins with this token of row b.
  __device__ int64_t state(int64_t b, int begin, int head) const {
    return ((b * slots + begin / kTileL) * H + head) * static_cast<int64_t>(dk) * dv;
  }
};

DeltaTensors delta_tensors(const DeltaInputs& in, const DeltaMemory& memory);

// Fills chunks, scales, decays, inverse and links.
void delta_prepare(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory);
// Walks the chunks of each head: o, and the state after each row's last token if `last` is defined.
void delta_walk(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in, const DeltaMemory& memory);
// Walks the chunks like delta_walk(), but fills states and u.
void delta_walk_states(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory);
// The whole backward.
void delta_walk_back(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);
// Gradients of queries, keys and gates, once states, u, state_gradients and du are known.
void delta_key_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);

struct DeltaSpan {
  int begin, L;       // tokens of the row
  bool begins, ends;  // its document
};
__device__ __forceinline__ DeltaSpan delta_span(int entry, int next) {
  return {entry / 2, next / 2 - entry / 2, entry % 2 != 0, next % 2 != 0};
}

// Copies kRows rows of a tile from rows that lie `stride` apart; zeros from row L and channel `channels` on. Thread
// `thread` of kThreads.
template <int kRows = kTileL, int kThreads = kTileThreads, int kColumns>
__device__ __forceinline__ void copy_rows(const DeltaTile<kColumns>& to, const Bf16* from, int64_t stride, int L,
                                          int channels, int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kUnits = DeltaTile<kColumns>::kUnits, kStep = kThreads / kUnits;
  static_assert(kThreads % kUnits == 0 && kRows % kStep == 0);
  const int unit = thread % kUnits, first = thread / kUnits;
  const bool inside = unit * 8 < channels;
  const Bf16* source = from + first * stride + unit * 8;
#pragma unroll
  for (int row = 0; row < kRows; row += kStep, source += kStep * stride) {
    const bool wanted = inside && first + row < L;
    copy_async(to.unit(first + row, unit), wanted ? source : from, wanted);
  }
}
// Copies the blocks of 16 x 16 on and under the diagonal.
template <int kThreads = kTileThreads>
__device__ __forceinline__ void copy_triangle(const DeltaTile<kTileL>& to, const Bf16* from, int64_t stride, int L,
                                              int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kStep = kThreads / 8;
  const int unit = thread % 8, first = thread / 8;
  const Bf16* source = from + first * stride + unit * 8;
#pragma unroll
  for (int row = 0; row < kTileL; row += kStep, source += kStep * stride)
    if (unit / 2 <= (first + row) / 16)
      copy_async(to.unit(first + row, unit), first + row < L ? source : from, first + row < L);
}

// The sums of a chunk's numbers up to each of them; a lane of a warp has numbers lane and lane + 32.
__device__ __forceinline__ float2 scan_tokens(float first, float second) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const float a = __shfl_up_sync(0xffffffffu, first, apart), b = __shfl_up_sync(0xffffffffu, second, apart);
    if (delta_lane() >= apart) first += a, second += b;
  }
  return {first, second + __shfl_sync(0xffffffffu, first, 31)};
}

// rk or rq of a row, which threads 2 i and 2 i + 1 call together.
template <int kColumns>
__device__ float inverse_norm(const DeltaTile<kColumns>& tile, int row, float factor) {
  constexpr int kHalf = DeltaTile<kColumns>::kUnits / 2;
  float squares = 0;
  for (int unit = 0; unit < kHalf; ++unit) {
    const auto pack = load_pack<uint32_t, 4>(
        reinterpret_cast<const uint32_t*>(tile.unit(row, unit + static_cast<int>(threadIdx.x) % 2 * kHalf)));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack_pair<Bf16>(pack.at[i]);
      squares += x.x * x.x + x.y * x.y;
    }
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  return factor / sqrtf(squares + static_cast<float>(kDeltaNormEps));
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

// Calls body.template operator()<kColumns>() with the width of a tile for keys of dk channels.
template <class Body>
void dispatch_key_tile(int dk, const Body& body) {
  if (dk <= 64)
    body.template operator()<64>();
  else
    body.template operator()<128>();
}

}  // namespace witan::kernels::cuda
