#include "witan/kernels/optimizer/soap.h"

#include <cmath>
#include <numeric>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using Rows = std::vector<std::vector<double>>;

// The first basis of a factor, [n, n].
Rows first_basis(Rank& rank, const Rows& factor) {
  const auto n = static_cast<int64_t>(factor.size());
  std::vector<double> all;
  for (const auto& row : factor) all.insert(all.end(), row.begin(), row.end());
  const Tensor basis = rank.poisoned({n, n}, DType::f64), step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  step.data<double>()[kernels::step_value::update] = 1;
  kernels::renew_basis(rank.stream, basis, rank.stream.zeros({n, n}, DType::f64), rank.tensor<double>({n, n}, all),
                       step, {.frequency = 1, .dim = 0, .update = 1});
  Rows rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(testing::values(basis.narrow(0, i, 1)));
  return rows;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The basis of the null space of a factor with `known` orthonormal rows, by definition: projections of unit vectors,
// each time of the first one whose remainder exceeds its share of the mean.
Rows projections(const Rows& known) {
  const size_t n = known[0].size();
  Rows found = known;
  for (size_t j = known.size(); j < n; ++j) {
    const double fair = kernels::kFairShare * static_cast<double>(n - j) / static_cast<double>(n);
    std::vector<double> left;
    for (size_t pivot = 0; pivot < n && dot(left, left) < fair; ++pivot) {
      left.assign(n, 0);
      left[pivot] = 1;
      for (const auto& row : found)
        for (size_t c = 0, of = pivot; c < n; ++c) left[c] -= row[of] * row[c];
    }
    const double length = std::sqrt(dot(left, left));
    for (double& value : left) value /= length;
    found.push_back(left);
  }
  return {found.begin() + static_cast<std::ptrdiff_t>(known.size()), found.end()};
}

// The result must not depend on LAPACK's choice of eigenvectors in the null space.
TEST(RenewBasis, NullSpaceHasProjectionsOfUnitVectors) {
  Rank rank;
  for (const size_t n : {4, 7, 12})
    for (const size_t full : {1, 2, 3}) {
      SCOPED_TRACE(cat(full, " of ", n));
      Rows known;  // orthonormal, with eigenvalues full, full - 1, …
      for (size_t i = 0; i < full; ++i) {
        std::vector<double> row;
        for (size_t c = 0; c < n; ++c) row.push_back(std::sin(1.3 * static_cast<double>(c * (i + 1)) + 0.7));
        for (const auto& other : known) {
          const double along = dot(row, other);
          for (size_t c = 0; c < n; ++c) row[c] -= along * other[c];
        }
        const double length = std::sqrt(dot(row, row));
        for (double& value : row) value /= length;
        known.push_back(row);
      }
      Rows factor(n, std::vector<double>(n));
      for (size_t i = 0; i < full; ++i)
        for (size_t r = 0; r < n; ++r)
          for (size_t c = 0; c < n; ++c) factor[r][c] += static_cast<double>(full - i) * known[i][r] * known[i][c];
      const Rows basis = first_basis(rank, factor), expected = projections(known);
      for (size_t i = 0; i < full; ++i) EXPECT_NEAR(std::abs(dot(basis[i], known[i])), 1, 1e-10) << i;
      for (size_t i = full; i < n; ++i)  // up to signs
        EXPECT_NEAR(std::abs(dot(basis[i], expected[i - full])), 1, 1e-10) << i;
    }
}

// An infinite factor, from a gradient larger than the root of the largest number, leaves the basis unchanged.
TEST(RenewBasis, KeepsTheBasisIfTheFactorIsNotFinite) {
  Rank rank;
  const Tensor basis = rank.tensor<double>({2, 2}, {0.6, 0.8, -0.8, 0.6}),
               v = rank.tensor<double>({2, 2}, {1, 2, 3, 4}),
               step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  step.data<double>()[kernels::step_value::update] = 3;
  for (const double bad : {static_cast<double>(INFINITY), std::nan("")}) {
    kernels::renew_basis(rank.stream, basis, v, rank.tensor<double>({2, 2}, {bad, 0, 0, 1}), step,
                         {.frequency = 1, .dim = 0, .update = 3});
    EXPECT_EQ(testing::values(basis), (std::vector<double>{0.6, 0.8, -0.8, 0.6}));
    EXPECT_EQ(testing::values(v), (std::vector<double>{1, 2, 3, 4}));
  }
}

}  // namespace
}  // namespace witan
