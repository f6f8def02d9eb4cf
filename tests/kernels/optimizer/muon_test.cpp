#include "witan/kernels/optimizer/muon.h"

#include <cmath>
#include <limits>

#include "support/optimizer.h"
#include "support/rank.h"
#include "witan/base/error.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

Tensor step_of(Rank& rank, double lr, double scale, double skip = 0) {
  return rank.tensor<double>({kernels::kStepValues}, {lr, scale, 1, skip, 1, 1});
}

kernels::MuonItem item_of(Rank& rank, int64_t n, DType value, DType gradient, DType direction) {
  kernels::MuonItem item;
  item.value = rank.normal({n}, value, "p");
  if (value == DType::bf16)
    item.remainder = testing::split_into(rank.stream, item.value, rank.normal({n}, DType::f32, "p"));
  item.momentum = rank.normal({n}, accumulator(value), "b");
  item.gradient = rank.normal({n}, gradient, "g");
  item.direction = rank.poisoned({n}, direction);
  item.orthogonal = rank.normal({n}, direction, "u");
  item.weight_decay = 0.25;
  item.scale = 3;
  return item;
}

TEST(Muon, FollowsNesterovMomentumAndDecoupledDecay) {
  struct Case {
    DType value, gradient, direction;
    double tolerance;
  };
  for (const auto& [value, gradient, direction, tolerance] : {Case{DType::f64, DType::f64, DType::f64, 1e-14},
                                                              {DType::f32, DType::f32, DType::f32, 1e-6},
                                                              {DType::bf16, DType::f32, DType::f32, 1e-6},
                                                              {DType::bf16, DType::bf16, DType::bf16, 1e-2}})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{33}, int64_t{40000}})
      for (const bool nesterov : {true, false}) {
        SCOPED_TRACE(cat(value, " ", gradient, " ", direction, " ", n, " ", nesterov));
        Rank rank(2);
        const kernels::MuonItem item = item_of(rank, n, value, gradient, direction);
        const auto weights = [&] {
          return item.remainder.defined() ? testing::joined(item.value, item.remainder) : values(item.value);
        };
        const auto p = weights(), b = values(item.momentum), g = values(item.gradient), u = values(item.orthogonal);
        const kernels::MuonArgs args{0.9, nesterov};
        const Tensor step = step_of(rank, 0.5, 2);
        kernels::muon_momentum(rank.stream, {&item, 1}, {}, step, args);
        kernels::muon_update(rank.stream, {&item, 1}, {}, step, args);
        std::vector<double> momentum, ahead, updated;
        for (size_t i = 0; i < p.size(); ++i) {
          momentum.push_back(0.9 * b[i] + 2 * g[i]);
          ahead.push_back(nesterov ? 2 * g[i] + 0.9 * momentum[i] : momentum[i]);
          updated.push_back(p[i] * (1 - 0.5 * 0.25) - 0.5 * 3 * u[i]);
        }
        EXPECT_TRUE(close(values(item.momentum), momentum, 1e-6, 1e-6));
        EXPECT_TRUE(close(values(item.direction), ahead, tolerance, tolerance));
        EXPECT_TRUE(close(weights(), updated, 1e-6, 1e-6));
      }
}

TEST(Muon, ASkippedStepChangesNothing) {
  Rank rank;
  kernels::MuonItem item = item_of(rank, 100, DType::f32, DType::f32, DType::f32);
  std::ranges::fill(item.gradient.span<float>(), std::numeric_limits<float>::quiet_NaN());
  const auto p = values(item.value), b = values(item.momentum);
  const Tensor step = step_of(rank, 0.5, 1, 1);
  kernels::muon_momentum(rank.stream, {&item, 1}, {}, step, {0.9, true});
  kernels::muon_update(rank.stream, {&item, 1}, {}, step, {0.9, true});
  EXPECT_EQ(values(item.value), p);
  EXPECT_EQ(values(item.momentum), b);
  EXPECT_EQ(values(item.direction), std::vector<double>(100)) << "what is not finite goes no further";
  const Tensor v = rank.normal({2, 3}, DType::f32, "v"), squares = rank.normal({2, 3}, DType::f64, "squares");
  const auto before = values(v);
  kernels::normuon_moments(
      rank.stream, {v, rank.poisoned({2, 3}, DType::f64), rank.poisoned({2, 2}, DType::f64), squares}, step, {0.5, 4});
  EXPECT_EQ(values(v), before);
}

