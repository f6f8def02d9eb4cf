#include "witan/ops/shape/shape.h"

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

Var joined(Tape& tape, const std::vector<Var>& in) {
  return ops::join_columns(tape, in[0], in[1]);
}

TEST(JoinColumns, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "join_columns", [&](Tape& tape, const std::vector<Var>& in) { return std::vector{joined(tape, in)}; },
            {rank.normal({2, 3, 4}, DType::f64, "a"), rank.normal({2, 3, 5}, DType::f64, "b")});
}

TEST(JoinColumns, ConcatenatesRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor a = rank.normal({2, 3, 2}, DType::f32, "a"), b = rank.normal({2, 3, 1}, DType::f32, "b");
  const Var y = joined(tape, {tape.input(a), tape.input(b)});
  EXPECT_EQ(y.shape(), (Shape{2, 3, 3}));
  const auto all = values(y.value()), of_a = values(a), of_b = values(b);
  for (size_t t = 0; t < 6; ++t) {
    EXPECT_EQ(all[t * 3], of_a[t * 2]);
    EXPECT_EQ(all[t * 3 + 1], of_a[t * 2 + 1]);
    EXPECT_EQ(all[t * 3 + 2], of_b[t]);
  }
}

TEST(JoinColumns, RefusesDifferentNumbersOfRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.normal({2, 2}, DType::f32, "a")), b = tape.input(rank.normal({3, 2}, DType::f32, "b"));
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::join_columns(tape, a, b); }),
            "join_columns: a [2, 2] and b [3, 2] must have equal rows and one dtype");
}

TEST(TakePart, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t part : {0, 1, 2})
    gradcheck(rank, "take_part",
              [&](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::take_part(tape, in[0], part)}; },
              {rank.normal({2, 3, 4}, DType::f64, "x")});
}

TEST(TakePart, TakesThePart) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({2, 3, 4}, DType::f32, "x");
  const auto all = values(x), part = values(ops::take_part(tape, tape.input(x), 2).value());
  for (size_t a = 0; a < 2; ++a)
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(part[a * 4 + i], all[a * 12 + 8 + i]);
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::take_part(tape, tape.input(x), 3); }),
            "take_part: part 3 of x, which must be [A, N > 3, I], got [2, 3, 4]");
}

TEST(SplitParts, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "split_parts", [](Tape& tape, const std::vector<Var>& in) { return ops::split_parts(tape, in[0]); },
            {rank.normal({2, 3, 4}, DType::f64, "x")});
}

// A part without a gradient adds none.
TEST(SplitParts, AreTheParts) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({2, 3, 4}, DType::f32, "x");
  const Var in = tape.input(x);
  const std::vector<Var> parts = ops::split_parts(tape, in);
  ASSERT_EQ(parts.size(), 3U);
  for (int64_t n = 0; n < 3; ++n)
    EXPECT_EQ(values(parts[static_cast<size_t>(n)].value()), values(ops::take_part(tape, tape.input(x), n).value()));
  const Tensor dy = rank.normal({2, 4}, DType::f32, "dy");
  tape.backward({{parts[1], dy}});
  const auto gradient = values(tape.gradient(in)), expected = values(dy);
  for (size_t i = 0; i < gradient.size(); ++i)
    EXPECT_EQ(gradient[i], i / 4 % 3 == 1 ? expected[i / 12 * 4 + i % 4] : 0) << i;
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::split_parts(tape, parts[0]); }),
            "split_parts: x must be [A, N, I] and contiguous, got [2, 4]");
}

TEST(TakeRows, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t part : {0, 2})
    gradcheck(rank, "take_rows",
              [&](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::take_rows(tape, in[0], 3, part)}; },
              {rank.normal({6, 2}, DType::f64, "x")});
}

// The gradient of 16-bit rows has the accumulator's digits.
TEST(TakeRows, TakesThePartAndKeepsItsGradientWide) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({6, 2}, DType::bf16, "x");
  const Var in = tape.input(x), y = ops::take_rows(tape, in, 3, 1);
  EXPECT_EQ(values(y.value()), values(x.narrow(0, 2, 2)));
  const Tensor dy = rank.normal({2, 2}, DType::f32, "dy");
  tape.backward({{y, dy}});
  const auto gradient = values(tape.gradient(in)), expected = values(dy);
  for (size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(gradient[i], i >= 4 && i < 8 ? expected[i - 4] : 0) << i;
  EXPECT_EQ(ops::take_rows(tape, in, 1, 0).value().raw(), x.raw());
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::take_rows(tape, in, 4, 0); }),
            "take_rows: part 0 of 4 equal parts of x [6, 2]");
}

TEST(Reshape, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "reshape",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::reshape(tape, in[0], {3, 2, 2})};
            },
            {rank.normal({4, 3}, DType::f64, "x")});
}

TEST(Reshape, SharesTheElements) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4, 3}, DType::f32, "x"));
  EXPECT_EQ(ops::reshape(tape, x, {12}).value().raw(), x.value().raw());
  EXPECT_THROW(ops::reshape(tape, x, {5}), ShapeError);
}

}  // namespace

}  // namespace witan
