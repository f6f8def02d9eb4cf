// Which of the 128 threads of a producers' warpgroup copies which pieces of gathered rows, and to which place of an
// operand in a stage. Operands lie in units of 64 by 64 elements of 16 bits (wgmma.cuh): rows of 128 bytes, in which
// the 8 pieces of 16 bytes change places as the copy engine's 128-byte swizzle has it.
#pragma once

namespace witan::kernels::cuda {

inline constexpr int kPieceBytes = 16, kPieceElements = 8;

// Of a unit's row, in bytes from the unit's beginning; rows of the next unit continue from there.
constexpr int swizzled_place(int row, int piece) {
  return row * 128 + ((piece ^ row % 8) * kPieceBytes);
}

// Gathered rows are the operand's lines, of which a stage has 64 steps, 8 pieces: neighbouring threads copy a row.
template <int kLines>
struct LinePieces {
  static constexpr int kApart = 16, kEach = kLines / kApart;  // lines from copy to copy of a thread; its copies
  static_assert(kLines % 64 == 0);

  static constexpr int line(int thread, int i) { return thread / 8 + kApart * i; }
  static constexpr int piece(int thread) { return thread % 8; }
  // A multiple of 8 lines on, pieces have changed places alike.
  static constexpr int place(int thread, int i) {
    static_assert(kApart % 8 == 0);
    return swizzled_place(line(thread, 0), piece(thread)) + i * kApart * 128;
  }
};

// Gathered rows are the sum's steps, of which a stage has 64, each warp's 16: a warp copies one row, or as many as have
// 32 pieces.
template <int kLines>
struct StepPieces {
  static constexpr int kOfWarp = 16, kOfRow = kLines / kPieceElements;  // steps; pieces
  static constexpr int kAtOnce = 32 / kOfRow, kEach = kOfWarp / kAtOnce;
  static_assert(kLines == 64 || kLines == 128 || kLines == 256);

  static constexpr int of_warp(int thread, int i) { return i * kAtOnce + thread % 32 / kOfRow; }
  static constexpr int step(int thread, int i) { return thread / 32 * kOfWarp + of_warp(thread, i); }
  static constexpr int piece(int thread) { return thread % kOfRow; }
  static constexpr int place(int thread, int i) {
    constexpr int kUnitBytes = 64 * 128, kOfUnit = 8;
    return piece(thread) / kOfUnit * kUnitBytes + swizzled_place(step(thread, i), piece(thread) % kOfUnit);
  }
};

}  // namespace witan::kernels::cuda
