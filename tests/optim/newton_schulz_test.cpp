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

TEST(NewtonSchulz, EachStepIsAPolynomialOfTheSingularValues) {
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

// From singular values of 1, 0.1 and 0.01 of the norm: what each set promises.
TEST(NewtonSchulz, SingularValuesEndAtOrAroundOne) {
  for (const auto& [type, steps, most] : {std::tuple{"quintic", 5, 0.35},
                                          {"polar_express", 5, 0.02},
                                          {"polar_express", 8, 0.02},
                                          {"cubic", 20, 1e-6},
                                          {"deepseek", 10, 1e-2}})
    for (const double s : singular_values({1, 0.1, 0.01}, 3, 5, NewtonSchulz::of(type, steps)))
      EXPECT_NEAR(s, 1, most) << type << " " << steps;
}

TEST(NewtonSchulz, ZerosStayZeros) {
  for (const double s : singular_values({0, 0}, 2, 2, NewtonSchulz::of("quintic", 5))) EXPECT_EQ(s, 0);
}

TEST(NewtonSchulz, MatricesOfABatchAreAlone) {
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

TEST(NewtonSchulz, KnowsItsSets) {
  EXPECT_EQ(test::message_of<ConfigError>([] { NewtonSchulz::of("septic", 5); }),
            "muon_coefficient_type = septic: must be quintic, polar_express, cubic or deepseek");
}

}  // namespace
}  // namespace witan
