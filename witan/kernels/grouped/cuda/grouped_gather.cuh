// Rows of an operand that lie where an index says, copied into a stage as the copy engine would write them from a pool.
// The engine takes boxes of adjacent rows only; these are copied by all threads of the producers' warpgroup, 16 bytes
// at a time (cp.async), which the stage's barrier counts by an arrival of each thread.
//
// The copies are ordinary writes, which the tensor cores see after a fence of those who wait for them
// (fence_shared_for_async). Rows outside the group are neither looked up nor copied.
#pragma once

#include <cassert>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/grouped/cuda/gathered_pieces.h"
#include "witan/kernels/grouped/cuda/wgmma.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// The operand whose rows are gathered.
enum class Gathered : uint8_t { none, a, b };

struct GatheredRows {
  const uint8_t* data;
  const int64_t* index;
  uint32_t divisor;
  uint32_t pitch;  // of rows, in pieces
  int width;       // elements of a row, whole pieces
};

// Whether rows are whole pieces, and places of all pieces, and of all indices, fit 32 bits.
inline bool can_gather(const Tensor& from, const RowIndex& rows) {
  constexpr int64_t kMost = UINT32_MAX - 1;
  const int64_t pitch = from.stride(0) / kPieceElements;
  return from.size(1) % kPieceElements == 0 && from.size(1) <= INT32_MAX && rows.divisor > 0 &&
         from.size(0) <= kMost / rows.divisor && from.size(0) <= kMost / std::max<int64_t>(pitch, 1);
}

inline GatheredRows gathered_rows(const Tensor& from, const RowIndex& rows) {
  assert(can_gather(from, rows));
  return {ptr<const uint8_t>(from), ptr<const int64_t>(rows.index), static_cast<uint32_t>(rows.divisor),
          static_cast<uint32_t>(from.stride(0) / kPieceElements), static_cast<int>(from.size(1))};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

inline constexpr uint32_t kNoRow = 0xffffffffu;

// The row's first piece, by what its index is.
__device__ __forceinline__ uint32_t first_piece(const GatheredRows& from, uint32_t index) {
  return index == kNoRow ? kNoRow : index / from.divisor * from.pitch;
}

// What a thread copies of several rows, each known by its first piece: the piece that begins with `element`, or zeros
// behind a row's end.
struct Piece {
  const uint8_t* data;  // of row 0
  bool exists;

  __device__ __forceinline__ Piece(const GatheredRows& from, int element)
      : data(from.data + static_cast<int64_t>(element) * 2), exists(element < from.width) {}
  __device__ __forceinline__ void copy(uint32_t to, uint32_t first) const {
    copy_16_async(to, data + static_cast<uint64_t>(first) * kPieceBytes, exists);
  }
};

// Gathered lines of a, 64 steps at a time.
template <int kLines>
struct GatherLines {
  using Pieces = LinePieces<kLines>;
  uint32_t first[Pieces::kEach];  // pieces of this thread's rows

  // Of the tile whose first line is `row` of the pool.
  __device__ __forceinline__ void begin(const GatheredRows& from, int row, int lines, int) {
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int line = Pieces::line(static_cast<int>(threadIdx.x), i);
      first[i] = first_piece(from, line < lines ? static_cast<uint32_t>(from.index[row + line]) : kNoRow);
    }
  }
  __device__ __forceinline__ void copy(uint8_t* to, const GatheredRows& from, int block) {
    const int thread = static_cast<int>(threadIdx.x);
    const Piece piece(from, block * kWgmmaUnit + Pieces::piece(thread) * kPieceElements);
    const uint32_t base = shared_address(to);
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i)
      if (first[i] != kNoRow) piece.copy(base + static_cast<uint32_t>(Pieces::place(thread, i)), first[i]);
  }
};

// Gathered steps of a sum, of which the operand has kLines lines from `line` on. Indices are read for several blocks at
// once, while those of the blocks before are used: one block is multiplied in less time than memory takes to answer.
template <int kLines>
struct GatherSteps {
  using Pieces = StepPieces<kLines>;
  static constexpr int kOfLane = 2, kBlocks = kOfLane * 32 / Pieces::kOfWarp;  // whose indices are read at once
  int row, rows, line;     // of the pool, the group's first; rows of the group; the tile's first line
  uint32_t now[kOfLane];   // first pieces of the steps that this lane looks up
  uint32_t next[kOfLane];  // indices of those of the next blocks

  __device__ __forceinline__ void begin(const GatheredRows& from, int first_row, int all_rows, int first_line) {
    row = first_row;
    rows = all_rows;
    line = first_line;
    look_up(from, 0);
  }
  __device__ __forceinline__ void copy(uint8_t* to, const GatheredRows& from, int block) {
    static_assert(kBlocks == 4 && kOfLane == 2);
    const int thread = static_cast<int>(threadIdx.x);
    if (block % kBlocks == 0) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) now[i] = first_piece(from, next[i]);
      look_up(from, block + kBlocks);
    }
    const Piece piece(from, line + Pieces::piece(thread) * kPieceElements);
    const uint32_t base = shared_address(to), own = (block & 2) != 0 ? now[1] : now[0];
    const int lane = (block & 1) * Pieces::kOfWarp;
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i) {
      const uint32_t at = __shfl_sync(0xffffffffu, own, lane + Pieces::of_warp(thread, i));
      if (at != kNoRow) piece.copy(base + static_cast<uint32_t>(Pieces::place(thread, i)), at);
    }
  }

 private:
  // Of kBlocks blocks from this one on: a lane has a step of every second one.
  __device__ __forceinline__ void look_up(const GatheredRows& from, int block) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int first =
        (block + lane / Pieces::kOfWarp) * kWgmmaUnit + thread / 32 * Pieces::kOfWarp + lane % Pieces::kOfWarp;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int step = first + i * 2 * kWgmmaUnit;
      next[i] = step < rows ? static_cast<uint32_t>(from.index[row + step]) : kNoRow;
    }
  }
};

struct GatherNothing {
  __device__ __forceinline__ void begin(const GatheredRows&, int, int, int) {}
  __device__ __forceinline__ void copy(uint8_t*, const GatheredRows&, int) {}
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace witan::kernels::cuda
