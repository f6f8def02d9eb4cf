// MXFP8 of the OCP Microscaling Formats specification (version 1.0, 2023), which only Blackwell multiplies and
// fp8_recipe = mxfp8 is refused for, emulated: blocks of 32 numbers in E4M3 along K share a power of two in E8M0.
// Compared with float64, and with the blockwise recipe that the refusal recommends.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/fp8.h"
#include "support/rank.h"
#include "witan/kernels/fp8/fp8.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

constexpr int64_t kMxBlock = 32;
constexpr int kLargestExponent = 8;  // of E4M3: 448 = 1.75 x 2^8
constexpr uint8_t kNanScale = 0xFF;

double e8m0(uint8_t code) {
  return code == kNanScale ? std::nan("") : std::ldexp(1.0, code - 127);
}

// The specification's rule (section 6.3): the exponent of the largest magnitude less that of the format's largest.
uint8_t mx_scale(double largest) {
  if (!std::isfinite(largest)) return kNanScale;
  if (largest == 0) return 0;
  return static_cast<uint8_t>(std::clamp(std::ilogb(largest) - kLargestExponent, -127, 127) + 127);
}

// A matrix [M, K] in MXFP8 by rows; K need not divide evenly.
struct MxRows {
  int64_t M = 0, K = 0;
  std::vector<e4m3> codes;      // [M, K]
  std::vector<uint8_t> scales;  // [M, blocks()]

  int64_t blocks() const { return (K + kMxBlock - 1) / kMxBlock; }
  double scale(int64_t row, int64_t k) const {
    return e8m0(scales[static_cast<size_t>(row * blocks() + k / kMxBlock)]);
  }
  double code(int64_t row, int64_t k) const {
    return static_cast<double>(static_cast<float>(codes[static_cast<size_t>(row * K + k)]));
  }
  double value(int64_t row, int64_t k) const { return code(row, k) * scale(row, k); }
};

using Matrix = std::vector<double>;  // by rows

MxRows mx_rows(const Matrix& x, int64_t M, int64_t K) {
  MxRows out{M, K, {}, {}};
  for (int64_t row = 0; row < M; ++row)
    for (int64_t k = 0; k < K; k += kMxBlock) {
      const auto begin = x.begin() + row * K + k, end = x.begin() + row * K + std::min(k + kMxBlock, K);
      double largest = 0;
      for (auto at = begin; at < end; ++at) largest = std::isnan(*at) ? *at : std::max(largest, std::abs(*at));
      out.scales.push_back(mx_scale(largest));
      for (auto at = begin; at < end; ++at) out.codes.emplace_back(static_cast<float>(*at / e8m0(out.scales.back())));
    }
  return out;
}

// y [M, N] = a b^T as a tensor core sums it: block by block the exact sum of 32 products of codes, times both scales.
Matrix mx_product(const MxRows& a, const MxRows& b) {
  Matrix y;
  for (int64_t m = 0; m < a.M; ++m)
    for (int64_t n = 0; n < b.M; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < a.K; k += kMxBlock) {
        double block = 0;
        for (int64_t at = k; at < std::min(k + kMxBlock, a.K); ++at) block += a.code(m, at) * b.code(n, at);
        sum += block * a.scale(m, k) * b.scale(n, k);
      }
      y.push_back(sum);
    }
  return y;
}

Matrix product(const Matrix& a, const Matrix& b, int64_t M, int64_t N, int64_t K) {
  Matrix y;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += a[static_cast<size_t>(m * K + k)] * b[static_cast<size_t>(n * K + k)];
      y.push_back(sum);
    }
  return y;
}

Matrix transposed(const Matrix& x, int64_t M, int64_t K) {
  Matrix out;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t m = 0; m < M; ++m) out.push_back(x[static_cast<size_t>(m * K + k)]);
  return out;
}

// The root of the mean square of a - b over that of b.
double relative_error(const Matrix& a, const Matrix& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(apart / size);
}

TEST(Mxfp8, ScalesAreThePowersOfTwoOfTheSpecification) {
  EXPECT_EQ(e8m0(mx_scale(1)), 0x1p-8);
  EXPECT_EQ(e8m0(mx_scale(1.999)), 0x1p-8);
  EXPECT_EQ(e8m0(mx_scale(2)), 0x1p-7);
  EXPECT_EQ(e8m0(mx_scale(448)), 1);
  EXPECT_EQ(e8m0(mx_scale(0)), 0x1p-127);
  EXPECT_EQ(e8m0(mx_scale(0x1p-140)), 0x1p-127) << "the least scale";
  EXPECT_EQ(e8m0(mx_scale(static_cast<double>(std::numeric_limits<float>::max()))), 0x1p119);
  EXPECT_TRUE(std::isnan(e8m0(mx_scale(INFINITY))));
  EXPECT_TRUE(std::isnan(e8m0(mx_scale(NAN))));
}

// A number loses half the distance of its neighbours. One in the highest eighth of its block's binade, above 1.75 x 2^8
// in units of the scale, becomes the largest code.
TEST(Mxfp8, NumbersLoseHalfAStepOrSaturate) {
  Rank rank;
  const int64_t M = 9, K = 77;
  Matrix x = values(rank.normal({M, K}, DType::f32, "mx"));
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i / 32 % 41) - 20);
  const MxRows mx = mx_rows(x, M, K);
  int saturated = 0;
  for (int64_t row = 0; row < M; ++row)
    for (int64_t k = 0; k < K; ++k) {
      const double exact = x[static_cast<size_t>(row * K + k)], scale = mx.scale(row, k),
                   units = std::abs(exact) / scale;
      ASSERT_LT(units, 512);
      if (units > 464) {  // halfway to 480, which the format lacks
        ++saturated;
        ASSERT_EQ(mx.value(row, k), std::copysign(448 * scale, exact));
      } else {
        ASSERT_NEAR(mx.value(row, k), exact, std::max(std::abs(exact) * 0x1p-4, scale * 0x1p-10));
      }
    }
  EXPECT_GT(saturated, 0);
}

