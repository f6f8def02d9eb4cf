#include "witan/kernels/pointwise/elementwise.h"

#include "support/rank.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16};
const Shape kShapes[] = {{0, 3}, {1}, {3, 37}, {5, 20011}};

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 8e-3;
}

TEST(Add, AddsElementsAlsoInPlace) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor a = rank.normal(shape, dtype, "a"), b = rank.normal(shape, dtype, "b"),
                   y = rank.poisoned(shape, dtype);
      kernels::add(rank.stream, y, a, b);
      auto expected = values(a);
      const auto other = values(b);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += other[i];
      EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
      kernels::add(rank.stream, a, a, b);
      EXPECT_EQ(values(a), values(y));
    }
}

TEST(Add, AddsCountsExactly) {
  Rank rank;
  const Tensor a = rank.stream.empty({3}, DType::i64), y = rank.stream.empty({3}, DType::i64);
  std::ranges::copy(std::vector<int64_t>{int64_t{1} << 60, -5, 7}, a.data<int64_t>());
  kernels::add(rank.stream, y, a, a);
  kernels::add(rank.stream, y, y, a);
  const auto sums = y.span<int64_t>();
  EXPECT_EQ(std::vector(sums.begin(), sums.end()), (std::vector<int64_t>{3 * (int64_t{1} << 60), -15, 21}));
}

TEST(Product, MultipliesElementsAlsoInPlace) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor a = rank.normal(shape, dtype, "a"), b = rank.normal(shape, dtype, "b"),
                   y = rank.poisoned(shape, dtype);
      kernels::product(rank.stream, y, a, b);
      auto expected = values(a);
      const auto other = values(b);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= other[i];
      EXPECT_TRUE(close(values(y), expected, tolerance(dtype), tolerance(dtype)));
      kernels::product(rank.stream, a, a, b);
      EXPECT_EQ(values(a), values(y));
    }
}

TEST(Scale, OverwritesOrAddsAcrossDTypes) {
  Rank rank;
  for (const DType from : kDTypes)
    for (const DType to : kDTypes)
      for (const Shape& shape : kShapes) {
        const Tensor x = rank.normal(shape, from, "x"), y = rank.poisoned(shape, to);
        const double rtol = std::max(tolerance(from == DType::bf16 ? DType::f32 : from), tolerance(to));
        kernels::scale(rank.stream, y, Write::overwrite, x, -1.5);
        auto expected = values(x);
        for (double& value : expected) value *= -1.5;
        EXPECT_TRUE(close(values(y), expected, rtol, rtol));
        kernels::scale(rank.stream, y, Write::accumulate, x, -1.5);
        for (double& value : expected) value *= 2;
        EXPECT_TRUE(close(values(y), expected, 2 * rtol, 2 * rtol));
      }
}

TEST(Accumulate, OverwritesOrAddsAcrossDTypes) {
  Rank rank;
  for (const DType from : kDTypes)
    for (const DType to : kDTypes)
      for (const Shape& shape : kShapes) {
        const Tensor x = rank.normal(shape, from, "x"), z = rank.normal(shape, from, "z"), y = rank.poisoned(shape, to);
        kernels::accumulate(rank.stream, y, Write::overwrite, x);
        EXPECT_TRUE(close(y, x, 0, tolerance(to)));
        auto expected = values(y);
        kernels::accumulate(rank.stream, y, Write::accumulate, z);
        const auto more = values(z);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += more[i];
        EXPECT_TRUE(close(values(y), expected, tolerance(to), tolerance(to)));
      }
}

TEST(Fill, WritesEveryElement) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor y = rank.poisoned(shape, dtype);
      kernels::fill(rank.stream, y, -1.5);
      EXPECT_EQ(values(y), std::vector<double>(static_cast<size_t>(shape.elements()), -1.5));
    }
}

TEST(Cast, ConvertsBothWays) {
  Rank rank;
  for (const DType from : kDTypes)
    for (const DType to : kDTypes) {
      const Tensor x = rank.normal({3, 11}, from, "x"), y = rank.poisoned({3, 11}, to),
                   back = rank.poisoned({3, 11}, from);
      kernels::cast(rank.stream, y, x);
      EXPECT_TRUE(close(y, x, 0, tolerance(to)));
      kernels::cast(rank.stream, back, y);
      if (size_of(to) >= size_of(from)) {
        EXPECT_EQ(values(back), values(x)) << from << " to " << to;
      }
    }
}

TEST(Cast, RoundsToNearestEven) {
  Rank rank;
  const Tensor y = rank.poisoned({3}, DType::bf16);
  kernels::cast(rank.stream, y, rank.tensor<float>({3}, {1 + 1.0f / 256, 1 + 3.0f / 256, 1 + 1.001f / 256}));
  EXPECT_EQ(values(y), (std::vector<double>{1, 1 + 2.0 / 128, 1 + 1.0 / 128}));
}

Tensor sum_of(Rank& rank, const Tensor& x) {
  const Tensor y = rank.poisoned({1}, accumulator(x.dtype()));
  const int64_t blocks = (x.elements() + kernels::kSumBlock - 1) / kernels::kSumBlock;
  kernels::sum(rank.stream, y, rank.poisoned({blocks}, DType::f64), x);
  return y;
}

TEST(Sum, AddsUpEverything) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor x = rank.normal(shape, dtype, "x");
      double expected = 0;
      for (const double value : values(x)) expected += value;
      EXPECT_NEAR(values(sum_of(rank, x))[0], expected, dtype == DType::f64 ? 1e-10 : 1e-3) << dtype << ' ' << shape;
    }
}

TEST(Sum, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    return values(sum_of(rank, rank.normal({100003}, DType::f32, "x")));
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(Broadcast, RepeatsAScalar) {
  Rank rank;
  for (const DType dtype : kDTypes) {
    const Tensor y = rank.poisoned({2, 3}, dtype);
    kernels::broadcast(rank.stream, y, rank.tensor<float>({1}, {2.5f}));
    EXPECT_EQ(values(y), std::vector<double>(6, 2.5));
  }
}

}  // namespace
}  // namespace witan
