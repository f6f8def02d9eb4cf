#include "witan/kernels/attention/sequence_pieces.h"

#include <cstring>

#include "support/rank.h"

namespace witan {
namespace {

using kernels::PieceCopy;
using kernels::PieceLayout;
using kernels::PieceSize;
using testing::Rank;
using testing::values;

struct Case {
  int64_t B, chunk, heads, w;
  int ranks;
};
const std::vector<Case> kCases = {{1, 1, 2, 1, 2}, {3, 2, 4, 5, 2},  {2, 3, 3, 7, 3},   {1, 65, 4, 33, 4},
                                  {2, 2, 1, 3, 4}, {2, 3, 2, 8, 4},  {0, 2, 2, 4, 2},   {2, 0, 2, 4, 2},
                                  {1, 2, 2, 0, 2}, {1, 3, 8, 16, 8}, {2, 129, 4, 64, 2}};

// Compares a piece's layout with the place of each of its elements, found by coordinates.
TEST(SequencePieces, LayoutsLocateChunksOfHeads) {
  Rank rank;
  for (const auto& [B, C, P, w, n] : kCases) {
    const int64_t Q = std::max<int64_t>(P / n, 1);
    const Tensor part = rank.stream.empty({B, 2 * C, P, w}, DType::f32),
                 whole = rank.stream.empty({B, 2 * n * C, Q, w}, DType::f32);
    const PieceLayout by_heads = kernels::pieces_by_heads(part, n),
                      by_positions = kernels::pieces_by_positions(whole, n),
                      packed = kernels::pieces_of_message({B, C, Q * w}, 1000, 7);
    for (int r = 0; r < n; ++r)
      for (int64_t b = 0; b < B; ++b)
        for (int64_t s = 0; s < 2 * C; ++s) {
          const auto at = [&](const PieceLayout& in) {
            return in.begin(r) + b * in.sequence + (in.first_row(r, s >= C) + s % C) * in.row;
          };
          const int64_t position = s < C ? r * C + s : (2 * n - 1 - r) * C + s - C;
          EXPECT_EQ(at(by_heads), ((b * 2 * C + s) * P + r * P / n) * w);
          EXPECT_EQ(at(by_positions), (b * 2 * n * C + position) * Q * w);
          EXPECT_EQ(at(packed), r * 1000 + 7 + (b * 2 * C + s) * Q * w);
        }
  }
}

// Two sections of heads side by side: each one's pieces begin where its heads do among a token's channels.
TEST(SequencePieces, LayoutsLocateHeadsBesideOthers) {
  Rank rank;
  constexpr int64_t kB = 2, kChunk = 3;
  for (const auto& [n, P, G] : {std::array<int64_t, 3>{2, 4, 2}, {4, 4, 2}, {3, 6, 1}}) {
    const kernels::HeadChannels first{0, P, 5}, second{P * 5, G, 3};
    const Tensor x = rank.stream.empty({kB, 2 * kChunk, P * 5 + G * 3}, DType::f32);
    for (const kernels::HeadChannels& of : {first, second}) {
      const PieceLayout by_heads = kernels::pieces_by_heads(x, of, n);
      for (int64_t r = 0; r < n; ++r)
        EXPECT_EQ(by_heads.begin(r) + by_heads.sequence + (by_heads.first_row(r, true) + 1) * by_heads.row,
                  ((2 * kChunk + kChunk + 1) * x.size(2)) + of.first + r * of.heads / n * of.width);
    }
    const Tensor whole = rank.stream.empty({kB, 2 * n * kChunk, 20}, DType::f32);
    const PieceLayout by_positions = kernels::pieces_by_positions(whole, {7, 1, 3}, n);
    for (int64_t r = 0; r < n; ++r)
      EXPECT_EQ(by_positions.begin(r) + (by_positions.first_row(r, false) + 1) * by_positions.row,
                (r * kChunk + 1) * 20 + 7);
  }
}

// Moves tensors of heads into a message, and from there into tensors of positions: every element exactly once.
template <class T>
class SequencePiecesOf : public ::testing::Test {};
using Types = ::testing::Types<float, bf16, double>;
TYPED_TEST_SUITE(SequencePiecesOf, Types);

TYPED_TEST(SequencePiecesOf, ArriveInTheirPlaces) {
  constexpr DType dtype = dtype_of<TypeParam>();
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const auto& [B, C, P, w, n] : kCases) {
      const int64_t Q = std::max<int64_t>(P / n, 1);
      const Tensor x = rank.normal({B, 2 * C, P, w}, dtype, "x"), z = rank.normal({B, 2 * C, P, 2 * w}, dtype, "z");
      const PieceSize of_x{B, C, Q * w}, of_z{B, C, Q * 2 * w};
      const int64_t elements = of_x.elements() + of_z.elements();
      const Tensor message = rank.poisoned({n * elements}, dtype);
      const PieceLayout x_in = kernels::pieces_of_message(of_x, elements, 0),
                        z_in = kernels::pieces_of_message(of_z, elements, of_x.elements());
      kernels::copy_pieces(rank.stream,
                           {{message, x, x_in, kernels::pieces_by_heads(x, n), of_x},
                            {message, z, z_in, kernels::pieces_by_heads(z, n), of_z}},
                           n);
      const Tensor y = rank.poisoned({B, 2 * n * C, Q, 2 * w}, dtype);
      kernels::copy_pieces(rank.stream, {{y, message, kernels::pieces_by_positions(y, n), z_in, of_z}}, n);
      for (int r = 0; r < n; ++r)
        for (int64_t b = 0; b < B; ++b)
          for (int64_t s = 0; s < 2 * C; ++s)
            for (int64_t i = 0; i < Q * 2 * w; ++i) {
              const int64_t position = s < C ? r * C + s : (2 * n - 1 - r) * C + s - C;
              const int64_t head = r * P / n;
              ASSERT_EQ(double(y.data<TypeParam>()[(b * 2 * n * C + position) * Q * 2 * w + i]),
                        double(z.data<TypeParam>()[((b * 2 * C + s) * P + head) * 2 * w + i]));
              if (i < Q * w) {
                ASSERT_EQ(double(message.data<TypeParam>()[r * elements + (b * 2 * C + s) * Q * w + i]),
                          double(x.data<TypeParam>()[((b * 2 * C + s) * P + head) * w + i]));
              }
            }
      for (const double value : values(message)) ASSERT_FALSE(std::isnan(value));
    }
  }
}

