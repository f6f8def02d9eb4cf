#include "witan/kernels/attention/rope.h"

#include "support/rank.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

Tensor rotated(Rank& rank, const Tensor& x, const Tensor& positions, const kernels::RopeArgs& args) {
  const Tensor y = rank.poisoned(x.shape(), x.dtype());
  kernels::rope(rank.stream, y, rank.poisoned({positions.elements(), args.dims}, accumulator(x.dtype())), x, positions,
                args);
  return y;
}

std::vector<double> reference(const Tensor& x, const Tensor& positions, const kernels::RopeArgs& args) {
  std::vector<double> in = values(x), out = in;
  const int64_t H = x.size(2), hd = x.size(3);
  for (int64_t row = 0; row < static_cast<int64_t>(in.size()) / hd; ++row)
    for (int64_t i = 0; i < args.dims / 2; ++i) {
      const auto a = static_cast<size_t>(row * hd + (args.interleaved ? 2 * i : i));
      const auto b = static_cast<size_t>(row * hd + (args.interleaved ? 2 * i + 1 : i + args.dims / 2));
      const double position = positions.data<int32_t>()[row / H];
      const double angle =
          position * std::pow(args.base, -2.0 * static_cast<double>(i) / static_cast<double>(args.dims));
      const double turned = args.inverse ? -angle : angle;
      out[a] = in[a] * std::cos(turned) - in[b] * std::sin(turned);
      out[b] = in[a] * std::sin(turned) + in[b] * std::cos(turned);
    }
  return out;
}

TEST(Rope, AgreesWithTheFormula) {
  Rank rank;
  // Positions of restarting documents, and of a single decoded token far beyond the number of tokens.
  const Tensor documents = rank.tensor<int32_t>({2, 5}, {0, 1, 2, 3, 4, 0, 1, 0, 1, 2});
  const Tensor late = rank.tensor<int32_t>({2, 1}, {100000, 7});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const bool interleaved : {false, true})
      for (const bool inverse : {false, true})
        for (const int64_t dims : {2, 6, 10})
          for (const Tensor& positions : {documents, late}) {
            SCOPED_TRACE(cat(dtype, " interleaved ", interleaved, " inverse ", inverse, " dims ", dims));
            const kernels::RopeArgs args{10000, dims, interleaved, inverse};
            const Tensor x = rank.normal({2, positions.size(1), 3, 10}, dtype, "x");
            const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-6 : 2e-2;
            EXPECT_TRUE(
                close(values(rotated(rank, x, positions, args)), reference(x, positions, args), tolerance, tolerance));
          }
}

TEST(Rope, PositionZeroAndDimsBeyondTheRotatedOnesAreCopied) {
  Rank rank;
  const Tensor x = rank.normal({1, 2, 2, 8}, DType::f32, "x");
  const Tensor y = rotated(rank, x, rank.tensor<int32_t>({1, 2}, {0, 9}), {10000, 4, false, false});
  const auto in = values(x), out = values(y);
  for (size_t i = 0; i < in.size(); ++i) {
    const bool changes = i >= 16 && i % 8 < 4;
    EXPECT_EQ(out[i] != in[i], changes) << i;
  }
}

TEST(Rope, ScoresDependOnlyOnDistances) {
  Rank rank;
  const Tensor x = rank.normal({1, 2, 1, 16}, DType::f64, "x");
  const auto score = [&](int32_t query, int32_t key) {
    const auto y = values(rotated(rank, x, rank.tensor<int32_t>({1, 2}, {query, key}), {10000, 16, false, false}));
    double dot = 0;
    for (size_t d = 0; d < 16; ++d) dot += y[d] * y[16 + d];
    return dot;
  };
  EXPECT_NEAR(score(5, 2), score(1003, 1000), 1e-10);
  EXPECT_GT(std::abs(score(5, 2) - score(6, 2)), 1e-6);
}

// The factor that scaling applies to sines and cosines is applied by the transpose too, rather than inverted.
TEST(Rope, MagnitudeScalesRotatedChannels) {
  Rank rank;
  const Tensor x = rank.normal({1, 2, 2, 8}, DType::f64, "x"), positions = rank.tensor<int32_t>({1, 2}, {3, 50});
  for (const bool inverse : {false, true}) {
    kernels::RopeArgs args{100, 6, false, inverse};
    std::vector<double> expected = values(rotated(rank, x, positions, args));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] *= i % 8 < 6 ? 1.25 : 1;
    args.scaling.magnitude = 1.25;
    EXPECT_TRUE(close(values(rotated(rank, x, positions, args)), expected, 1e-14, 1e-14));
  }
}

TEST(Rope, AcceptsNoTokens) {
  Rank rank;
  const Tensor y =
      rotated(rank, rank.stream.empty({0, 5, 2, 4}, DType::f32), rank.stream.empty({0, 5}, DType::i32), {10000, 4});
  EXPECT_EQ(y.elements(), 0);
}

TEST(Rope, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto run = [](int threads) {
    Rank rank(threads);
    std::vector<int32_t> positions(300);
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 150);
    return values(
        rotated(rank, rank.normal({2, 150, 4, 34}, DType::f32, "x"), rank.tensor({2, 150}, positions), {10000, 34}));
  };
  EXPECT_EQ(run(1), run(3));
}

}  // namespace
}  // namespace witan
