#include <gtest/gtest.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

// y is overwritten, so that each evaluation needs its own copy.
Var added(Tape& tape, const std::vector<Var>& in, double scale, int64_t first) {
  return ops::add_low_rank(tape, ops::scale(tape, in[0], 1), in[1], in[2], in[3], scale, first);
}

TEST(AddLowRank, GradientsMatchDifferences) {
  Rank rank;
  for (const auto& [columns, first] : {std::pair<int64_t, int64_t>{7, 0}, {3, 4}})
    for (const double scale : {1.0, 2.5})
      gradcheck(rank, "add_low_rank",
                [&](Tape& tape, const std::vector<Var>& in) { return std::vector{added(tape, in, scale, first)}; },
                {rank.normal({2, 3, 7}, DType::f64, "y"), rank.normal({2, 3, 5}, DType::f64, "x"),
                 rank.normal({2, 5}, DType::f64, "a"), rank.normal({columns, 2}, DType::f64, "b")});
}

TEST(AddLowRank, AddsTwoProducts) {
  Rank rank;
  const Tensor y = rank.normal({4, 6}, DType::f64, "y"), x = rank.normal({4, 5}, DType::f64, "x"),
               a = rank.normal({2, 5}, DType::f64, "a"), b = rank.normal({6, 2}, DType::f64, "b");
  std::vector<double> expected = testing::values(y);
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t n = 0; n < 6; ++n)
      for (int64_t k = 0; k < 2; ++k)
        for (int64_t i = 0; i < 5; ++i)
          expected[static_cast<size_t>(t * 6 + n)] +=
              0.5 * b.data<double>()[n * 2 + k] * a.data<double>()[k * 5 + i] * x.data<double>()[t * 5 + i];
  Tape tape(rank.stream, Tape::Mode::off);
  const Var sum = ops::add_low_rank(tape, tape.constant(y), tape.constant(x), tape.constant(a), tape.constant(b), 0.5);
  const std::vector<double> found = testing::values(sum.value());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-13) << i;
}

TEST(AddLowRank, ZeroFactorsChangeNoBit) {
  Rank rank;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor y = rank.normal({3, 6}, dtype, "y");
    const std::vector<double> before = testing::values(y);
    Tape tape(rank.stream, Tape::Mode::off);
    const Tensor zeros = rank.stream.zeros({6, 2}, dtype);
    const Var sum = ops::add_low_rank(tape, tape.constant(y), tape.constant(rank.normal({3, 5}, dtype, "x")),
                                      tape.constant(rank.normal({2, 5}, dtype, "a")), tape.constant(zeros), 4);
    EXPECT_EQ(testing::values(sum.value()), before) << dtype;
  }
}

TEST(AddLowRank, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto zeros = [&](const Shape& shape) { return tape.constant(rank.stream.zeros(shape, DType::f32)); };
  const Var y = zeros({4, 6}), x = zeros({4, 5}), a = zeros({2, 5}), b = zeros({6, 2});
  const auto message = [&](const Var& x_of, const Var& a_of, const Var& b_of, int64_t first) {
    return test::message_of<ShapeError>([&] { ops::add_low_rank(tape, y, x_of, a_of, b_of, 1, first); });
  };
  EXPECT_EQ(message(zeros({3, 5}), a, b, 0),
            "add_low_rank: x must have a row for each row of y, got [3, 5] and [4, 6]");
  EXPECT_EQ(message(x, zeros({2, 4}), b, 0), "add_low_rank: a must be [r, K=5], got [2, 4]");
  EXPECT_EQ(message(x, a, zeros({6, 3}), 0), "add_low_rank: b must be [N, r=2], got [6, 3]");
  EXPECT_EQ(message(x, a, b, 1), "add_low_rank: 6 columns from 1 on are not those of y [4, 6]");
}

}  // namespace
}  // namespace witan
