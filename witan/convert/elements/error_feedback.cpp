#include "witan/convert/elements/error_feedback.h"

#include <algorithm>
#include <cmath>

namespace witan {
namespace {

constexpr double kDamping = 0.01;  // times the mean of the diagonal, as in the paper
constexpr int64_t kFactorRows = 16, kFactorColumns = 128;

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// A square matrix, of which the upper triangle is used.
struct Upper {
  explicit Upper(int64_t size) : n(size), values(static_cast<size_t>(size * size)) {}
  double* row(int64_t i) { return values.data() + i * n; }

  int64_t n;
  std::vector<double> values;
};

// Replaces the positive definite H by the upper triangular R with R Rᵀ = H, column by column from the right.
void factorise(Upper& h, ThreadPool& pool) {
  for (int64_t j = h.n - 1; j >= 0; --j) {
    double* const last = h.row(j);
    const int64_t after = h.n - 1 - j;
    last[j] = std::sqrt(last[j] - dot(last + j + 1, last + j + 1, after));
    pool.for_ranges(j, kFactorRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* const row = h.row(i);
        row[j] = (row[j] - dot(row + j + 1, last + j + 1, after)) / last[j];
      }
    });
  }
}

// U = R⁻¹, row by row from below.
Upper inverse(Upper& r, ThreadPool& pool) {
  Upper u(r.n);
  for (int64_t i = r.n - 1; i >= 0; --i) {
    const double* const of_r = r.row(i);
    double* const row = u.row(i);
    row[i] = 1 / of_r[i];
    pool.for_ranges(r.n - 1 - i, kFactorColumns, [&](int64_t begin, int64_t end) {
      const int64_t first = i + 1 + begin, last = i + 1 + end;
      for (int64_t k = i + 1; k < last; ++k) {
        const double* const other = u.row(k);
        const double factor = of_r[k] / of_r[i];
        const int64_t from = std::max(first, k);
#pragma omp simd
        for (int64_t j = from; j < last; ++j) row[j] -= factor * other[j];
      }
    });
  }
  return u;
}

}  // namespace

ErrorFeedback::ErrorFeedback(std::span<const float> moments, ThreadPool& pool)
    : columns_(std::llround(std::sqrt(static_cast<double>(moments.size())))) {
  Upper h(columns_);
  std::ranges::copy(moments, h.values.begin());
  double mean = 0;
  for (int64_t i = 0; i < columns_; ++i) mean += h.row(i)[i] / static_cast<double>(columns_);
  for (int64_t i = 0; i < columns_; ++i) h.row(i)[i] += kDamping * mean;
  factorise(h, pool);
  const Upper u = inverse(h, pool);
  factor_.assign(u.values.begin(), u.values.end());
}

void ErrorFeedback::spread(std::span<float> row, int64_t column, float rounded) const {
  const float* const of_column = factor_.data() + column * columns_;
  const float error = (row[static_cast<size_t>(column)] - rounded) / of_column[column];
#pragma omp simd
  for (int64_t i = column + 1; i < columns_; ++i) row[static_cast<size_t>(i)] -= error * of_column[i];
}

}  // namespace witan
