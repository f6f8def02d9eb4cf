// The pieces of gathered rows that each of the 128 threads of the producers' warpgroup copies, and their places in the
// operand's stage. Operands lie in subtiles of 64 by 64 elements of 16 bits (wgmma.cuh): rows of 128 bytes, whose 8
// pieces of 16 bytes are permuted as in the copy engine's 128-byte swizzle.
#pragma once

namespace witan::kernels::cuda {

inline constexpr int kPieceBytes = 16, kPieceElements = 8;

// The place of a piece of a row, in bytes from the beginning of the subtile; the next subtile's rows continue from
// there.
constexpr int swizzled_place(int row, int piece) {
  return row * 128 + ((piece ^ row % 8) * kPieceBytes);
}

// For gathered rows of M (or N), of which a stage has 64 of K, 8 pieces: neighbouring threads copy a row.
template <int kM>
struct MPieces {
  static constexpr int kApart = 16, kEach = kM / kApart;  // rows from copy to copy of a thread; copies of a thread
  static_assert(kM % 64 == 0);

  static constexpr int m(int thread, int i) { return thread / 8 + kApart * i; }
  static constexpr int piece(int thread) { return thread % 8; }
  // The swizzle repeats every 8 rows.
  static constexpr int place(int thread, int i) {
    static_assert(kApart % 8 == 0);
    return swizzled_place(m(thread, 0), piece(thread)) + i * kApart * 128;
  }
};

// For gathered rows of K, of which a stage has 64 and each warp 16: a warp copies one row at a time, or as many as have
// 32 pieces.
template <int kM>
struct KPieces {
  static constexpr int kRowsPerWarp = 16, kPiecesPerRow = kM / kPieceElements;  // rows of a warp; pieces of a row
  static constexpr int kAtOnce = 32 / kPiecesPerRow, kEach = kRowsPerWarp / kAtOnce;
  static_assert(kM == 64 || kM == 128 || kM == 256);

  static constexpr int row_of_warp(int thread, int i) { return i * kAtOnce + thread % 32 / kPiecesPerRow; }
  static constexpr int k(int thread, int i) { return thread / 32 * kRowsPerWarp + row_of_warp(thread, i); }
  static constexpr int piece(int thread) { return thread % kPiecesPerRow; }
  static constexpr int place(int thread, int i) {
    constexpr int kBytes = 64 * 128, kPerRow = 8;
    return piece(thread) / kPerRow * kBytes + swizzled_place(k(thread, i), piece(thread) % kPerRow);
  }
};

}  // namespace witan::kernels::cuda
