// Gathers an operand's rows by an index, into a stage in the layout in which the copy engine writes rows of a pool. The
// engine copies only boxes of adjacent rows, so all threads of the producers' warpgroup copy gathered rows, 16 bytes at
// a time (cp.async), and each thread arrives at the stage's barrier.
//
// The copies are ordinary writes, which the tensor cores see only after a fence by the consumers
// (fence_shared_for_async). Rows outside the group are neither looked up nor copied.
#pragma once

#include <cassert>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/common/cuda/wgmma.cuh"
#include "witan/kernels/grouped/cuda/gathered_pieces.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// The operand whose rows are gathered.
enum class Gathered : uint8_t { none, a, b };

struct GatheredRows {
  const uint8_t* data;
  const int64_t* index;
  uint32_t divisor;
  uint32_t pitch;  // between rows, in pieces
  int width;       // elements in a row, in whole pieces
};

// Whether rows are whole pieces, and the numbers of all pieces and indices fit in 32 bits.
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

// The number of the first piece of the row that the index names.
__device__ __forceinline__ uint32_t first_piece(const GatheredRows& from, uint32_t index) {
  return index == kNoRow ? kNoRow : index / from.divisor * from.pitch;
}

// The piece that a thread copies from each of several rows: it begins at `element`, and is zeros beyond a row's end.
struct Piece {
  const uint8_t* data;  // of row 0
  bool exists;

  __device__ __forceinline__ Piece(const GatheredRows& from, int element)
      : data(from.data + static_cast<int64_t>(element) * 2), exists(element < from.width) {}
  __device__ __forceinline__ void copy(uint32_t to, uint32_t first) const {
    copy_16_async(to, data + static_cast<uint64_t>(first) * kPieceBytes, exists);
  }
};

// Gathers kM rows of the operand (M), in blocks of 64 of K.
template <int kM>
struct GatherM {
  using Pieces = MPieces<kM>;
  uint32_t first[Pieces::kEach];  // pieces of this thread's rows

  // Begins the tile whose first row is entry `row` of the index.
  __device__ __forceinline__ void begin(const GatheredRows& from, int row, int rows, int) {
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int m = Pieces::m(static_cast<int>(threadIdx.x), i);
      first[i] = first_piece(from, m < rows ? static_cast<uint32_t>(from.index[row + m]) : kNoRow);
    }
  }
  __device__ __forceinline__ void copy(uint8_t* to, const GatheredRows& from, int block) {
    const int thread = static_cast<int>(threadIdx.x);
    const Piece piece(from, block * kSubtile + Pieces::piece(thread) * kPieceElements);
    const uint32_t base = shared_address(to);
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i)
      if (first[i] != kNoRow) piece.copy(base + static_cast<uint32_t>(Pieces::place(thread, i)), first[i]);
  }
};

// Gathers rows of K, with kM of M (or N) from `m` on. Indices are read for several blocks of K at once, while the
// previous blocks are used, because multiplying one block takes less time than a read from memory.
template <int kM>
struct GatherK {
  using Pieces = KPieces<kM>;
  static constexpr int kPerLane = 2,
                       kBlocks = kPerLane * 32 / Pieces::kRowsPerWarp;  // blocks whose indices are read at once
  int row, rows, m;         // the group's first row in the pool; the group's rows; the tile's first m
  uint32_t now[kPerLane];   // first pieces of the rows that this lane looks up
  uint32_t next[kPerLane];  // the indices of those in the next blocks

  __device__ __forceinline__ void begin(const GatheredRows& from, int first_row, int all_rows, int first_m) {
    row = first_row;
    rows = all_rows;
    m = first_m;
    look_up(from, 0);
  }
  __device__ __forceinline__ void copy(uint8_t* to, const GatheredRows& from, int block) {
    static_assert(kBlocks == 4 && kPerLane == 2);
    const int thread = static_cast<int>(threadIdx.x);
    if (block % kBlocks == 0) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) now[i] = first_piece(from, next[i]);
      look_up(from, block + kBlocks);
    }
    const Piece piece(from, m + Pieces::piece(thread) * kPieceElements);
    const uint32_t base = shared_address(to), own = (block & 2) != 0 ? now[1] : now[0];
    const int lane = (block & 1) * Pieces::kRowsPerWarp;
#pragma unroll
    for (int i = 0; i < Pieces::kEach; ++i) {
      const uint32_t at = __shfl_sync(0xffffffffu, own, lane + Pieces::row_of_warp(thread, i));
      if (at != kNoRow) piece.copy(base + static_cast<uint32_t>(Pieces::place(thread, i)), at);
    }
  }

 private:
  // Reads the indices of kBlocks blocks from this one on: each lane reads a row of every second block.
  __device__ __forceinline__ void look_up(const GatheredRows& from, int block) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int first = (block + lane / Pieces::kRowsPerWarp) * kSubtile + thread / 32 * Pieces::kRowsPerWarp +
                      lane % Pieces::kRowsPerWarp;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int k = first + i * 2 * kSubtile;
      next[i] = k < rows ? static_cast<uint32_t>(from.index[row + k]) : kNoRow;
    }
  }
};

struct GatherNothing {
  __device__ __forceinline__ void begin(const GatheredRows&, int, int, int) {}
  __device__ __forceinline__ void copy(uint8_t*, const GatheredRows&, int) {}
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace witan::kernels::cuda
