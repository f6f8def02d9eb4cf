// FP8 products in tests: operands quantised by the CPU's kernels, their values in float64, and problems with groups at
// all edges.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "support/rank.h"
#include "witan/kernels/fp8/fp8.h"

namespace witan::testing {

struct Fp8Case {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
  int64_t sources = 1;  // begin and count are [sources, experts]

  int64_t experts() const { return std::ssize(begin) / sources; }
};

// Covers gaps, groups out of order, empty groups, single rows, more than a block, one hot expert, several sources and
// no rows; K and N around blocks of 128.
inline const std::vector<Fp8Case>& fp8_cases() {
  static const std::vector<Fp8Case> cases = {
      {40, 80, 144, {3, 10, 30}, {5, 17, 1}},
      {64, 16, 96, {40, 0, 20, 64}, {20, 16, 0, 0}},
      {300, 208, 528, {0, 0, 0, 0}, {0, 0, 300, 0}},
      {700, 320, 144, {0, 1, 3, 6, 11, 300}, {1, 2, 3, 5, 289, 400}},
      {700, 64, 768, {5, 69, 133, 261, 261, 453}, {64, 64, 128, 0, 192, 243}},
      {520, 272, 128, {0, 130}, {130, 390}},
      {1300, 128, 464, {0, 257, 577, 960}, {257, 320, 383, 340}},
      {600, 256, 256, {0, 300, 150, 400, 280, 600}, {150, 100, 130, 1, 20, 0}, 3},
      {260, 1040, 272, {0, 130}, {130, 130}},
      {1000, 16, 144, {0}, {1000}},
      {1, 16, 16, {0}, {1}},
      {8, 64, 64, {0, 0}, {0, 0}},
      {0, 64, 64, {0, 0}, {0, 0}},
  };
  return cases;
}

// The groups of a case. Within an expert, rows are ordered by source.
inline RowGroups fp8_groups(Rank& rank, const Fp8Case& c) {
  const int64_t E = c.experts(), R = c.sources;
  if (R == 1) return {rank.tensor<int64_t>({E}, c.begin), rank.tensor<int64_t>({E}, c.count)};
  std::vector<int64_t> begin(static_cast<size_t>(E)), count(begin);
  for (int64_t e = 0; e < E; ++e) {
    begin[static_cast<size_t>(e)] = c.begin[static_cast<size_t>(e)];
    for (int64_t r = 0; r < R; ++r) count[static_cast<size_t>(e)] += c.count[static_cast<size_t>(r * E + e)];
  }
  return {rank.tensor<int64_t>({E}, begin), rank.tensor<int64_t>({E}, count), rank.tensor<int64_t>({R, E}, c.begin),
          rank.tensor<int64_t>({R, E}, c.count)};
}

// Normal rows whose magnitudes differ by powers of two, so that a wrong block's scale shows; NaN outside the groups.
inline Tensor fp8_rows_of(Rank& rank, const Fp8Case& c, int64_t width, DType dtype, const char* name) {
  Tensor x = rank.normal({c.capacity, width}, dtype, name);
  std::vector<bool> inside(static_cast<size_t>(c.capacity));
  for (size_t g = 0; g < c.count.size(); ++g) std::fill_n(inside.begin() + c.begin[g], c.count[g], true);
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < x.elements(); ++i) {
      T& value = x.data<T>()[i];
      const int exponent = static_cast<int>(i / width % 5 - i % width / kernels::kFp8Block % 3);
      value = inside[static_cast<size_t>(i / width)] ? T(std::ldexp(static_cast<float>(value), exponent))
                                                     : T(std::nanf(""));
    }
  });
  return x;
}

inline constexpr int64_t kFp8Topk = 3;  // rows of a token

