// Chunks of the gated delta rule on tensor cores: the memory that passes from kernel to kernel, and what the walks and
// the key gradients share. Queries and keys stay as they are stored; the factors of their norms and of decays multiply
// the float32 sums instead, so that nothing is rounded twice.
#pragma once

#include "witan/kernels/common/cuda/chunk_table.cuh"
#include "witan/kernels/common/cuda/tensor_tiles.cuh"
#include "witan/kernels/linear_attention/gated_delta.h"

namespace witan::kernels::cuda {

static_assert(kDeltaChunk == kTileL);
inline constexpr int kTileThreads = 256;

// Factors of the sums of a token's row. γ counts from its chunk's first token to itself, q̂ = rq q, k̂ = rk k. With
// decays of channels they are 1, except β.
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
  DeltaScales* scales;  // [B, S, H]
  // e^γ[L-1] of each chunk: [B, S, H], at its first token; of channels [B, slots, H, dk], of chunks whose state
  // matters.
  float* decays;
  Bf16 *inverse, *links;  // [B, S, H, 64]: rows of (1 + A)^-1 and P. Blocks above the diagonal are not written.
  Bf16 *states, *state_gradients;  // [B, slots, H, dv, dk]
  Bf16 *u, *du;                    // [B, S, H, dv]
  Bf16* rows;                      // with decays of channels: [B, S, H, 3, dk]
  int64_t S, channels, key_channels, slots;
  int G, H, dk, dv;
  float factor;

  __device__ const Bf16* query(int64_t token, int group) const { return qkv + token * channels + group * dk; }
  __device__ const Bf16* key(int64_t token, int group) const { return query(token, group) + key_channels; }
  __device__ const Bf16* value(int64_t token, int head) const {
    return qkv + token * channels + 2 * key_channels + head * dv;
  }
  // With decays of channels: e^γ k̂, e^(γ[L-1] - γ) k̂ and e^γ q̂.
  __device__ Bf16* grown_key(int64_t token, int head) const { return rows + (token * H + head) * 3 * dk; }
  __device__ Bf16* left_key(int64_t token, int head) const { return grown_key(token, head) + dk; }
  __device__ Bf16* grown_query(int64_t token, int head) const { return grown_key(token, head) + 2 * dk; }
  __device__ float* channel_decays(int64_t b, const ChunkSpan& span, int head) const {
    return decays + ((b * slots + span.begin / kTileL) * H + head) * dk;
  }
  // Whether another chunk, or the caller, gets the state after this one. Chunks of which that holds have slots of their
  // own.
  __device__ bool passes_on(const ChunkSpan& span) const { return span.L == kTileL || span.begin + span.L == S; }
  // The state before the chunk that begins with this token of row b.
  __device__ int64_t state(int64_t b, int begin, int head) const {
    return ((b * slots + begin / kTileL) * H + head) * static_cast<int64_t>(dk) * dv;
  }
};

DeltaTensors delta_tensors(const DeltaInputs& in, const DeltaMemory& memory);

// Fills chunks, scales, decays, inverse and links, and rows with decays of channels.
void delta_prepare(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory);
void delta_prepare_channels(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory);
// Walks the chunks of each head: o, and the state after each row's last token if `last` is defined.
void delta_walk(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in, const DeltaMemory& memory);
// Walks the chunks like delta_walk(), but fills states and u.
void delta_walk_states(Stream& stream, const DeltaInputs& in, const DeltaMemory& memory);
// The whole backward.
void delta_walk_back(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);
// Gradients of queries, keys and gates, once states, u, state_gradients and du are known.
void delta_key_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);
void delta_channel_gradients(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in);

// Copies the blocks of 16 x 16 on and under the diagonal.
template <int kThreads = kTileThreads>
__device__ __forceinline__ void copy_triangle(const SharedTile<kTileL>& to, const Bf16* from, int64_t stride, int L,
                                              int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kStep = kThreads / 8;
  const int unit = thread % 8, first = thread / 8;
  const Bf16* source = from + first * stride + unit * 8;
#pragma unroll
  for (int row = 0; row < kTileL; row += kStep, source += kStep * stride)
    if (unit / 2 <= (first + row) / 16)
      copy_async(to.unit(first + row, unit), first + row < L ? source : from, first + row < L);
}

// rk or rq of a row, which threads 2 i and 2 i + 1 call together.
template <int kColumns>
__device__ float inverse_norm(const SharedTile<kColumns>& tile, int row, float factor) {
  constexpr int kHalf = SharedTile<kColumns>::kUnits / 2;
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

// Calls body.template operator()<kColumns>() with the width of a tile for keys of dk channels.
template <class Body>
void dispatch_key_tile(int dk, const Body& body) {
  if (dk <= 64)
    body.template operator()<64>();
  else
    body.template operator()<128>();
}

// Calls body.template operator()<kColumns, kDecay>() for a walk.
template <class Body>
void dispatch_walk(const DeltaInputs& in, const Body& body) {
  dispatch_key_tile(static_cast<int>(in.heads.key_dim), [&]<int kColumns>() {
    if (in.decay() == Decay::of_head)
      body.template operator()<kColumns, Decay::of_head>();
    else
      body.template operator()<kColumns, Decay::of_channels>();
  });
}

}  // namespace witan::kernels::cuda
