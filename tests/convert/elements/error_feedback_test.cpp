#include "witan/convert/elements/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

// x xᵀ of inputs that depend on a few common factors, as in a model; [K, K].
std::vector<float> correlated_moments(int64_t K) {
  constexpr int64_t kInputs = 400, kFactors = 7;
  const Philox rng(3, 1);
  std::vector<float> moments(static_cast<size_t>(K * K));
  for (int64_t n = 0; n < kInputs; ++n) {
    std::vector<double> x(static_cast<size_t>(K));
    for (int64_t k = 0; k < K; ++k) {
      x[static_cast<size_t>(k)] = 0.2 * rng.normal(static_cast<uint64_t>(n * 1000 + k));
      for (int64_t f = 0; f < kFactors; ++f)
        x[static_cast<size_t>(k)] += rng.normal(static_cast<uint64_t>(1'000'000 + n * kFactors + f)) *
                                     rng.normal(static_cast<uint64_t>(2'000'000 + f * K + k));
    }
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < K; ++j)
        moments[static_cast<size_t>(i * K + j)] +=
            static_cast<float>(x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)]);
  }
  return moments;
}

std::vector<float> normal_rows(int64_t rows, int64_t K) {
  const Philox rng(3, 2);
  std::vector<float> values;
  for (int64_t i = 0; i < rows * K; ++i)
    values.push_back(static_cast<float>(0.05 * rng.normal(static_cast<uint64_t>(i))));
  return values;
}

// The sum of (e x)² over the inputs x and the rows e of a - b.
double output_error(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& moments,
                    int64_t K) {
  double sum = 0;
  for (size_t row = 0; row < a.size(); row += static_cast<size_t>(K))
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < K; ++j) {
        const size_t at = row + static_cast<size_t>(i), other = row + static_cast<size_t>(j);
        sum += static_cast<double>(a[at] - b[at]) * static_cast<double>(a[other] - b[other]) *
               static_cast<double>(moments[static_cast<size_t>(i * K + j)]);
      }
  return sum;
}

struct Packed {
  std::vector<std::byte> words, scales;
};
Packed packed(const std::vector<float>& values, int64_t K, const ErrorFeedback* feedback, int threads = 2) {
  ThreadPool pool(threads);
  Packed out;
  quantise_packed(values, K, K / 32, 4, Element::f32, pool, out.words, out.scales, feedback);
  return out;
}
std::vector<float> values_of(const Packed& of, int64_t rows, int64_t K) {
  const auto bytes = dequantise_packed(of.words, Element::f32, of.scales, rows, K, K / 32, 4);
  std::vector<float> values(static_cast<size_t>(rows * K));
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(values.data()), Element::f32, bytes.data(), 1, rows * K);
  return values;
}

// The definition (Frantar et al., 2023, section 3): an element's error changes the others by the inverse moments of the
// remaining elements, from which the element is then eliminated.
TEST(ErrorFeedback, MatchesTheDefinition) {
  constexpr int64_t K = 40;
  const std::vector<float> moments = correlated_moments(K);
  double mean = 0;
  for (int64_t i = 0; i < K; ++i) mean += static_cast<double>(moments[static_cast<size_t>(i * (K + 1))]) / K;
  // Gauss-Jordan elimination on [H | I].
  std::vector<std::vector<double>> rows(K, std::vector<double>(2 * K));
  for (size_t i = 0; i < K; ++i) {
    for (size_t j = 0; j < K; ++j) rows[i][j] = static_cast<double>(moments[i * K + j]) + (i == j ? 0.01 * mean : 0);
    rows[i][K + i] = 1;
  }
  for (size_t pivot = 0; pivot < K; ++pivot) {
    const double by = rows[pivot][pivot];
    for (double& value : rows[pivot]) value /= by;
    for (size_t i = 0; i < K; ++i) {
      if (i == pivot) continue;
      const double factor = rows[i][pivot];
      for (size_t j = 0; j < 2 * K; ++j) rows[i][j] -= factor * rows[pivot][j];
    }
  }
  std::vector<std::vector<double>> inverse(K);
  for (size_t i = 0; i < K; ++i) inverse[i].assign(rows[i].begin() + K, rows[i].end());

  ThreadPool pool(2);
  const ErrorFeedback feedback(moments, pool);
  ASSERT_EQ(feedback.columns(), K);
  std::vector<float> found = normal_rows(1, K);
  std::vector<double> expected(found.begin(), found.end());
  for (size_t column = 0; column < K; ++column) {
    const double rounded = std::nearbyint(expected[column] * 50) / 50;
    feedback.spread(found, static_cast<int64_t>(column), static_cast<float>(rounded));
    const double error = (expected[column] - rounded) / inverse[column][column];
    for (size_t j = column + 1; j < K; ++j) expected[j] -= error * inverse[column][j];
    const std::vector<double> gone = inverse[column];
    for (size_t i = column + 1; i < K; ++i)
      for (size_t j = column + 1; j < K; ++j) inverse[i][j] -= gone[i] * gone[j] / gone[column];
    for (size_t j = column + 1; j < K; ++j)
      ASSERT_NEAR(found[j], expected[j], 1e-4) << "after column " << column << ", " << j;
  }
}

TEST(ErrorFeedback, ReducesTheErrorOfOutputs) {
  constexpr int64_t K = 128, kRows = 24;
  const std::vector<float> moments = correlated_moments(K), values = normal_rows(kRows, K);
  ThreadPool pool(3);
  const ErrorFeedback feedback(moments, pool);
  const Packed with = packed(values, K, &feedback), without = packed(values, K, nullptr);
  const double error = output_error(values_of(with, kRows, K), values, moments, K);
  EXPECT_LT(error, 0.25 * output_error(values_of(without, kRows, K), values, moments, K));
  EXPECT_GT(error, 0);
  const Packed again = packed(values, K, &feedback, 5);
  EXPECT_EQ(with.words, again.words);
  EXPECT_EQ(with.scales, again.scales);
}

// Without correlation no element affects another.
TEST(ErrorFeedback, RoundsToNearestForUncorrelatedInputs) {
  constexpr int64_t K = 64, kRows = 5;
  std::vector<float> moments(K * K);
  for (size_t i = 0; i < K; ++i) moments[i * (K + 1)] = i % 3 == 0 ? 0 : static_cast<float>(i);
  ThreadPool pool(1);
  const ErrorFeedback feedback(moments, pool);
  const std::vector<float> values = normal_rows(kRows, K);
  EXPECT_EQ(packed(values, K, &feedback).words, packed(values, K, nullptr).words);
}

}  // namespace
}  // namespace witan
