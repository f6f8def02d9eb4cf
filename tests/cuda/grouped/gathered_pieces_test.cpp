#include "witan/kernels/grouped/cuda/gathered_pieces.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace witan::kernels::cuda {
namespace {

// Where the copy engine puts an element of an operand whose rows are `rows_are_lines ? lines : steps`: units of 64 rows
// of 128 bytes one after the other, and within them bits 4 to 6 of the place changed by bits 7 to 9.
int place_of(int line, int step, bool rows_are_lines) {
  const int row = rows_are_lines ? line % 64 : step, column = rows_are_lines ? step : line % 64;
  const int plain = line / 64 * 8192 + row * 128 + column * 2;
  return plain ^ (plain >> 7 & 7) << 4;
}

template <int kLines>
void expect_lines() {
  using Pieces = LinePieces<kLines>;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int line = Pieces::line(thread, i), piece = Pieces::piece(thread);
      EXPECT_TRUE(seen.emplace(line, piece).second);
      EXPECT_LT(line, kLines);
      EXPECT_EQ(Pieces::place(thread, i), place_of(line, piece * kPieceElements, true)) << line << ", " << piece;
    }
  EXPECT_EQ(seen.size(), size_t{kLines} * 8) << "128 bytes of every line";
}

template <int kLines>
void expect_steps() {
  using Pieces = StepPieces<kLines>;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int step = Pieces::step(thread, i), piece = Pieces::piece(thread);
      EXPECT_TRUE(seen.emplace(step, piece).second);
      EXPECT_LT(step, 64);
      EXPECT_EQ(step, thread / 32 * Pieces::kOfWarp + Pieces::of_warp(thread, i)) << "which a lane of its warp knows";
      EXPECT_LT(Pieces::of_warp(thread, i), Pieces::kOfWarp);
      EXPECT_EQ(Pieces::place(thread, i), place_of(piece * kPieceElements, step, false)) << step << ", " << piece;
    }
  EXPECT_EQ(seen.size(), size_t{kLines} / kPieceElements * 64);
}

TEST(GatheredPieces, AreAllPiecesOnceWhereTheCopyEnginePutsThem) {
  expect_lines<64>();
  expect_lines<128>();
  expect_steps<64>();
  expect_steps<128>();
  expect_steps<256>();
}

}  // namespace
}  // namespace witan::kernels::cuda
