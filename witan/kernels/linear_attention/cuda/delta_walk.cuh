// What the walks over a head's chunks share. A block has 32 value channels of a head of a row. Each of two warps has 16
// of them, with the transpose of their state, or of its gradient, in registers, in float32. Transposed, sums of one
// product are the left operand of the next, so that nothing of a chunk passes through shared memory but its inputs,
// which the other warps copy there a chunk ahead.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kWalkSlice = 32;  // value channels of a block
inline constexpr int kWalkers = 64, kCopiers = 128, kWalkThreads = kWalkers + kCopiers;
using SliceRows = DeltaTile<kWalkSlice>;

// The chunks of a row in either direction. Entries are read a chunk ahead of when their copies begin.
class ChunkWalk {
 public:
  __device__ ChunkWalk(const int32_t* table, bool back)
      : table_(table), count_(table[0]), step_(back ? -1 : 1), at_(back ? count_ : 1) {
    ahead_ = read(at_);
  }
  __device__ int count() const { return count_; }
  // The next chunk.
  __device__ DeltaSpan next() {
    const int2 entry = ahead_;
    at_ += step_;
    ahead_ = read(at_);
    return delta_span(entry.x, entry.y);
  }

 private:
  __device__ int2 read(int at) const { return at >= 1 && at <= count_ ? int2{table_[at], table_[at + 1]} : int2{0, 0}; }
  const int32_t* table_;
  int count_, step_, at_;
  int2 ahead_;
};

// A chunk's inputs in shared memory; queries and links where the walk wants them.
template <int kColumns>
struct WalkStage {
  DeltaTile<kColumns> k, q;
  DeltaTile<kTileL> inverse, links;
  SliceRows rows;  // of the walk's own
  DeltaScales* scales;
  float* decay;

  // Of stages that hold queries and links, or not.
  static constexpr int64_t bytes(bool whole) {
    return (whole ? 2 : 1) * (kTileL * kColumns + kTileL * kTileL) * static_cast<int64_t>(sizeof(Bf16)) +
           kTileL * kWalkSlice * static_cast<int64_t>(sizeof(Bf16)) +
           (kTileL + 8) * static_cast<int64_t>(sizeof(DeltaScales));
  }
  __device__ WalkStage(unsigned char* memory, bool whole) {
    k.at = reinterpret_cast<Bf16*>(memory);
    inverse.at = k.at + kTileL * kColumns;
    rows.at = inverse.at + kTileL * kTileL;
    scales = reinterpret_cast<DeltaScales*>(rows.at + kTileL * kWalkSlice);
    decay = reinterpret_cast<float*>(scales + kTileL);
    q.at = reinterpret_cast<Bf16*>(scales + kTileL + 8);
    links.at = q.at + kTileL * kColumns;
    if (!whole) q.at = links.at = nullptr;
  }
  // Copies a chunk whose first token is `first` of all rows', with rows of a head's channels that lie `stride` apart.
  // Called by all copiers.
  __device__ void copy(const DeltaTensors& in, int64_t first, int L, int head, int group, const Bf16* own,
                       int64_t stride, int channels) const {
    const int thread = static_cast<int>(threadIdx.x) - kWalkers;
    copy_rows<kTileL, kCopiers>(k, in.key(first, group), in.channels, L, in.dk, thread);
    const int64_t links_at = (first * in.H + head) * kTileL, links_stride = static_cast<int64_t>(in.H) * kTileL;
    copy_rows<kTileL, kCopiers>(rows, own, stride, L, channels, thread);
    copy_triangle<kCopiers>(inverse, in.inverse + links_at, links_stride, L, thread);
    if (thread < kTileL) {
      const bool wanted = thread < L;
      copy_async(scales + thread, in.scales + (first + (wanted ? thread : 0)) * in.H + head, wanted);
    }
    if (q.at != nullptr) {
      copy_rows<kTileL, kCopiers>(q, in.query(first, group), in.channels, L, in.dk, thread);
      copy_triangle<kCopiers>(links, in.links + links_at, links_stride, L, thread);
    }
    commit_copies();
    if (thread == 0) *decay = in.decays[first * in.H + head];
    wait_copies<0>();
  }
};

