#include "witan/kernels/batched_gemm.h"

#include "support/rank.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::close;
using testing::Rank;
using testing::values;

struct Sizes {
  int64_t n, M, N, K;
};

// In float64, element by element.
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

TEST(BatchedGemm, AMatrixHasTheSameBitsInAnyBatchOnAnyNumberOfThreads) {
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

}  // namespace
}  // namespace witan
