// Mamba-2's recurrence on tensor cores: the memory that passes from kernel to kernel. Inputs and vectors stay as they
// are stored; decays and steps multiply float32 sums wherever these are not the operands of another product.
#pragma once

#include "witan/kernels/common/cuda/chunk_table.cuh"
#include "witan/kernels/common/cuda/tensor_tiles.cuh"
#include "witan/kernels/state_space/ssd.h"

namespace witan::kernels::cuda {

static_assert(kSsdChunk == kTileL);

// The numbers of a token and head. γ counts from its chunk's first token to itself.
struct alignas(16) SsdScales {
  float gamma, dt;    // γ in units of log2
  float grown, left;  // e^γ, e^(γ[L-1] - γ)
};

// Inputs and workspace.
struct SsdTensors {
  const Bf16* xbc;
  const float *dt, *a, *D;
  const int32_t* ids;
  int32_t* chunks;    // fill_chunk_table()
  SsdScales* scales;  // [B, H, S]
  // [B, slots, H, P / 8, N / 8, 8, 8]: transposed, in blocks of 8 x 8, as tensor cores take them
  Bf16 *states, *state_gradients;
  float* skips;  // [B, S, H]: x.dy
  int64_t S, channels, inner, of_groups, slots;
  int H, G, P, N;
  int per_group;  // heads

  __device__ const Bf16* input(int64_t token, int head) const { return xbc + token * channels + head * P; }
  // B of a group; its C lies of_groups further on.
  __device__ const Bf16* vectors(int64_t token, int group) const {
    return xbc + token * channels + inner + static_cast<int64_t>(group) * N;
  }
  __device__ const SsdScales* scale(int64_t b, int begin, int head) const {
    return scales + (b * H + head) * S + begin;
  }
  // The state before the chunk that begins with this token of row b.
  __device__ int64_t state(int64_t b, int begin, int head) const {
    return ((b * slots + begin / kTileL) * H + head) * static_cast<int64_t>(N) * P;
  }
};

SsdTensors ssd_tensors(const SsdInputs& in, const SsdMemory& memory);

// Fills chunks and scales.
void ssd_prepare(Stream& stream, const SsdInputs& in, const SsdMemory& memory);
// Walks each row's chunks: the states before chunks that are not their document's first, and the state after each row's
// last token if `last` is defined.
void ssd_walk(Stream& stream, const Tensor& last, const SsdInputs& in, const SsdMemory& memory);
// Walks back: the gradients of the states after chunks that are not their document's last.
void ssd_walk_back(Stream& stream, const Tensor& dy, const SsdInputs& in, const SsdMemory& memory);
// y, once states are known.
void ssd_outputs(Stream& stream, const Tensor& y, const SsdInputs& in, const SsdMemory& memory);
// All gradients but dD, once states and their gradients are known; fills skips.
void ssd_gradients(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in);

// A state in shared memory: `kColumns` numbers of each of 64 channels or fewer, in blocks of 8 channels and 8 numbers.
template <int kColumns>
struct StateTile {
  static constexpr int kAcross = kColumns / 8;
  Bf16* at;
  // A lane's row of the four blocks from (channel, number) on, multiples of 16: blocks (0, 0), (0, 1), (1, 0), (1, 1)
  // of channels and numbers if `by_channel`, else (0, 0), (1, 0), (0, 1), (1, 1).
  __device__ const Bf16* lane_row(int channel, int number, bool by_channel) const {
    const int lane = warp_lane(), low = lane / 8 % 2, high = lane / 16;
    const int down = channel / 8 + (by_channel ? high : low), across = number / 8 + (by_channel ? low : high);
    return at + (down * kAcross + across) * 64 + lane % 8 * 8;
  }
  // S as a right operand [16 numbers, 16 channels].
  __device__ FragmentPair by_number(int number, int channel) const {
    const uint4 x = load_matrices(lane_row(channel, number, true));
    return {{{{x.x, x.y}}, {{x.z, x.w}}}};
  }
  // The transpose of S as a right operand [16 channels, 16 numbers].
  __device__ FragmentPair by_channel(int channel, int number) const {
    const uint4 x = load_matrices_transposed(lane_row(channel, number, false));
    return {{{{x.x, x.y}}, {{x.z, x.w}}}};
  }
};

// Copies channels [first, first + 64) of a head's state; zeros beyond N numbers and P channels. Thread `thread` of
// kThreads.
template <int kThreads, int kColumns>
__device__ __forceinline__ void copy_state(const StateTile<kColumns>& to, const Bf16* from, int first, int P, int N,
                                           int thread) {
  constexpr int kUnits = 64 * kColumns / 8;
  static_assert(kUnits % kThreads == 0);
  const int across = N / 8;
  if (N == kColumns && P - first >= 64) {
    const Bf16* const source = from + first * kColumns + thread * 8;
#pragma unroll
    for (int at = 0; at < kUnits; at += kThreads) copy_async(to.at + (at + thread) * 8, source + at * 8, true);
    return;
  }
#pragma unroll
  for (int at = 0; at < kUnits; at += kThreads) {
    const int unit = at + thread, block = unit / 8, down = block / StateTile<kColumns>::kAcross,
              n = block % StateTile<kColumns>::kAcross;
    const bool wanted = first + 8 * down < P && n < across;
    copy_async(to.at + unit * 8, wanted ? from + ((first / 8 + down) * across + n) * 64 + unit % 8 * 8 : from, wanted);
  }
}

// 64 channels of a head, or fewer, in the order in which a block takes those of its heads.
struct HeadPart {
  int head, channel;
  __device__ HeadPart next(int P) const {
    return channel + 64 < P ? HeadPart{head, channel + 64} : HeadPart{head + 1, 0};
  }
};

// Copies a chunk's scales. Threads from kTileL on do nothing.
__device__ __forceinline__ void copy_scales(SsdScales* to, const SsdScales* from, int L, int thread) {
  if (thread < kTileL) copy_async(to + thread, thread < L ? from + thread : from, thread < L);
}

// Writes a warp's sums to rows of bfloat16 numbers, `to` its first row and column; of L rows and `columns` columns, a
// multiple of 8.
template <int kPairs>
__device__ __forceinline__ void write_sums(Bf16* to, int64_t stride, const WarpSums<kPairs>& sums, int L, int columns) {
  const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    if (row + 8 * lower >= L) continue;
    Bf16* const at = to + (row + 8 * lower) * stride + column;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n)
      if (8 * n < columns)
        *reinterpret_cast<uint32_t*>(at + 8 * n) = pack_pair<Bf16>(sums.at[n][2 * lower], sums.at[n][2 * lower + 1]);
  }
}

// Calls body.template operator()<kColumns>() with the width of a tile for states of N numbers a channel.
template <class Body>
void dispatch_state_tile(int N, const Body& body) {
  if (N <= 64)
    body.template operator()<64>();
  else
    body.template operator()<128>();
}

}  // namespace witan::kernels::cuda