TEST(Mxfp8, ABlockWithoutAFiniteNumberIsNaNAndNoOtherIs) {
  Matrix x(3 * kMxBlock, 1);
  x[kMxBlock + 5] = INFINITY;
  x[2 * kMxBlock + 7] = NAN;
  const MxRows mx = mx_rows(x, 1, 3 * kMxBlock);
  EXPECT_EQ(mx.value(0, 0), 1);
  EXPECT_TRUE(std::isnan(mx.value(0, kMxBlock)));
  EXPECT_TRUE(std::isnan(mx.value(0, 2 * kMxBlock)));
}

// The three products of a linear layer, each with blocks along its own K: y = x w^T, dx = dy w, dw = dy^T x.
struct LinearLayer {
  int64_t T = 96, N = 80, K = 160;
  Matrix x, w, dy;

  LinearLayer(Rank& rank, bool outliers) {
    x = values(rank.normal({T, K}, DType::f32, "x"));
    w = values(rank.normal({N, K}, DType::f32, "w", 0.05));
    dy = values(rank.normal({T, N}, DType::f32, "dy", 1e-4));
    // Some channels of activations are much larger than the others (Dettmers et al., 2022, arXiv:2208.07339).
    if (outliers)
      for (int64_t t = 0; t < T; ++t) x[static_cast<size_t>(t * K + 3)] *= 1e4;
  }

  struct Products {
    Matrix y, dx, dw;
  };
  Products exact() const {
    return {product(x, w, T, N, K), product(dy, transposed(w, N, K), T, K, N),
            product(transposed(dy, T, N), transposed(x, T, K), N, K, T)};
  }
  Products mx() const {
    return {mx_product(mx_rows(x, T, K), mx_rows(w, N, K)),
            mx_product(mx_rows(dy, T, N), mx_rows(transposed(w, N, K), K, N)),
            mx_product(mx_rows(transposed(dy, T, N), N, T), mx_rows(transposed(x, T, K), K, T))};
  }
  // The blockwise recipe, by the CPU's kernels.
  Products blockwise(Rank& rank) const {
    Stream& s = rank.stream;
    const auto on_rank = [&](const Matrix& of, const Shape& shape) {
      return rank.tensor<float>(shape, std::vector<float>(of.begin(), of.end()));
    };
    const auto quantised = [&](const Matrix& of, int64_t rows, int64_t columns) {
      const kernels::Fp8RowBlocks blocks = kernels::Fp8RowBlocks::empty(s, {}, rows);
      std::pair out{kernels::Fp8Rows::empty(s, rows, columns), kernels::Fp8Columns::empty(s, blocks, columns)};
      kernels::fp8_quantise(s, out.first, out.second, on_rank(of, {rows, columns}), blocks);
      return out;
    };
    const auto [x_rows, x_columns] = quantised(x, T, K);
    const auto [dy_rows, dy_columns] = quantised(dy, T, N);
    const kernels::Fp8Weights weights{s.empty({1, N, K}, DType::f8), s.empty({1, K, N}, DType::f8),
                                      s.empty({1, kernels::fp8_blocks(N), kernels::fp8_blocks(K)}, DType::f32)};
    kernels::fp8_quantise_weights(s, weights, on_rank(w, {1, N, K}));
    const Tensor y = s.empty({T, N}, DType::f32), dx = s.empty({T, K}, DType::f32), dw = s.empty({1, N, K}, DType::f32);
    kernels::fp8_product(s, y, {x_rows, weights}, {});
    kernels::fp8_product(s, dx, {dy_rows, weights, /*turned=*/true}, {});
    kernels::fp8_weight_gradient(s, dw, Write::overwrite, dy_columns, x_columns, {});
    return {values(y), values(dx), values(dw)};
  }
};

constexpr Matrix LinearLayer::Products::*kProducts[] = {&LinearLayer::Products::y, &LinearLayer::Products::dx,
                                                        &LinearLayer::Products::dw};

// Each factor of a product is off by 2^-4 at most, or by an eighth where it saturates.
TEST(Mxfp8, ProductsOfALayerAreCloseToFloat64) {
  Rank rank;
  const LinearLayer layer(rank, /*outliers=*/false);
  const auto exact = layer.exact(), mx = layer.mx();
  for (const auto of : kProducts) {
    EXPECT_LT(relative_error(mx.*of, exact.*of), 0.05);
    EXPECT_GT(relative_error(mx.*of, exact.*of), 0.02) << "operands are rounded";
  }
}

// Scales of float32 use all of E4M3's range, and nothing saturates: that outweighs blocks of 128 numbers. With outliers
// the smaller blocks win in the gradient of weights, whose error is then a tenth larger.
TEST(Mxfp8, TheBlockwiseRecipeIsNoLessExact) {
  for (const bool outliers : {false, true}) {
    SCOPED_TRACE(outliers);
    Rank rank;
    const LinearLayer layer(rank, outliers);
    const auto exact = layer.exact(), mx = layer.mx(), blockwise = layer.blockwise(rank);
    for (const auto of : kProducts)
      EXPECT_LT(relative_error(blockwise.*of, exact.*of), (outliers ? 1.2 : 0.9) * relative_error(mx.*of, exact.*of));
  }
}

}  // namespace
}  // namespace witan