// Where a block is.
struct WalkPlace {
  int slice, head, group;
  int64_t b;
  __device__ explicit WalkPlace(const DeltaTensors& in)
      : slice(static_cast<int>(blockIdx.x) * kWalkSlice),
        head(static_cast<int>(blockIdx.y)),
        group(head / (in.H / in.G)),
        b(blockIdx.z) {}
  __device__ int64_t token(const DeltaTensors& in, const DeltaSpan& span) const { return b * in.S + span.begin; }
};

// Runs both parts of a walk: copy(stage, span) by the copiers, chunk(stage, span) by the walkers.
template <int kColumns, bool kWhole, class Copy, class Chunk>
__device__ __forceinline__ void walk_chunks(const int32_t* table, bool back, unsigned char* memory, const Copy& copy,
                                            const Chunk& chunk) {
  const auto stage_of = [&](int n) {
    return WalkStage<kColumns>(memory + n % 2 * WalkStage<kColumns>::bytes(kWhole), kWhole);
  };
  ChunkWalk chunks(table, back);
  if (threadIdx.x >= kWalkers) {
    copy(stage_of(0), chunks.next());
    __syncthreads();
    for (int n = 0; n < chunks.count(); ++n) {
      if (n + 1 < chunks.count()) copy(stage_of(n + 1), chunks.next());
      __syncthreads();
    }
  } else {
    __syncthreads();
    for (int n = 0; n < chunks.count(); ++n) {
      chunk(stage_of(n), chunks.next());
      __syncthreads();
    }
  }
}

// Sums of a warp's 16 channels and a chunk's 64 tokens.
using TokenSums = WarpSums<4>;

// Two neighbouring tokens' numbers, of the lane's columns 8 n and 8 n + 1 + ….
template <class Read>
__device__ __forceinline__ float2 of_tokens(const DeltaScales* scales, int n, const Read& read) {
  const int token = 8 * n + delta_lane() % 4 * 2;
  return {read(scales[token]), read(scales[token + 1])};
}

// Writes sums to rows of tokens, `to` the warp's first channel of the first token: lanes exchange numbers so that each
// has two channels of a token. Of `channels` channels, a multiple of 8, and L tokens.
__device__ __forceinline__ void write_tokens(Bf16* to, int64_t stride, const TokenSums& sums, int L, int channels) {
  const int lane = delta_lane(), channel = lane / 8 * 2;
  const bool odd = lane / 4 % 2 != 0;
  int token = lane % 4 * 2 + (odd ? 1 : 0);
  Bf16* row = to + token * stride + channel;
#pragma unroll
  for (int n = 0; n < 8; ++n, token += 8, row += 8 * stride)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float first = sums.at[n][2 * half], second = sums.at[n][2 * half + 1];
      const float other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
      const uint32_t pair = odd ? pack_pair<Bf16>(other, second) : pack_pair<Bf16>(first, other);
      if (token < L && 8 * half < channels) *reinterpret_cast<uint32_t*>(row + 8 * half) = pair;
    }
}

// Writes a transposed state, `to` [dv, dk] from the warp's first channel on, of which `channels` are there.
template <int kColumns>
__device__ __forceinline__ void write_state(Bf16* to, const WarpSums<kColumns / 16>& state, int dk, int channels) {
  const int row = delta_lane() / 4, column = delta_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + 8 * half < channels && column + 8 * n < dk)
        *reinterpret_cast<uint32_t*>(to + (row + 8 * half) * dk + column + 8 * n) =
            pack_pair<Bf16>(state.at[n][2 * half], state.at[n][2 * half + 1]);
}

}  // namespace witan::kernels::cuda
