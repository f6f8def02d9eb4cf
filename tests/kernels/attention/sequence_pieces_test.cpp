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

TYPED_TEST(SequencePiecesOf, SharesAreSummedInOrder) {
  constexpr DType dtype = dtype_of<TypeParam>();
  using A = Accumulator<TypeParam>;
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const auto& [R, N, w] :
         {std::array<int64_t, 3>{1, 1, 1}, {7, 2, 5}, {0, 3, 2}, {5, 3, 0}, {300, 4, 128}, {33, 8, 67}}) {
      const Tensor x = rank.normal({R, N, w}, dtype, "x"), y = rank.poisoned({R, w}, dtype);
      kernels::sum_shares(rank.stream, y, x);
      for (int64_t r = 0; r < R; ++r)
        for (int64_t d = 0; d < w; ++d) {
          A sum = 0;
          for (int64_t i = 0; i < N; ++i) sum += A(x.data<TypeParam>()[(r * N + i) * w + d]);
          ASSERT_EQ(double(y.data<TypeParam>()[r * w + d]), double(TypeParam(sum))) << R << " " << N << " " << w;
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
