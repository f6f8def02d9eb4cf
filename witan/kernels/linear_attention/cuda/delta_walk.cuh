// What the walks over a head's chunks share: a block has 32 value channels of a head of a row. Its state, or the
// gradient of it, stays in the registers of its warps in float32, and in shared memory rounded, as an operand.
#pragma once

#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kWalkSlice = 32;  // value channels of a block
using SliceRows = DeltaTile<kWalkSlice>;

// The part of a warp: 16 tokens by 16 channels of a [64, 32] product, and rows and channels of the state.
template <int kColumns>
struct WalkWarp {
  static constexpr int kStatePairs = kColumns / 64;  // of 16 channels
  int token, channel;                                // first ones, of products
  int state_row, state_channel;                      // first ones, of the state
  __device__ WalkWarp() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    token = warp % 4 * 16, channel = warp / 4 * 16;
    state_row = kColumns == 128 ? warp * 16 : token, state_channel = kColumns == 128 ? 0 : channel;
  }
};

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

// A chunk's inputs in shared memory; queries, links and the walks' own rows as the walk wants them.
template <int kColumns>
struct WalkStage {
  DeltaTile<kColumns> k, q;
  DeltaTile<kTileL> inverse, links;
  SliceRows rows;
  DeltaScales* scales;

  // Of stages that hold queries and links, or not.
  static constexpr int64_t bytes(bool whole) {
    return (whole ? 2 : 1) * (kTileL * kColumns + kTileL * kTileL) * static_cast<int64_t>(sizeof(Bf16)) +
           kTileL * kWalkSlice * static_cast<int64_t>(sizeof(Bf16)) +
           kTileL * static_cast<int64_t>(sizeof(DeltaScales));
  }
  __device__ WalkStage(unsigned char* memory, bool whole) {
    k.at = reinterpret_cast<Bf16*>(memory);
    inverse.at = k.at + kTileL * kColumns;
    rows.at = inverse.at + kTileL * kTileL;
    scales = reinterpret_cast<DeltaScales*>(rows.at + kTileL * kWalkSlice);
    q.at = reinterpret_cast<Bf16*>(scales + kTileL);
    links.at = q.at + kTileL * kColumns;
    if (!whole) q.at = links.at = nullptr;
  }
  // Begins the copies of a chunk whose first token is `first` of all rows', with rows of a head's channels that lie
  // `stride` apart.
  __device__ void copy(const DeltaTensors& in, int64_t first, int L, int head, const Bf16* own, int64_t stride,
                       int channels) const {
    const int group = head / (in.H / in.G);
    copy_rows(k, in.key(first, group), in.channels, L, in.dk);
    const int64_t links_at = (first * in.H + head) * kTileL, links_stride = static_cast<int64_t>(in.H) * kTileL;
    copy_rows(rows, own, stride, L, channels);
    copy_triangle(inverse, in.inverse + links_at, links_stride, L);
    if (threadIdx.x < kTileL) {
      const bool wanted = static_cast<int>(threadIdx.x) < L;
      copy_async(scales + threadIdx.x, in.scales + (first + (wanted ? threadIdx.x : 0)) * in.H + head, wanted);
    }
    if (q.at != nullptr) {
      copy_rows(q, in.query(first, group), in.channels, L, in.dk);
      copy_triangle(links, in.links + links_at, links_stride, L);
    }
    commit_copies();
  }
};

// Writes a warp's part of the state to the tile that products read.
template <int kColumns>
__device__ __forceinline__ void write_state(const SliceRows& to, WarpSums<WalkWarp<kColumns>::kStatePairs>& state,
                                            const WalkWarp<kColumns>& warp) {
  state.each([&](int row, int column, float first, float second) {
    to.set(warp.state_row + row, warp.state_channel + column, first, second);
  });
}

// Copies the block's slice of a state from shared to device memory, `to` its element (0, 0) of the head.
template <int kColumns>
__device__ __forceinline__ void store_state(Bf16* to, const SliceRows& from, const DeltaTensors& in, int slice) {
#pragma unroll
  for (int first = 0; first < kColumns * 4; first += kTileThreads) {
    const int at = first + static_cast<int>(threadIdx.x), row = at / 4, unit = at % 4;
    if (row < in.dk && slice + unit * 8 < in.dv)
      store_pack(reinterpret_cast<uint32_t*>(to + static_cast<int64_t>(row) * in.dv + slice + unit * 8),
                 load_pack<uint32_t, 4>(reinterpret_cast<const uint32_t*>(from.unit(row, unit))));
  }
}

}  // namespace witan::kernels::cuda
