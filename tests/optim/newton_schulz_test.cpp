#include "witan/optim/newton_schulz.h"

#include <cmath>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

// Diagonal matrices [1, rows, columns] stay diagonal, and their entries follow the polynomials.
std::vector<double> singular_values(const std::vector<double>& diagonal, int64_t rows, int64_t columns,
                                    const NewtonSchulz& iteration) {
  Rank rank;
  const Tensor x = rank.stream.zeros({1, rows, columns}, DType::f64);
  for (size_t i = 0; i < diagonal.size(); ++i) x.data<double>()[static_cast<int64_t>(i) * (columns + 1)] = diagonal[i];
  const auto all = values(orthogonalize(rank.stream, x, iteration));
  std::vector<double> found;
  for (size_t i = 0; i < all.size(); ++i)
    if (i % static_cast<size_t>(columns + 1) == 0 && found.size() < diagonal.size())
      found.push_back(all[i]);
    else
      EXPECT_NEAR(all[i], 0, 1e-12);
  return found;
}

TEST(NewtonSchulz, AppliesAPolynomialToTheSingularValues) {
  for (const char* type : {"quintic", "polar_express", "cubic", "deepseek"})
    for (const auto& [rows, columns] : {std::pair{3, 3}, {3, 7}, {8, 3}}) {
      const NewtonSchulz iteration = NewtonSchulz::of(type, 10);
      const std::vector<double> start = {3, -1.5, 0.25};
      const auto found = singular_values(start, rows, columns, iteration);
      for (size_t i = 0; i < 3; ++i) {
        double s = start[i] / (iteration.margin * std::sqrt(9 + 2.25 + 0.0625) + iteration.eps);
        for (const auto& [a, b, c] : iteration.steps) s = a * s + b * s * s * s + c * s * s * s * s * s;
        EXPECT_NEAR(found[i], s, 1e-10) << type << " " << rows << " x " << columns;
      }
    }
}

// Singular values start at 1, 0.1 and 0.01 of the norm; the bounds are those that each set promises.
TEST(NewtonSchulz, SingularValuesApproachOne) {
  for (const auto& [type, steps, most] : {std::tuple{"quintic", 5, 0.35},
                                          {"polar_express", 5, 0.02},
                                          {"polar_express", 8, 0.02},
                                          {"cubic", 20, 1e-6},
                                          {"deepseek", 10, 1e-2}})
    for (const double s : singular_values({1, 0.1, 0.01}, 3, 5, NewtonSchulz::of(type, steps)))
      EXPECT_NEAR(s, 1, most) << type << " " << steps;
}

TEST(NewtonSchulz, KeepsZeros) {
  for (const double s : singular_values({0, 0}, 2, 2, NewtonSchulz::of("quintic", 5))) EXPECT_EQ(s, 0);
}

TEST(NewtonSchulz, TreatsMatricesOfABatchSeparately) {
  Rank rank(3);
  const NewtonSchulz iteration = NewtonSchulz::of("quintic", 5);
  const Tensor x = rank.normal({4, 20, 36}, DType::f32, "x");
  const Tensor third = rank.stream.empty({1, 20, 36}, DType::f32);
  rank.stream.copy(third, x.narrow(0, 2, 1));
  const auto all = values(orthogonalize(rank.stream, x, iteration));
  const auto alone = values(orthogonalize(rank.stream, third, iteration));
  EXPECT_EQ(alone, std::vector<double>(all.begin() + 2 * 720, all.begin() + 3 * 720));
}

TEST(NewtonSchulz, CountsItsWork) {
  EXPECT_EQ(NewtonSchulz::of("quintic", 5).flops(10, 20), 5 * (4 * 100 * 20 + 2 * 1000));
  EXPECT_EQ(NewtonSchulz::of("cubic", 1).flops(20, 10), 4 * 100 * 20);
  Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  orthogonalize(meta, meta.empty({3, 20, 10}, DType::f32), NewtonSchulz::of("quintic", 5));
  EXPECT_EQ(meta.costs().at("other").at("batched_gemm").flops, 3 * NewtonSchulz::of("quintic", 5).flops(20, 10));
}

TEST(NewtonSchulz, FindsCoefficientSetsByName) {
  EXPECT_EQ(test::message_of<ConfigError>([] { NewtonSchulz::of("septic", 5); }),
            "muon_coefficient_type = septic: must be quintic, polar_express, cubic or deepseek");
}

