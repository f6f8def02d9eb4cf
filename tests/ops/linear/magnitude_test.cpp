#include <gtest/gtest.h>

#include <cmath>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/linear/linear.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

double entry(const Tensor& matrix, int64_t row, int64_t column) {
  return testing::values(matrix)[static_cast<size_t>(row * matrix.size(1) + column)];
}

// (w + scale b a)[n, k]
double adapted(const Tensor& w, const Tensor& a, const Tensor& b, double scale, int64_t n, int64_t k) {
  double sum = entry(w, n, k);
  for (int64_t j = 0; j < a.size(0); ++j) sum += scale * entry(b, n, j) * entry(a, j, k);
  return sum;
}

TEST(RowSquares, AreThoseOfTheMatrixAndOfTheAdaptedMatrix) {
  Rank rank;
  constexpr double kScale = 1.75;
  for (const auto& [dtype, tolerance] : {std::pair(DType::f64, 1e-13), {DType::f32, 1e-5}, {DType::bf16, 1e-5}}) {
    const Tensor w = rank.normal({7, 11}, dtype, "w"), a = rank.normal({3, 11}, dtype, "a"),
                 b = rank.normal({7, 3}, dtype, "b");
    const Tensor squares = ops::row_squares(rank.stream, w, a, b, kScale);
    ASSERT_EQ(squares.shape(), (Shape{2, 7}));
    ASSERT_EQ(squares.dtype(), accumulator(dtype));
    for (int64_t n = 0; n < 7; ++n) {
      double base = 0, both = 0;
      for (int64_t k = 0; k < 11; ++k) {
        base += std::pow(entry(w, n, k), 2);
        both += std::pow(adapted(w, a, b, kScale, n, k), 2);
      }
      EXPECT_NEAR(entry(squares, 0, n), base, tolerance * base) << dtype << ' ' << n;
      EXPECT_NEAR(entry(squares, 1, n), both, tolerance * (base + both)) << dtype << ' ' << n;
    }
  }
}

TEST(RowSquares, OfFactorsOfZerosAreTheMatrixsToTheBit) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor squares = ops::row_squares(rank.stream, rank.normal({5, 9}, dtype, "w"),
                                            rank.normal({2, 9}, dtype, "a"), rank.stream.zeros({5, 2}, dtype), 3);
    for (int64_t n = 0; n < 5; ++n) EXPECT_EQ(entry(squares, 1, n), entry(squares, 0, n)) << dtype;
  }
}

// Positive numbers in the place of squares.
Tensor squares_of(Rank& rank, int64_t n, const char* name) {
  const Tensor squares = rank.normal({2, n}, DType::f64, name);
  for (double& value : squares.span<double>()) value = 0.5 + value * value;
  return squares;
}

TEST(RescaleColumns, MultipliesColumnsByTheRatioOfMagnitudes) {
  Rank rank;
  const Tensor y = rank.normal({3, 6}, DType::f64, "y"), change = rank.normal({2}, DType::f64, "change"),
               squares = squares_of(rank, 2, "squares");
  Tape tape(rank.stream, Tape::Mode::off);
  const Tensor out = ops::rescale_columns(tape, tape.constant(y), {{tape.constant(change), squares, 3}}).value();
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t n = 0; n < 6; ++n) {
      const bool scaled = n == 3 || n == 4;
      const double factor = scaled ? (std::sqrt(entry(squares, 0, n - 3)) + change.data<double>()[n - 3]) /
                                         std::sqrt(entry(squares, 1, n - 3))
                                   : 1;
      EXPECT_DOUBLE_EQ(entry(out, t, n), factor * entry(y, t, n)) << t << ' ' << n;
    }
}

TEST(RescaleColumns, GradientsMatchDifferences) {
  Rank rank;
  const Tensor first = squares_of(rank, 3, "first"), second = squares_of(rank, 2, "second");
  gradcheck(rank, "rescale_columns",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::rescale_columns(tape, in[0], {{in[1], first, 0}, {in[2], second, 5}})};
            },
            {rank.normal({2, 3, 7}, DType::f64, "y"), rank.normal({3}, DType::f64, "one"),
             rank.normal({2}, DType::f64, "other")});
}

TEST(RescaleColumns, AnUnchangedMagnitudeChangesNoBit) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor w = rank.normal({5, 9}, dtype, "w"), y = rank.normal({4, 5}, dtype, "y");
    const Tensor squares =
        ops::row_squares(rank.stream, w, rank.normal({2, 9}, dtype, "a"), rank.stream.zeros({5, 2}, dtype), 3);
    Tape tape(rank.stream, Tape::Mode::off);
    const Var change = tape.constant(rank.stream.zeros({5}, dtype));
    EXPECT_EQ(testing::values(ops::rescale_columns(tape, tape.constant(y), {{change, squares, 0}}).value()),
              testing::values(y))
        << dtype;
  }
}

// Such as an output projection that begins at 0.
TEST(RescaleColumns, RowsOfZerosGiveZerosWithoutAGradientOfTheirMagnitude) {
  Rank rank;
  Tape tape(rank.stream);
  testing::TestLeaf change(rank.stream, rank.normal({2}, DType::f64, "change"));
  const Var out = ops::rescale_columns(tape, tape.input(rank.stream.zeros({3, 2}, DType::f64)),
                                       {{tape.parameter(change), rank.stream.zeros({2, 2}, DType::f64), 0}});
  EXPECT_EQ(testing::values(out.value()), std::vector<double>(6, 0));
  tape.backward({{out, {}}});
  EXPECT_EQ(testing::values(change.gradient()), std::vector<double>(2, 0));
}

TEST(RescaleColumns, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto zeros = [&](const Shape& shape, DType dtype = DType::f32) { return rank.stream.zeros(shape, dtype); };
  const Var y = tape.constant(zeros({4, 6}));
  const auto message = [&](const Tensor& change, const Tensor& squares, int64_t first) {
    return test::message_of<ShapeError>([&] {
      ops::rescale_columns(tape, y, {{tape.constant(change), squares, first}});
    });
  };
  EXPECT_EQ(message(zeros({2}), zeros({2, 3}), 0),
            "rescale_columns: a change must be [n] of y's dtype with squares [2, n], got float32 [2] and [2, 3]");
  EXPECT_EQ(message(zeros({2}, DType::bf16), zeros({2, 2}), 0),
            "rescale_columns: a change must be [n] of y's dtype with squares [2, n], got bfloat16 [2] and [2, 2]");
  EXPECT_EQ(message(zeros({2}), zeros({2, 2}), 5), "rescale_columns: 2 columns from 5 on are not those of y [4, 6]");
}

}  // namespace
}  // namespace witan
