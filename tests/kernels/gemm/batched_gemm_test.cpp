#include "support/rank.h"
#include "witan/base/error.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::close;
using testing::Rank;
using testing::values;

struct Sizes {
  int64_t n, M, N, K;
};

// Computed in float64, element by element.
std::vector<double> expected(const Sizes& s, const kernels::BatchedProduct& p) {
  const auto a = values(p.a), b = values(p.b), c = p.c.defined() ? values(p.c) : std::vector<double>();
  std::vector<double> d;
  const auto at = [](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t m = 0; m < s.M; ++m)
      for (int64_t n = 0; n < s.N; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < s.K; ++k)
          sum += at(a, i * s.M * s.K + (p.transpose_a == Transpose::yes ? k * s.M + m : m * s.K + k)) *
                 at(b, i * s.N * s.K + (p.transpose_b == Transpose::yes ? n * s.K + k : k * s.N + n));
        d.push_back(p.alpha * sum + (c.empty() ? 0 : p.beta * at(c, (i * s.M + m) * s.N + n)));
      }
  return d;
}

kernels::BatchedProduct product(Rank& rank, const Sizes& s, DType dtype, bool ta, bool tb) {
  return {.a = rank.normal(ta ? Shape{s.n, s.K, s.M} : Shape{s.n, s.M, s.K}, dtype, "a"),
          .transpose_a = ta ? Transpose::yes : Transpose::no,
          .b = rank.normal(tb ? Shape{s.n, s.N, s.K} : Shape{s.n, s.K, s.N}, dtype, "b"),
          .transpose_b = tb ? Transpose::yes : Transpose::no};
}

TEST(BatchedGemm, IsTheProductOfEachMatrix) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 1e-4}, {DType::bf16, 0.1}})
    for (const Sizes& s : {Sizes{1, 1, 1, 1}, {3, 5, 7, 9}, {2, 33, 17, 40}, {4, 16, 16, 64}})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          SCOPED_TRACE(cat(dtype, " ", s.n, " ", s.M, " ", s.N, " ", s.K, " ", ta, tb));
          Rank rank(2);
          kernels::BatchedProduct p = product(rank, s, dtype, ta, tb);
          const Tensor d = rank.poisoned({s.n, s.M, s.N}, dtype);
          kernels::batched_gemm(rank.stream, d, p);
          EXPECT_TRUE(close(values(d), expected(s, p), tolerance, tolerance));
          p.alpha = -0.5;
          kernels::batched_gemm(rank.stream, d, p);
          EXPECT_TRUE(close(values(d), expected(s, p), tolerance, tolerance));
          p.c = rank.normal({s.n, s.M, s.N}, dtype, "c");
          p.beta = 2;
          kernels::batched_gemm(rank.stream, d, p);
          EXPECT_TRUE(close(values(d), expected(s, p), tolerance, tolerance));
        }
}

// Heads of attention: a matrix is a head's channels of all tokens.
TEST(BatchedGemm, TakesMatricesWhoseRowsAlternate) {
  const Sizes s{3, 5, 7, 9};
  for (const bool tb : {false, true}) {
    Rank rank(2);
    kernels::BatchedProduct p = product(rank, s, DType::f64, false, tb);
    const Tensor whole = rank.poisoned({s.n, s.M, s.N}, DType::f64);
    kernels::batched_gemm(rank.stream, whole, p);
    const Tensor a = rank.stream.empty({s.M, s.n, s.K + 2}, DType::f64), d = rank.poisoned({s.M, s.n, s.N}, DType::f64);
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t m = 0; m < s.M; ++m)
        std::copy_n(p.a.data<double>() + (i * s.M + m) * s.K, s.K, a.data<double>() + (m * s.n + i) * (s.K + 2));
    p.a = a.transpose(0, 1).narrow(2, 0, s.K);
    kernels::batched_gemm(rank.stream, d.transpose(0, 1), p);
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t m = 0; m < s.M; ++m)
        EXPECT_EQ(values(d.narrow(0, m, 1).narrow(1, i, 1)), values(whole.narrow(0, i, 1).narrow(1, m, 1)));
  }
}

TEST(BatchedGemm, HasTheSameBitsInAnyBatchOnAnyNumberOfThreads) {
  const Sizes s{5, 40, 24, 100};
  Rank one(1), three(3);
  const auto run = [&](Rank& rank) {
    const Tensor d = rank.poisoned({s.n, s.M, s.N}, DType::f32);
    kernels::batched_gemm(rank.stream, d, product(rank, s, DType::f32, false, false));
    return values(d);
  };
  const auto all = run(one);
  EXPECT_EQ(all, run(three));
  const kernels::BatchedProduct p = product(one, s, DType::f32, false, false);
  const Tensor d = one.poisoned({1, s.M, s.N}, DType::f32);
  kernels::BatchedProduct third = p;
  third.a = p.a.narrow(0, 2, 1);
  third.b = p.b.narrow(0, 2, 1);
  kernels::batched_gemm(one.stream, d, third);
  EXPECT_EQ(values(d), std::vector<double>(all.begin() + 2 * s.M * s.N, all.begin() + 3 * s.M * s.N));
}

// Half of the product is computed, and the rest is copied; sizes of one strip of rows and of several.
TEST(BatchedGemm, SymmetricProductsAreExactlySymmetric) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-11}, {DType::f32, 1e-3}})
    for (const int64_t m : {1, 37, 128, 129, 300})
      for (const bool transposed : {false, true}) {
        SCOPED_TRACE(cat(dtype, " ", m, " ", transposed));
        Rank one(1), three(3);
        const auto run = [&](Rank& rank, bool symmetric) {
          const Tensor x = rank.normal(transposed ? Shape{2, 45, m} : Shape{2, m, 45}, dtype, "x");
          const Tensor d = rank.poisoned({2, m, m}, dtype);
          const kernels::BatchedProduct p{.a = x,
                                          .transpose_a = transposed ? Transpose::yes : Transpose::no,
                                          .b = x,
                                          .transpose_b = transposed ? Transpose::no : Transpose::yes,
                                          .alpha = 0.5,
                                          .identity = 3,
                                          .symmetric = symmetric};
          kernels::batched_gemm(rank.stream, d, p);
          std::vector<double> all = expected({2, m, m, 45}, p);
          for (size_t i = 0; i < all.size(); ++i)
            if (i % static_cast<size_t>(m * m) % static_cast<size_t>(m + 1) == 0) all[i] += 3;
          EXPECT_TRUE(close(values(d), all, tolerance, tolerance));
          return values(d);
        };
        const auto half = run(one, true);
        EXPECT_EQ(half, run(three, true));
        EXPECT_TRUE(close(half, run(one, false), tolerance, tolerance));
        for (int64_t r = 0; r < m; ++r)
          for (int64_t c = 0; c < r / 128 * 128; c += 7)
            EXPECT_EQ(half[static_cast<size_t>(r * m + c)], half[static_cast<size_t>(c * m + r)]);
      }
}

TEST(BatchedGemm, CostCountsHalfOfASymmetricProduct) {
  EXPECT_EQ(kernels::symmetric_share(100), 1);
  EXPECT_EQ(kernels::symmetric_share(512), 0.625);
}

}  // namespace
}  // namespace witan
