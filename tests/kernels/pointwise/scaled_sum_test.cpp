#include "support/rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

Tensor partials_of(Rank& rank, int64_t elements) {
  return rank.stream.empty({(elements + kernels::kSumBlock - 1) / kernels::kSumBlock}, DType::f64);
}

TEST(ScaledSum, AgreesWithTheFormulaAndItsSlopes) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 2e-5}, std::pair{DType::bf16, 2e-2}})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, kernels::kSumBlock + 5}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      Rank rank;
      const Tensor a = rank.normal({n}, dtype, "a"), b = rank.normal({n}, dtype, "b"),
                   dy = rank.normal({n}, dtype, "dy"), wa = rank.normal({1}, dtype, "wa"),
                   wb = rank.normal({1}, dtype, "wb");
      const auto in = values(a), other = values(b), slope = values(dy);
      const double p = values(wa)[0], q = values(wb)[0];
      for (const bool scaled : {false, true}) {
        const Tensor y = rank.poisoned({n}, dtype), alone = rank.poisoned({n}, dtype);
        kernels::scaled_sum(rank.stream, y, a, scaled ? wa : Tensor(), b, wb);
        kernels::scaled_sum(rank.stream, alone, a, wa, {}, {});
        std::vector<double> sum, first;
        for (size_t i = 0; i < in.size(); ++i) {
          sum.push_back((scaled ? p : 1) * in[i] + q * other[i]);
          first.push_back(p * in[i]);
        }
        EXPECT_TRUE(close(values(y), sum, tolerance, tolerance));
        EXPECT_TRUE(close(values(alone), first, tolerance, tolerance));
      }
      double dot = 0, size = 1;
      std::vector<double> back;
      for (size_t i = 0; i < in.size(); ++i) {
        dot += slope[i] * in[i];
        size += std::abs(slope[i] * in[i]);
        back.push_back(p * slope[i]);
      }
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const Tensor dx = rank.poisoned({n}, dtype), dw = rank.tensor<float>({1}, {3.0f});
        kernels::scaled_sum_backward(rank.stream, dx, dw, write, partials_of(rank, n), dy, a, wa);
        EXPECT_TRUE(close(values(dx), back, tolerance, tolerance));
        EXPECT_NEAR(values(dw)[0], dot + (write == Write::accumulate ? 3 : 0), 1e-5 * size);
      }
    }
}

TEST(ScaledSum, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    const Tensor x = rank.normal({40000}, DType::f32, "x"), dy = rank.normal({40000}, DType::f32, "dy"),
                 w = rank.normal({1}, DType::f32, "w"), dx = rank.poisoned({40000}, DType::f32),
                 dw = rank.poisoned({1}, DType::f32);
    kernels::scaled_sum_backward(rank.stream, dx, dw, Write::overwrite, partials_of(rank, 40000), dy, x, w);
    auto all = values(dx);
    all.push_back(values(dw)[0]);
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
