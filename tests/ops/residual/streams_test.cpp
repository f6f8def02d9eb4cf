// Parallel residual streams against loops in float64, and their gradients against differences.
#include "witan/ops/residual/streams.h"

#include <gmock/gmock.h>

#include <cmath>

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using kernels::StreamMixing;
using test::message_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

constexpr double kEps = 1e-5;

struct StreamCase {
  StreamCase(Rank& rank, int64_t T, int64_t D, const StreamMixing& of, bool mixes = true, DType dtype = DType::f64)
      : mixing(of),
        C(mixes ? of.streams * (of.streams + 2) : of.streams),
        x(rank.normal({T, of.streams * D}, dtype, "x")),
        y(rank.normal({T, D}, dtype, "y")),
        w(rank.normal({C, of.streams * D}, accumulator(dtype), "w")),
        base(rank.normal({C}, accumulator(dtype), "base")),
        scale(rank.normal({mixes ? 3 : 1}, accumulator(dtype), "scale")) {}

  StreamMixing mixing;
  int64_t C;
  Tensor x, y, w, base, scale;
};

struct Expected {
  std::vector<double> y, out;  // what is read, and the streams after y was written
  std::vector<std::vector<double>> matrices;
};

// The formulas of arXiv:2512.24880 as DeepSeek-V4 has them, token by token.
Expected streams_by_hand(const StreamCase& in) {
  const auto x = values(in.x), added = values(in.y), w = values(in.w), base = values(in.base), scale = values(in.scale);
  const auto n = static_cast<size_t>(in.mixing.streams), W = static_cast<size_t>(in.x.size(1)), D = W / n,
             T = static_cast<size_t>(in.x.size(0)), C = static_cast<size_t>(in.C);
  const double eps = in.mixing.eps;
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  Expected out{std::vector<double>(T * D), std::vector<double>(T * W), {}};
  for (size_t t = 0; t < T; ++t) {
    double squares = 0;
    for (size_t i = 0; i < W; ++i) squares += x[t * W + i] * x[t * W + i];
    std::vector<double> z(C);
    for (size_t c = 0; c < C; ++c) {
      double sum = 0;
      for (size_t i = 0; i < W; ++i)
        sum += x[t * W + i] / std::sqrt(squares / static_cast<double>(W) + kEps) * w[c * W + i];
      z[c] = sum * scale[c < n ? 0 : c < 2 * n ? 1 : 2] + base[c];
    }
    for (size_t k = 0; k < n; ++k)
      for (size_t d = 0; d < D; ++d) out.y[t * D + d] += (sigmoid(z[k]) + eps) * x[t * W + k * D + d];
    if (C == n) continue;
    std::vector<double> m(n * n);
    for (size_t j = 0; j < n; ++j) {
      double total = 0;
      for (size_t k = 0; k < n; ++k) total += std::exp(z[2 * n + j * n + k]);
      for (size_t k = 0; k < n; ++k) m[j * n + k] = std::exp(z[2 * n + j * n + k]) / total + eps;
    }
    const auto divide = [&](size_t begin, size_t step) {
      for (size_t line = 0; line < n; ++line) {
        double total = eps;
        for (size_t i = 0; i < n; ++i) total += m[line * begin + i * step];
        for (size_t i = 0; i < n; ++i) m[line * begin + i * step] /= total;
      }
    };
    divide(1, n);
    for (int64_t i = 1; i < in.mixing.iterations; ++i) {
      divide(n, 1);
      divide(1, n);
    }
    for (size_t k = 0; k < n; ++k)
      for (size_t d = 0; d < D; ++d) {
        double& to = out.out[t * W + k * D + d];
        to = 2 * sigmoid(z[n + k]) * added[t * D + d];
        for (size_t j = 0; j < n; ++j) to += m[j * n + k] * x[t * W + j * D + d];
      }
    out.matrices.push_back(m);
  }
  return out;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << i;
}

constexpr StreamMixing kMixings[] = {{.streams = 1, .iterations = 1, .eps = 1e-6},
                                     {.streams = 2, .iterations = 3, .eps = 1e-3},
                                     {.streams = 4, .iterations = 20, .eps = 1e-6},
                                     {.streams = 8, .iterations = 32, .eps = 1e-6}};

TEST(Streams, AreReadMixedAndWrittenAsByHand) {
  Rank rank;
  for (const StreamMixing& mixing : kMixings)
    for (const DType dtype : {DType::f64, DType::f32}) {
      const StreamCase in(rank, 5, 37, mixing, true, dtype);
      const Expected expected = streams_by_hand(in);
      const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-5;
      Tape tape(rank.stream, Tape::Mode::off);
      const Var x = tape.constant(in.x);
      const auto [y, mix] = ops::read_streams(
          tape, x, {tape.constant(in.w), tape.constant(in.base), tape.constant(in.scale)}, mixing, kEps);
      expect_near(values(y.value()), expected.y, tolerance);
      expect_near(values(ops::write_streams(tape, x, tape.constant(in.y), mix).value()), expected.out, tolerance);
    }
}

