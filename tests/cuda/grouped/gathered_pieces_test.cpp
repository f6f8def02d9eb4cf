#include "witan/kernels/grouped/cuda/gathered_pieces.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace witan::kernels::cuda {
namespace {

// The place at which the copy engine stores an element of an operand whose rows are M or K: boxes of 64 rows of 128
// bytes follow each other, and within a box bits 4 to 6 of the place are XORed with bits 7 to 9.
int place_of(int m, int k, bool rows_are_m) {
  const int row = rows_are_m ? m % 64 : k, column = rows_are_m ? k : m % 64;
  const int plain = m / 64 * 8192 + row * 128 + column * 2;
  return plain ^ (plain >> 7 & 7) << 4;
}

template <int kM>
void expect_m() {
  using Pieces = MPieces<kM>;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int m = Pieces::m(thread, i), piece = Pieces::piece(thread);
      EXPECT_TRUE(seen.emplace(m, piece).second);
      EXPECT_LT(m, kM);
      EXPECT_EQ(Pieces::place(thread, i), place_of(m, piece * kPieceElements, true)) << m << ", " << piece;
    }
  EXPECT_EQ(seen.size(), size_t{kM} * 8) << "128 bytes of every m";
}

template <int kM>
void expect_k() {
  using Pieces = KPieces<kM>;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread)
    for (int i = 0; i < Pieces::kEach; ++i) {
      const int k = Pieces::k(thread, i), piece = Pieces::piece(thread);
      EXPECT_TRUE(seen.emplace(k, piece).second);
      EXPECT_LT(k, 64);
      EXPECT_EQ(k, thread / 32 * Pieces::kRowsPerWarp + Pieces::row_of_warp(thread, i))
          << "must be looked up by a lane of the same warp";
      EXPECT_LT(Pieces::row_of_warp(thread, i), Pieces::kRowsPerWarp);
      EXPECT_EQ(Pieces::place(thread, i), place_of(piece * kPieceElements, k, false)) << k << ", " << piece;
    }
  EXPECT_EQ(seen.size(), size_t{kM} / kPieceElements * 64);
}

TEST(GatheredPieces, CoverEveryPieceOnceAtTheCopyEnginesPlaces) {
  expect_m<64>();
  expect_m<128>();
  expect_k<64>();
  expect_k<128>();
  expect_k<256>();
}

}  // namespace
}  // namespace witan::kernels::cuda