TEST(Muon, UsesTheLearningRateOfItsGroup) {
  Rank rank;
  kernels::MuonItem item = item_of(rank, 10, DType::f64, DType::f64, DType::f64);
  item.weight_decay = 0;
  const auto p = values(item.value), u = values(item.orthogonal);
  const Tensor step = rank.tensor<double>({kernels::kStepValues + 1}, {9, 1, 1, 0, 1, 1, 0.125});
  kernels::muon_update(rank.stream, {&item, 1}, {}, step, {0, true, kernels::step_value::learning_rate_of(1)});
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(values(item.value)[i], p[i] - 0.125 * 3 * u[i], 1e-14);
}

TEST(Muon, DividesMatricesByTheirNorms) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-13}, {DType::f32, 1e-6}, {DType::bf16, 1e-2}})
    for (const int64_t elements : {1, 35, 70000}) {
      Rank rank(2);
      const Tensor x = rank.normal({3, elements}, dtype, "x");
      const auto before = values(x);
      const Tensor sums = rank.stream.empty({3 * kernels::chunks_of(elements), 2}, DType::f64);
      kernels::square_sums(rank.stream, sums, x);
      kernels::normalize_matrices(rank.stream, x, sums, {1.5, 0.125});
      const auto after = values(x);
      for (size_t i = 0; i < 3; ++i) {
        const auto n = static_cast<size_t>(elements);
        double squares = 0;
        for (size_t j = 0; j < n; ++j) squares += before[i * n + j] * before[i * n + j];
        for (size_t j = 0; j < n; j += 11)
          EXPECT_NEAR(after[i * n + j], before[i * n + j] / (1.5 * std::sqrt(squares) + 0.125), tolerance);
      }
    }
}

// Two matrices of three rows; the header's formula, computed in float64.
TEST(NorMuon, ScalesRowsByTheirMomentsAndKeepsNorms) {
  Rank rank(2);
  const int64_t n = 2, R = 3, K = 50;
  const Tensor x = rank.normal({n, R, K}, DType::f64, "x"), v = rank.stream.zeros({n, R}, DType::f64);
  std::ranges::fill(v.span<double>(), 0.5);
  const auto before = values(x);
  const Tensor squares = rank.poisoned({n, R}, DType::f64), factors = rank.poisoned({n, R}, DType::f64);
  const Tensor totals = rank.poisoned({n, 2}, DType::f64);
  kernels::row_squares(rank.stream, squares.reshape({n * R}), x.reshape({n * R, K}));
  kernels::normuon_moments(rank.stream, {v, factors, totals, squares}, step_of(rank, 1, 1), {0.8, K});
  kernels::scale_rows(rank.stream, x, factors, totals);
  const auto after = values(x);
  for (size_t i = 0; i < 2; ++i) {
    double old_norm = 0, new_norm = 0;
    std::vector<double> divided;
    for (size_t r = 0; r < 3; ++r) {
      const double* row = before.data() + (i * 3 + r) * 50;
      double sum = 0;
      for (size_t k = 0; k < 50; ++k) sum += row[k] * row[k];
      const double moment = 0.8 * 0.5 + 0.2 * sum / 50;
      EXPECT_NEAR(values(v)[i * 3 + r], moment, 1e-14);
      for (size_t k = 0; k < 50; ++k) {
        divided.push_back(row[k] / (std::sqrt(moment) + 1e-8));
        old_norm += row[k] * row[k];
        new_norm += divided.back() * divided.back();
      }
    }
    for (size_t j = 0; j < 150; ++j)
      EXPECT_NEAR(after[i * 150 + j], divided[j] * std::sqrt(old_norm / new_norm), 1e-13);
  }
}

}  // namespace
}  // namespace witan
