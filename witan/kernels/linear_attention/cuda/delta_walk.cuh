// Shared by the walks over a head's chunks. A block has 32 value channels of a head of a row. Each of two warps, the
// walkers, has 16 of them, with the transpose of their state, or of its gradient, in registers, in float32. Transposed,
// sums of one product are the left operand of the next, so that a chunk's products do not wait for shared memory. Other
// warps copy its inputs there a chunk ahead; two more, the followers, finish it a chunk later with operands that the
// walkers leave.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kWalkSlice = 32;  // value channels of a block
inline constexpr int kWalkers = 64, kFollowers = 64, kCopiers = 128;
inline constexpr int kWalkThreads = kWalkers + kFollowers + kCopiers;
using SliceRows = SharedTile<kWalkSlice>;

// The chunks of a row in either direction. Entries are read a chunk ahead of when their copies begin.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const int32_t* table, bool back)
      : table_(table), count_(table[0]), step_(back ? -1 : 1), at_(back ? count_ : 1) {
    ahead_ = read(at_);
  }
  __device__ int count() const { return count_; }
  // The next chunk.
  __device__ ChunkSpan next() {
    const int2 entry = ahead_;
    at_ += step_;
    ahead_ = read(at_);
    return chunk_span(entry.x, entry.y);
  }

 private:
  __device__ int2 read(int at) const { return at >= 1 && at <= count_ ? int2{table_[at], table_[at + 1]} : int2{0, 0}; }
  const int32_t* table_;
  int count_, step_, at_;
  int2 ahead_;
};

// Operands that a walker leaves to its follower, a lane's registers: the state before the chunk, and U.
template <int kColumns>
struct WalkOperands {
  uint4 state[kColumns / 16][32], solution[4][32];
  __device__ static void set(uint4 (&to)[32], const FragmentA& x) {
    to[warp_lane()] = {x.at[0], x.at[1], x.at[2], x.at[3]};
  }
  __device__ static FragmentA get(const uint4 (&from)[32]) { return fragment_of(from[warp_lane()]); }
};

// A block's part of the work.
struct WalkPlace {
  int slice, head, group;
  int64_t b;
  __device__ explicit WalkPlace(const DeltaTensors& in)
      : slice(static_cast<int>(blockIdx.x) * kWalkSlice),
        head(static_cast<int>(blockIdx.y)),
        group(head / (in.H / in.G)),
        b(blockIdx.z) {}
  __device__ int64_t token(const DeltaTensors& in, const ChunkSpan& span) const { return b * in.S + span.begin; }
};

// A chunk's inputs in shared memory; queries and links where the walk wants them. Keys, (1 + A)^-1 and the walk's own
// rows are kept for two chunks, what followers read too for three. With decays of channels keys and queries have their
// decays in them: k meets the state before the chunk, k_left the one after it. Else both are the same.
template <int kColumns, Decay kDecay>
struct WalkStage {
  static constexpr bool kOfHead = kDecay == Decay::of_head;
  SharedTile<kColumns> k, k_left, q;
  SharedTile<kTileL> inverse, links;
  SliceRows rows;
  DeltaScales* scales;
  float* decay;                      // of the state: one, or [kColumns]
  WalkOperands<kColumns>* operands;  // of two walkers

