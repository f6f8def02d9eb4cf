#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

TEST(ScaledSum, GradientsMatchDifferences) {
  Rank rank;
  const auto normal = [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f64, name); };
  gradcheck(rank, "scaled_sum",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::scaled_sum(tape, {in[0], in[1]}, {in[2], in[3]})};
            },
            {normal({3, 7}, "a"), normal({1}, "wa"), normal({3, 7}, "b"), normal({1}, "wb")});
  gradcheck(rank, "scaled_sum",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::scaled_sum(tape, {in[0], {}}, {in[1], in[2]})};
            },
            {normal({2, 2, 5}, "a"), normal({2, 2, 5}, "b"), normal({1}, "wb")});
  gradcheck(rank, "scaled_sum",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::scaled_sum(tape, {in[0], in[1]})};
            },
            {normal({9}, "a"), normal({1}, "wa")});
}

// A tensor that is both terms gets both gradients; a factor without a gradient does not change those of tensors.
TEST(ScaledSum, GradientsOfOneTensorAddUp) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f64, "x")), w = tape.constant(rank.tensor<double>({1}, {2.5}));
  const Var y = ops::scaled_sum(tape, {x, w}, {x, {}});
  tape.backward({{y, {}}});
  EXPECT_EQ(testing::values(tape.gradient(x)), std::vector<double>(4, 3.5));
}

TEST(ScaledSum, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.normal({2, 3}, DType::f32, "a"));
  const auto with = [&](const Shape& shape, DType dtype) { return tape.input(rank.normal(shape, dtype, "b")); };
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::scaled_sum(tape, {a, {}}, {with({3, 2}, DType::f32), {}});
            }),
            "scaled_sum: a and b must be alike, got float32 [2, 3] and float32 [3, 2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::scaled_sum(tape, {a, with({2}, DType::f32)});
            }),
            "scaled_sum: w must be float32 [1], got float32 [2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::scaled_sum(tape, {a, with({1}, DType::f64)});
            }),
            "scaled_sum: w must be float32 [1], got float64 [1]");
}

}  // namespace
}  // namespace witan
