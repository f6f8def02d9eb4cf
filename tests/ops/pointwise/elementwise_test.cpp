#include "witan/ops/pointwise/elementwise.h"

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(Elementwise, GradientsMatchDifferences) {
  Rank rank;
  const Tensor a = rank.normal({3, 5}, DType::f64, "a"), b = rank.normal({3, 5}, DType::f64, "b");
  gradcheck(rank, "add",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::add(tape, in[0], in[1])}; }, {a, b});
  gradcheck(rank, "scale",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::scale(tape, in[0], -0.7)}; }, {a});
  gradcheck(rank, "cast",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::cast(tape, in[0], DType::f64)}; },
            {a});
  gradcheck(rank, "sum", [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::sum(tape, in[0])}; },
            {a});
  gradcheck(rank, "weighted_sum",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::weighted_sum(tape, {{in[0], 1.0}, {in[1], -0.01}, {in[0], 3.0}})};
            },
            {rank.normal({1}, DType::f64, "x"), rank.normal({1}, DType::f64, "y")});
}

TEST(Add, OfAValueToItself) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4}, DType::f32, "x"));
  tape.backward({{ops::add(tape, x, x), {}}});
  EXPECT_EQ(values(tape.gradient(x)), std::vector<double>(4, 2.0));
}

TEST(Cast, ConvertsTheValueAndTheGradientBack) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({2}, {1 + 1.0f / 512, -3}));
  const Var y = ops::cast(tape, x, DType::bf16);
  EXPECT_EQ(values(y.value()), (std::vector<double>{1, -3}));
  tape.backward({{y, {}}});
  EXPECT_EQ(tape.gradient(x).dtype(), DType::f32);
  EXPECT_EQ(values(tape.gradient(x)), (std::vector<double>{1, 1}));
}

TEST(Sum, OfNothingIsZero) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({0, 3}, DType::bf16));
  const Var y = ops::sum(tape, x);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_EQ(values(y.value()), std::vector<double>{0});
  tape.backward({{y, {}}});
  EXPECT_EQ(tape.gradient(x).shape(), (Shape{0, 3}));
}

TEST(Elementwise, WrongShapesAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.normal({2}, DType::f32, "a")), b = tape.input(rank.normal({3}, DType::f32, "b"));
  const Var ids = tape.constant(rank.tensor<int32_t>({2}, {0, 1}));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::add(tape, a, b); }),
            "add: a and b must be alike, got float32 [2] and float32 [3]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::scale(tape, ids, 2); }),
            "scale: x must be floating and contiguous, got int32 [2]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::cast(tape, a, DType::i32); }),
            "cast: only floating dtypes carry gradients, asked for int32");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::weighted_sum(tape, {}); }), "weighted_sum: at least one term is needed");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::weighted_sum(tape, {{a, 1.0}});
            }),
            "weighted_sum: every term must be [1] float32, got float32 [2]");
}

}  // namespace
}  // namespace witan
