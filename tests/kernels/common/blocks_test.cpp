#include "witan/kernels/common/blocks.h"

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

template <class T>
class Blocks : public ::testing::Test {};
using Types = ::testing::Types<float, bf16, double>;
TYPED_TEST_SUITE(Blocks, Types);

TYPED_TEST(Blocks, MatchTheirFormulas) {
  constexpr DType dtype = dtype_of<TypeParam>();
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const auto& [A, N, I] :
         {std::array<int64_t, 3>{1, 1, 1}, {3, 4, 5}, {7, 2, 0}, {0, 3, 2}, {1, 3, 40001}, {501, 3, 67}}) {
      const Tensor x = rank.normal({A, N, I}, dtype, "x"), small = rank.normal({A, I}, dtype, "small");
      const Tensor swapped = rank.poisoned({N, A, I}, dtype), back = rank.poisoned({A, N, I}, dtype);
      kernels::swap_blocks(rank.stream, swapped, x);
      kernels::swap_blocks(rank.stream, back, swapped);
      EXPECT_EQ(values(back), values(x));
      for (int64_t part = 0; part < N; ++part) {
        const Tensor taken = rank.poisoned({A, I}, dtype), placed = rank.poisoned({A, N, I}, dtype);
        kernels::take_part(rank.stream, taken, x, part);
        kernels::place_part(rank.stream, placed, small, part);
        for (int64_t a = 0; a < A; ++a)
          for (int64_t i = 0; i < I; ++i) {
            const float here = x.data<TypeParam>()[(a * N + part) * I + i];
            ASSERT_EQ(float(swapped.data<TypeParam>()[(part * A + a) * I + i]), here);
            ASSERT_EQ(float(taken.data<TypeParam>()[a * I + i]), here);
            for (int64_t n = 0; n < N; ++n)
              ASSERT_EQ(float(placed.data<TypeParam>()[(a * N + n) * I + i]),
                        n == part ? float(small.data<TypeParam>()[a * I + i]) : 0.0f);
          }
      }
    }
  }
}

TYPED_TEST(Blocks, ColumnsAreCopiedAndOthersStay) {
  constexpr DType dtype = dtype_of<TypeParam>();
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const auto& [A, M, N] : {std::array<int64_t, 3>{0, 2, 2}, {1, 1, 1}, {5, 7, 9}, {2001, 70, 33}})
      for (const int64_t count : {int64_t{0}, int64_t{1}, std::min(M, N)})
        for (const auto& [to, from] : {std::pair<int64_t, int64_t>{0, 0}, {N - count, M - count}}) {
          const Tensor x = rank.normal({A, M}, dtype, "x"), y = rank.normal({A, N}, dtype, "y");
          auto expected = values(y);
          const auto source = values(x);
          for (int64_t a = 0; a < A; ++a)
            for (int64_t i = 0; i < count; ++i)
              expected[static_cast<size_t>(a * N + to + i)] = source[static_cast<size_t>(a * M + from + i)];
          kernels::copy_columns(rank.stream, y, x, {to, from, count});
          ASSERT_EQ(values(y), expected) << A << " " << M << " " << N << " " << count;
        }
  }
}

TEST(ZeroLastRows, StartsAfterTheCountedOnes) {
  Rank rank;
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{0, 0}, {2, 1}, {0, 5}}) {
    const Tensor y = rank.normal({5, 3}, DType::f32, "y");
    auto expected = values(y);
    std::fill(expected.begin() + (first + second) * 3, expected.end(), 0.0);
    kernels::zero_last_rows(rank.stream, y, rank.tensor<int64_t>({2}, {first, second}));
    EXPECT_EQ(values(y), expected);
  }
}

TEST(BlockCosts, AreCountedOnMeta) {
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Tensor x = meta.empty({4, 3, 2}, DType::bf16);
  kernels::take_part(meta, meta.empty({4, 2}, DType::bf16), x, 2);
  kernels::swap_blocks(meta, meta.empty({3, 4, 2}, DType::bf16), x);
  EXPECT_EQ(meta.costs().at("other").at("take_part").bytes, 2 * 16.0);
  EXPECT_EQ(meta.costs().at("other").at("swap_blocks").bytes, 2 * 48.0);
}

}  // namespace
}  // namespace witan