TEST(Streams, MatricesAreDoublyStochastic) {
  Rank rank;
  const StreamMixing mixing{.streams = 4, .iterations = 32, .eps = 1e-9};
  const StreamCase in(rank, 6, 10, mixing);
  Tape tape(rank.stream, Tape::Mode::off);
  const auto mix =
      values(ops::read_streams(tape, tape.constant(in.x),
                               {tape.constant(in.w), tape.constant(in.base), tape.constant(in.scale)}, mixing, kEps)
                 .mix.value());
  for (size_t t = 0; t < 6; ++t)
    for (size_t line = 0; line < 4; ++line) {
      double row = 0, column = 0;
      for (size_t i = 0; i < 4; ++i) {
        row += mix[t * 20 + 4 + line * 4 + i];
        column += mix[t * 20 + 4 + i * 4 + line];
      }
      EXPECT_NEAR(row, 1, 1e-2);
      EXPECT_NEAR(column, 1, 1e-7);
    }
}

TEST(Streams, GradientsMatchDifferences) {
  Rank rank;
  for (const StreamMixing& mixing : kMixings) {
    const StreamCase in(rank, 3, 5, mixing);
    gradcheck(rank, "read_streams",
              [&](Tape& tape, const std::vector<Var>& at) {
                const auto [y, mix] = ops::read_streams(tape, at[0], {at[1], at[2], at[3]}, mixing, kEps);
                return std::vector{y, mix};
              },
              {in.x, in.w, in.base, in.scale});
    gradcheck(rank, "write_streams",
              [](Tape& tape, const std::vector<Var>& at) {
                return std::vector{ops::write_streams(tape, at[0], at[1], at[2])};
              },
              {in.x, in.y, rank.normal({3, mixing.streams * (mixing.streams + 1)}, DType::f64, "mix")});
    gradcheck(rank, "copy_to_streams",
              [&](Tape& tape, const std::vector<Var>& at) {
                return std::vector{ops::copy_to_streams(tape, at[0], mixing.streams)};
              },
              {in.y});
    const StreamCase head(rank, 3, 5, mixing, false);
    gradcheck(rank, "read_streams",
              [&](Tape& tape, const std::vector<Var>& at) {
                return std::vector{ops::read_streams(tape, at[0], {at[1], at[2], at[3]}, mixing, kEps).y};
              },
              {head.x, head.w, head.base, head.scale});
  }
}

// A half that only mixes, or only reads: the other output has no gradient.
TEST(Streams, EitherOutputMayBeUnused) {
  Rank rank;
  const StreamMixing mixing = kMixings[2];
  const StreamCase in(rank, 3, 5, mixing);
  for (const bool reads : {true, false})
    gradcheck(rank, "read_streams",
              [&](Tape& tape, const std::vector<Var>& at) {
                const auto [y, mix] = ops::read_streams(tape, at[0], {at[1], at[2], at[3]}, mixing, kEps);
                return std::vector{reads ? y : mix};
              },
              {in.x, in.w, in.base, in.scale});
}

TEST(Streams, CopiesAreEqual) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const Tensor y = rank.normal({2, 3, 4}, DType::bf16, "y");
  const Var x = ops::copy_to_streams(tape, tape.constant(y), 3);
  ASSERT_EQ(x.shape(), Shape({2, 3, 12}));
  const auto from = values(y), to = values(x.value());
  for (size_t i = 0; i < to.size(); ++i) EXPECT_EQ(to[i], from[i / 12 * 4 + i % 4]);
}

TEST(Streams, RefuseShapesThatDoNotFit) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const StreamCase in(rank, 3, 5, kMixings[2]);
  const auto read = [&](const Tensor& x, const Tensor& w, const StreamMixing& mixing) {
    return message_of<ShapeError>([&] {
      ops::read_streams(tape, tape.constant(x), {tape.constant(w), tape.constant(in.base), tape.constant(in.scale)},
                        mixing, kEps);
    });
  };
  EXPECT_THAT(read(rank.normal({3, 7}, DType::f64, "odd"), in.w, in.mixing), ::testing::HasSubstr("7 channels"));
  EXPECT_THAT(read(in.x, in.w, {.streams = 9}), ::testing::HasSubstr("there are 9"));
  EXPECT_THAT(read(in.x, in.w, {.streams = 4, .iterations = 33}), ::testing::HasSubstr("33 iterations"));
  EXPECT_THAT(read(in.x, rank.normal({23, 20}, DType::f64, "w"), in.mixing), ::testing::HasSubstr("4 or 24 rows"));
  EXPECT_THAT(read(in.x, rank.normal({24, 20}, DType::f32, "w"), in.mixing), ::testing::HasSubstr("must be f"));
  EXPECT_THAT(message_of<ShapeError>([&] { ops::copy_to_streams(tape, tape.constant(in.y), 9); }),
              ::testing::HasSubstr("9 streams"));
  EXPECT_THAT(message_of<ShapeError>(
                  [&] { ops::write_streams(tape, tape.constant(in.x), tape.constant(in.y), tape.constant(in.w)); }),
              ::testing::HasSubstr("mix must be"));
}

}  // namespace
}  // namespace witan
