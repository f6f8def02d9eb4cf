#include "witan/kernels/pointwise/dropout.h"

#include "support/dropout.h"

namespace witan {
namespace {

using testing::close;
using testing::dropout_of;
using testing::factor_of;
using testing::Rank;
using testing::values;

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16};

Tensor ones(Rank& rank, const Shape& shape) {
  const Tensor x = rank.stream.empty(shape, DType::f32);
  std::ranges::fill(x.span<float>(), 1.0f);
  return x;
}

std::vector<double> mask(Rank& rank, const Shape& shape, const kernels::Dropout& how) {
  const Tensor y = rank.poisoned(shape, DType::f32);
  kernels::dropout(rank.stream, y, ones(rank, shape), how);
  return values(y);
}

TEST(Dropout, FollowsItsDefinition) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : {Shape{0, 4}, Shape{1}, Shape{3, 37}, Shape{128}, Shape{5, 20011}})
      for (const double p : {0.1, 0.5, 0.9}) {
        const auto how = dropout_of(rank, p);
        const Tensor x = rank.normal(shape, dtype, "x"), y = rank.poisoned(shape, dtype);
        kernels::dropout(rank.stream, y, x, how);
        auto expected = values(x);
        for (size_t e = 0; e < expected.size(); ++e) expected[e] *= factor_of(how, static_cast<int64_t>(e));
        const double rounding = dtype == DType::f64 ? 1e-15 : dtype == DType::f32 ? 1e-6 : 4e-3;
        EXPECT_TRUE(close(values(y), expected, 0, rounding)) << dtype << " " << shape << " " << p;
        kernels::dropout(rank.stream, x, x, how);
        EXPECT_EQ(values(x), values(y)) << "in place";
      }
}

// [2, 20, 12], of which a part has tokens 4 … 6 and 13 … 17 of every row: two runs of elements.
TEST(Dropout, PartsDropTheSameElementsAsTheWhole) {
  Rank rank;
  const int64_t B = 2, S = 20, D = 12, T = 8;
  auto how = dropout_of(rank, 0.5);
  const auto whole = mask(rank, {B, S, D}, how);
  const kernels::PositionRuns tokens{4, 3, 13};
  how.part = {T * D, S * D, tokens.of_elements(D)};
  const auto part = mask(rank, {B, T, D}, how);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t d = 0; d < D; ++d)
        EXPECT_EQ(part[static_cast<size_t>((b * T + t) * D + d)],
                  whole[static_cast<size_t>((b * S + tokens.at(t)) * D + d)])
            << b << " " << t << " " << d;
  how.part = {5 * D, S * D, tokens.from(2).of_elements(D)};
  const auto fewer = mask(rank, {B, 5, D}, how);
  EXPECT_EQ(fewer[0], whole[static_cast<size_t>(6 * D)]);
  EXPECT_EQ(fewer[static_cast<size_t>(D)], whole[static_cast<size_t>(13 * D)]);
}

// The share of dropped elements, and of neighbours both dropped, is within five standard deviations over a million
// elements.
TEST(Dropout, DropsItsShareIndependentlyAndKeepsTheMean) {
  Rank rank;
  const int64_t n = 1 << 20;
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const auto y = mask(rank, {n}, dropout_of(rank, p));
    double dropped = 0, sum = 0, pairs = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      dropped += y[i] == 0;
      sum += y[i];
      pairs += i > 0 && y[i] == 0 && y[i - 1] == 0;
    }
    const double count = static_cast<double>(n), deviation = std::sqrt(p * (1 - p) / count);
    EXPECT_NEAR(dropped / count, p, 5 * deviation);
    EXPECT_NEAR(sum / count, 1, 5 * deviation / (1 - p) + 1e-6);
    EXPECT_NEAR(pairs / count, p * p, 5 * p * std::sqrt((1 - p) * (1 + 3 * p) / count) + 1e-6);
  }
}

TEST(Dropout, EveryCoordinateChangesTheMask) {
  Rank rank;
  const Shape shape{4000};
  const auto base = dropout_of(rank, 0.5);
  const auto one = mask(rank, shape, base);
  EXPECT_EQ(one, mask(rank, shape, dropout_of(rank, 0.5)));
  auto seed = base, site = base;
  seed.seed = 43;
  site.site = Philox::stream_of("there");
  for (const auto& [what, how] : {std::pair{"seed", seed},
                                  {"site", site},
                                  {"iteration", dropout_of(rank, 0.5, 8)},
                                  {"micro-batch", dropout_of(rank, 0.5, 7, 4)},
                                  {"iteration for micro-batch", dropout_of(rank, 0.5, 3, 7)}}) {
    const auto other = mask(rank, shape, how);
    double equal = 0;
    for (size_t i = 0; i < one.size(); ++i) equal += one[i] == other[i];
    EXPECT_NEAR(equal / 4000, 0.5, 5 * std::sqrt(0.25 / 4000)) << what;
  }
}

TEST(Dropout, TinyProbabilitiesDropAlmostNothing) {
  Rank rank;
  const auto y = mask(rank, {1000}, dropout_of(rank, 1e-12));
  EXPECT_EQ(y, std::vector<double>(1000, 1.0));
}

TEST(Dropout, ProbabilitiesNearOneKeepAlmostNothing) {
  Rank rank;
  const auto y = mask(rank, {1000}, dropout_of(rank, 1 - 1e-12));
  EXPECT_EQ(y, std::vector<double>(1000, 0.0));
}

TEST(Dropout, HasTheSameBitsOnAnyNumberOfThreads) {
  Rank one(1), three(3);
  for (const Shape& shape : {Shape{7, 33333}, Shape{3, 5}})
    EXPECT_EQ(mask(one, shape, dropout_of(one, 0.3)), mask(three, shape, dropout_of(three, 0.3)));
}

TEST(Dropout, CostCountsOneReadAndOneWrite) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Tensor x = meta.empty({3, 5}, DType::f32);
  kernels::dropout(meta, x, x, {.p = 0.5});
  EXPECT_EQ(meta.flops(), 15);
  EXPECT_EQ(meta.costs().at("other").at("dropout").bytes, 2 * 15 * 4.0);
}

}  // namespace
}  // namespace witan