  static constexpr int kKeys = (kOfHead ? 1 : 2) * kTileL * kColumns;
  static constexpr int kOwn = (kKeys + kTileL * kTileL + kTileL * kWalkSlice) * sizeof(Bf16);
  static constexpr int kScales = (kTileL + (kOfHead ? 8 : kColumns / 4)) * sizeof(DeltaScales);
  static constexpr int kShared = (kTileL * kColumns + kTileL * kTileL) * sizeof(Bf16);
  static constexpr int kOperands = 2 * sizeof(WalkOperands<kColumns>);
  // The bytes of all stages; `whole`: with queries and links.
  static constexpr int64_t bytes(bool whole) { return 2 * (kOwn + kOperands) + 3 * (kScales + (whole ? kShared : 0)); }
  // The stage of the walk's chunk n.
  __device__ WalkStage(unsigned char* memory, int n, bool whole) {
    unsigned char *const own = memory + n % 2 * kOwn, *const left = memory + 2 * kOwn + n % 2 * kOperands,
                         *const late = memory + 2 * (kOwn + kOperands) + n % 3 * (kScales + (whole ? kShared : 0));
    k.at = reinterpret_cast<Bf16*>(own);
    k_left.at = kOfHead ? k.at : k.at + kTileL * kColumns;
    inverse.at = k.at + kKeys;
    rows.at = inverse.at + kTileL * kTileL;
    operands = reinterpret_cast<WalkOperands<kColumns>*>(left);
    scales = reinterpret_cast<DeltaScales*>(late);
    decay = reinterpret_cast<float*>(scales + kTileL);
    q.at = whole ? reinterpret_cast<Bf16*>(late + kScales) : nullptr;
    links.at = whole ? q.at + kTileL * kColumns : nullptr;
  }
  // Copies a chunk of the block's head, with rows of its channels that lie `stride` apart. Called by all copiers.
  __device__ void copy(const DeltaTensors& in, const WalkPlace& place, const ChunkSpan& span, const Bf16* own,
                       int64_t stride) const {
    const int thread = static_cast<int>(threadIdx.x) - (kWalkThreads - kCopiers), L = span.L, head = place.head;
    const int64_t first = place.token(in, span), of_decayed = static_cast<int64_t>(in.H) * 3 * in.dk;
    const int channels = in.dv - place.slice;
    if constexpr (kOfHead) {
      copy_rows<kTileL, kCopiers>(k, in.key(first, place.group), in.channels, L, in.dk, thread);
    } else {
      copy_rows<kTileL, kCopiers>(k, in.grown_key(first, head), of_decayed, L, in.dk, thread);
      copy_rows<kTileL, kCopiers>(k_left, in.left_key(first, head), of_decayed, L, in.dk, thread);
    }
    const int64_t links_at = (first * in.H + head) * kTileL, links_stride = static_cast<int64_t>(in.H) * kTileL;
    copy_rows<kTileL, kCopiers>(rows, own, stride, L, channels, thread);
    copy_triangle<kCopiers>(inverse, in.inverse + links_at, links_stride, L, thread);
    if (thread < kTileL) {
      const bool wanted = thread < L;
      copy_async(scales + thread, in.scales + (first + (wanted ? thread : 0)) * in.H + head, wanted);
    }
    if (q.at != nullptr) {
      if constexpr (kOfHead)
        copy_rows<kTileL, kCopiers>(q, in.query(first, place.group), in.channels, L, in.dk, thread);
      else
        copy_rows<kTileL, kCopiers>(q, in.grown_query(first, head), of_decayed, L, in.dk, thread);
      copy_triangle<kCopiers>(links, in.links + links_at, links_stride, L, thread);
    }
    if constexpr (!kOfHead) {
      const int d = 4 * thread;
      const bool wanted = in.passes_on(span) && d < in.dk;
      if (d < kColumns) copy_async(decay + d, in.channel_decays(place.b, span, head) + (wanted ? d : 0), wanted);
    }
    commit_copies();
    if (kOfHead && thread == 0) *decay = in.decays[first * in.H + head];
    wait_copies<0>();
  }
  // Lets a state decay, or its gradient.
  __device__ __forceinline__ void let_decay(WarpSums<kColumns / 16>& state) const {
    if constexpr (kOfHead) {
      const float by = *decay;
      state.scale(by, by);
    } else {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const float2 by = *reinterpret_cast<const float2*>(decay + 8 * n + warp_lane() % 4 * 2);
        state.at[n][0] *= by.x, state.at[n][1] *= by.y;
        state.at[n][2] *= by.x, state.at[n][3] *= by.y;
      }
    }
  }
};