// The tokens that a case's rows copy, [T, K], and the assignment of each row: -1 outside the groups.
inline std::pair<Tensor, Tensor> fp8_tokens_of(Rank& rank, const Fp8Case& c, DType dtype) {
  const int64_t T = c.capacity / kFp8Topk + 1;
  std::vector<int64_t> index(static_cast<size_t>(c.capacity), -1);
  for (size_t g = 0; g < c.count.size(); ++g)
    for (int64_t i = c.begin[g]; i < c.begin[g] + c.count[g]; ++i)
      index[static_cast<size_t>(i)] = i * 37 % (T * kFp8Topk);
  return {rank.normal({T, c.K}, dtype, "tokens"), rank.tensor<int64_t>({c.capacity}, index)};
}

inline double fp8_number(const Tensor& codes, int64_t at, kernels::Fp8Format format = kernels::Fp8Format::e4m3) {
  const e4m3 code = codes.data<e4m3>()[at];
  if (format == kernels::Fp8Format::e4m3) return static_cast<double>(static_cast<float>(code));
  return static_cast<double>(static_cast<float>(std::bit_cast<e5m2>(code)));
}

// The format's nearest number, ties to even, limited to its largest, computed in float64 by the format's definition.
inline double rounded_to(kernels::Fp8Format format, double number) {
  const bool e4 = format == kernels::Fp8Format::e4m3;
  const int mantissa = e4 ? 3 : 2, least = e4 ? -6 : -14;  // bits, and the exponent of the least normal number
  const double largest = e4 ? 448 : 57344;
  if (number == 0) return number;
  const double step = std::ldexp(1.0, std::max(std::ilogb(number), least) - mantissa);
  return std::clamp(std::nearbyint(number / step) * step, -largest, largest);
}

// The dequantised value of a number if `magnitude` is scaled to the format's largest; number / scale is in float32.
inline double scaled_to(kernels::Fp8Format format, double number, float magnitude) {
  const float largest = format == kernels::Fp8Format::e4m3 ? 448.0F : 57344.0F;
  const float scaled = static_cast<float>(number) * (magnitude > 0 ? largest / magnitude : 1.0F);
  return rounded_to(format, scaled) * static_cast<double>(magnitude > 0 ? magnitude / largest : 1.0F);
}

// Dequantised values of [M, K] by rows, [K, P] by columns, and [E, N, K], on the CPU.
inline std::vector<double> dequantised(const kernels::Fp8Rows& rows) {
  const int64_t M = rows.values.size(0), K = rows.values.size(1);
  std::vector<double> out;
  for (int64_t i = 0; i < M * K; ++i)
    out.push_back(fp8_number(rows.values, i, rows.format) *
                  static_cast<double>(rows.scales.data<float>()[i % K / kernels::kFp8Block * M + i / K]));
  return out;
}
inline std::vector<double> dequantised(const kernels::Fp8Columns& columns) {
  const int64_t K = columns.values.size(0), P = columns.values.size(1);
  std::vector<double> out;
  for (int64_t i = 0; i < K * P; ++i)
    out.push_back(fp8_number(columns.values, i, columns.format) *
                  static_cast<double>(columns.scales.data<float>()[i % P / kernels::kFp8Block * K + i / P]));
  return out;
}
inline std::vector<double> dequantised(const kernels::Fp8Weights& weights, bool transposed) {
  const Tensor& codes = transposed ? weights.transposed : weights.values;
  const int64_t E = weights.scales.size(0), down = weights.scales.size(1), across = weights.scales.size(2);
  const int64_t N = codes.size(transposed ? 2 : 1), K = codes.size(transposed ? 1 : 2);
  std::vector<double> out;
  for (int64_t i = 0; i < E * N * K; ++i) {
    const int64_t e = i / (N * K), n = i / K % N, k = i % K;
    const float scale =
        weights.scales.data<float>()[(e * down + n / kernels::kFp8Block) * across + k / kernels::kFp8Block];
    out.push_back(fp8_number(codes, transposed ? (e * K + k) * N + n : i) * static_cast<double>(scale));
  }
  return out;
}

// A sum, and the sum of its terms' magnitudes, which bounds the error of float32 summation.
struct ExactSum {
  double sum = 0, magnitudes = 0;
  void add(double term) { sum += term, magnitudes += std::abs(term); }
};

}  // namespace witan::testing