// The steps on X itself in float64, for one matrix with fewer rows than columns.
std::vector<double> steps_on_x(std::vector<double> x, size_t m, size_t n, const NewtonSchulz& iteration) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= iteration.margin * std::sqrt(squares) + iteration.eps;
  const auto product = [&](const std::vector<double>& a, const std::vector<double>& b, size_t inner, size_t columns,
                           bool transposed) {
    std::vector<double> d(m * columns);
    for (size_t i = 0; i < m; ++i)
      for (size_t k = 0; k < inner; ++k)
        for (size_t j = 0; j < columns; ++j)
          d[i * columns + j] += a[i * inner + k] * b[transposed ? j * inner + k : k * columns + j];
    return d;
  };
  for (const auto& [a, b, c] : iteration.steps) {
    const auto r = product(x, x, n, m, true), rr = product(r, r, m, m, false);
    std::vector<double> polynomial(m * m);
    for (size_t i = 0; i < m * m; ++i) polynomial[i] = b * r[i] + c * rr[i] + (i % (m + 1) == 0 ? a : 0);
    x = product(polynomial, x, m, n, false);
  }
  return x;
}

// Rows that decay as 1 / (1 + i)^power, mixed by rotations of pairs, so that singular values decay alike.
Tensor ill_conditioned(Rank& rank, int64_t m, int64_t n, DType dtype, double power) {
  std::vector<double> x = values(rank.normal({1, m, n}, DType::f64, "x"));
  const auto at = [&](int64_t i, int64_t j) -> double& { return x[static_cast<size_t>(i * n + j)]; };
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) at(i, j) *= std::pow(1.0 + static_cast<double>(i), -power);
  for (int64_t i = 0; i < m / 2; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const double a = at(i, j), b = at(m - 1 - i, j);
      at(i, j) = 0.6 * a - 0.8 * b;
      at(m - 1 - i, j) = 0.8 * a + 0.6 * b;
    }
  const Tensor out = rank.stream.empty({1, m, n}, dtype);
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < m * n; ++i) out.data<T>()[i] = T(x[static_cast<size_t>(i)]);
  });
  return out;
}

double distance(const std::vector<double>& from, const std::vector<double>& to) {
  double squares = 0, all = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    squares += (from[i] - to[i]) * (from[i] - to[i]);
    all += to[i] * to[i];
  }
  return std::sqrt(squares / all);
}

// 20 x 96 and its transpose use Gram matrices. Float32 matches the plain float64 steps as closely as the condition of
// the matrix allows.
TEST(NewtonSchulz, StepsOnGramMatricesMatchStepsOnTheMatrix) {
  for (const auto& [type, steps] : {std::pair{"quintic", 5}, {"polar_express", 5}, {"deepseek", 10}, {"cubic", 12}})
    for (const double power : {0.0, 1.0, 3.0})
      for (const auto& [dtype, most] : {std::pair{DType::f64, 1e-9}, {DType::f32, 1e-2}}) {
        SCOPED_TRACE(cat(type, " ", power, " ", dtype));
        Rank rank;
        const NewtonSchulz iteration = NewtonSchulz::of(type, steps);
        const Tensor wide = ill_conditioned(rank, 20, 96, dtype, power);
        const Tensor tall = rank.stream.empty({1, 96, 20}, dtype);
        dispatch_floating(dtype, [&]<class T>() {
          for (int64_t i = 0; i < 20 * 96; ++i) tall.data<T>()[i % 96 * 20 + i / 96] = wide.data<T>()[i];
        });
        const auto expected = steps_on_x(values(wide), 20, 96, iteration);
        EXPECT_LT(distance(values(orthogonalize(rank.stream, wide, iteration)), expected), most);
        const auto turned = values(orthogonalize(rank.stream, tall, iteration));
        std::vector<double> back(turned.size());
        for (size_t i = 0; i < back.size(); ++i) back[i] = turned[i % 96 * 20 + i / 96];
        EXPECT_LT(distance(back, expected), most);
      }
}

// For the MoE reference's experts: products in halves on tiles of 128, in two runs of 2 and 3 steps. Costs in units of
// 512 cubed: 2 of X X^T (7 each) and 14 of small matrices (2 each), ten tiles of 16, and 2 of Q X (7 each).
TEST(NewtonSchulz, UsesGramMatricesIfThatTakesFewerOperations) {
  const NewtonSchulz quintic = NewtonSchulz::of("quintic", 5);
  const double cube = 512.0 * 512 * 512;
  EXPECT_DOUBLE_EQ(quintic.flops(1792, 512), 80 * cube);
  EXPECT_DOUBLE_EQ(quintic.least_flops(1792, 512), (0.625 * (14 + 28) + 14) * cube);
  EXPECT_DOUBLE_EQ(quintic.least_flops(512, 1792), quintic.least_flops(1792, 512));
  EXPECT_DOUBLE_EQ(quintic.least_flops(128, 128), quintic.flops(128, 128));
  EXPECT_DOUBLE_EQ(NewtonSchulz::of("cubic", 5).least_flops(512, 1792), NewtonSchulz::of("cubic", 5).flops(512, 1792));
  EXPECT_EQ(kernels::hopper_gram_batch(512, 4608, 73), 66);  // five full waves
  EXPECT_EQ(kernels::hopper_gram_batch(512, 48, 73), 48);    // no second call for the remainder
  EXPECT_EQ(kernels::hopper_gram_batch(512, 1, 73), 1);
}

}  // namespace
}  // namespace witan