// Heads are columns of wider matrices, whose other columns stay.
TYPED_TEST(SequencePiecesOf, SharesAreSummedInOrder) {
  constexpr DType dtype = dtype_of<TypeParam>();
  using A = Accumulator<TypeParam>;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const auto& [R, P, N, w] : {std::array<int64_t, 4>{1, 1, 1, 1},
                                     {7, 3, 2, 5},
                                     {0, 2, 3, 2},
                                     {5, 1, 3, 0},
                                     {300, 2, 4, 128},
                                     {33, 1, 8, 67}}) {
      const Tensor from = rank.normal({R, P * N * w + 3}, dtype, "x"), to = rank.poisoned({R, P * w + 2}, dtype);
      kernels::sum_shares(rank.stream, to.narrow(1, 1, P * w), from.narrow(1, 2, P * N * w), w);
      for (int64_t r = 0; r < R; ++r) {
        EXPECT_TRUE(std::isnan(double(to.data<TypeParam>()[r * to.size(1)])));
        EXPECT_TRUE(std::isnan(double(to.data<TypeParam>()[(r + 1) * to.size(1) - 1])));
        for (int64_t p = 0; p < P; ++p)
          for (int64_t d = 0; d < w; ++d) {
            A sum = 0;
            for (int64_t i = 0; i < N; ++i)
              sum += A(from.data<TypeParam>()[r * from.size(1) + 2 + (p * N + i) * w + d]);
            ASSERT_EQ(double(to.data<TypeParam>()[r * to.size(1) + 1 + p * w + d]), double(TypeParam(sum)))
                << R << " " << P << " " << N << " " << w;
          }
      }
    }
  }
}

TEST(SequencePieces, CostsCountTheBytesMoved) {
  Rank rank;
  const Tensor x = rank.normal({2, 4, 4, 8}, DType::bf16, "x"), y = rank.stream.empty({2, 8, 2, 8}, DType::bf16);
  kernels::copy_pieces(rank.stream,
                       {{y, x, kernels::pieces_by_positions(y, 2), kernels::pieces_by_heads(x, 2), {2, 2, 16}}}, 2);
  EXPECT_EQ(rank.stream.costs().at("other").at("copy_pieces").bytes, 2 * x.bytes());
}

}  // namespace
}  // namespace witan