// Runs the parts of a walk: copy(stage, span) by the copiers, chunk(stage, span) by the walkers a step later, and
// finish(stage, span) by the followers another step later.
template <class Stage, bool kWhole, class Copy, class Chunk, class Finish>
__device__ __forceinline__ void walk_chunks(const int32_t* table, bool back, unsigned char* memory, const Copy& copy,
                                            const Chunk& chunk, const Finish& finish) {
  ChunkWalk chunks(table, back);
  const auto steps = [&](const auto& step) {
    for (int n = -1; n <= chunks.count(); ++n) {
      step(n);
      __syncthreads();
    }
  };
  const auto stage = [&](int n) { return Stage(memory, n, kWhole); };
  if (threadIdx.x < kWalkers)
    steps([&](int n) {
      if (n >= 0 && n < chunks.count()) chunk(stage(n), chunks.next());
    });
  else if (threadIdx.x < kWalkers + kFollowers)
    steps([&](int n) {
      if (n >= 1) finish(stage(n - 1), chunks.next());
    });
  else
    steps([&](int n) {
      if (n + 1 < chunks.count()) copy(stage(n + 1), chunks.next());
    });
}

// Sums of a warp's 16 channels and a chunk's 64 tokens.
using TokenSums = WarpSums<4>;

// Two neighbouring tokens' numbers, of the lane's columns 8 n and 8 n + 1 + ….
template <class Read>
__device__ __forceinline__ float2 of_tokens(const DeltaScales* scales, int n, const Read& read) {
  const int token = 8 * n + warp_lane() % 4 * 2;
  return {read(scales[token]), read(scales[token + 1])};
}

template <class Read>
__device__ __forceinline__ void scale_tokens(TokenSums& sums, const DeltaScales* scales, const Read& read) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 by = of_tokens(scales, n, read);
    sums.at[n][0] *= by.x, sums.at[n][1] *= by.y;
    sums.at[n][2] *= by.x, sums.at[n][3] *= by.y;
  }
}

// Writes rows of tokens from left operands of 16 tokens each, `to` the warp's first channel of the first token: lanes
// exchange numbers so that each has two channels of a token. Of `channels` channels, a multiple of 8, and L tokens.
__device__ __forceinline__ void write_operands(Bf16* to, int64_t stride, const FragmentA (&rows)[4], int L,
                                               int channels) {
  const int lane = warp_lane(), channel = lane / 8 * 2;
  const bool odd = lane / 4 % 2 != 0;
  int token = lane % 4 * 2 + (odd ? 1 : 0);
  Bf16* row = to + token * stride + channel;
#pragma unroll
  for (int n = 0; n < 8; ++n, token += 8, row += 8 * stride)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t own = rows[n / 2].at[n % 2 * 2 + half], other = __shfl_xor_sync(0xffffffffu, own, 4);
      // The first tokens of (own, other), or the second ones of (other, own).
      const uint32_t pair = odd ? other >> 16 | (own & 0xffff0000u) : (own & 0xffffu) | other << 16;
      if (token < L && 8 * half < channels) *reinterpret_cast<uint32_t*>(row + 8 * half) = pair;
    }
}
__device__ __forceinline__ void write_tokens(Bf16* to, int64_t stride, const TokenSums& sums, int L, int channels) {
  const FragmentA rows[4] = {sums.operand(0), sums.operand(1), sums.operand(2), sums.operand(3)};
  write_operands(to, stride, rows, L, channels);
}

// Writes a transposed state, `to` [dv, dk] from the warp's first channel on, of which `channels` are there.
template <int kColumns>
__device__ __forceinline__ void write_state(Bf16* to, const WarpSums<kColumns / 16>& state, int dk, int channels) {
  const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + 8 * half < channels && column + 8 * n < dk)
        *reinterpret_cast<uint32_t*>(to + (row + 8 * half) * dk + column + 8 * n) =
            pack_pair<Bf16>(state.at[n][2 * half], state.at[n][2 * half + 1]);
}

// The state that a walker left.
template <int kColumns>
__device__ __forceinline__ void write_state(Bf16* to, const WalkOperands<kColumns>& left, int dk, int channels) {
  const int row = warp_lane() / 4, column = warp_lane() % 4 * 2;
#pragma unroll
  for (int d = 0; d < kColumns / 16; ++d) {
    const FragmentA state = WalkOperands<kColumns>::get(left.state[d]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (row + i % 2 * 8 < channels && column + 16 * d + i / 2 * 8 < dk)
        *reinterpret_cast<uint32_t*>(to + (row + i % 2 * 8) * dk + column + 16 * d + i / 2 * 8) = state.at[i];
  }
}

}  // namespace witan::kernels::cuda
