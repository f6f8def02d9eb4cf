#include "witan/ops/linear.h"

#include "support/gradcheck.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

std::vector<Var> apply(Tape& tape, const std::vector<Var>& in) {
  return {ops::linear(tape, in[0], in[1], in.size() > 2 ? in[2] : Var())};
}

TEST(Linear, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{2, 3, 4}, Shape{6}}) {
    const Tensor x = rank.normal(shape, DType::f64, "x"), w = rank.normal({7, shape.last()}, DType::f64, "w");
    gradcheck(rank, "linear", apply, {x, w});
    gradcheck(rank, "linear", apply, {x, w, rank.normal({7}, DType::f64, "bias")});
  }
}

TEST(Linear, AddsTheBias) {
  Rank rank;
  Tape tape(rank.stream, Tape::Mode::off);
  const Var x = tape.constant(rank.tensor<float>({2, 2}, {1, 2, 3, 4})),
            w = tape.constant(rank.tensor<float>({1, 2}, {10, 1}));
  EXPECT_EQ(values(ops::linear(tape, x, w, {}).value()), (std::vector<double>{12, 34}));
  EXPECT_EQ(values(ops::linear(tape, x, w, tape.constant(rank.tensor<float>({1}, {0.5F}))).value()),
            (std::vector<double>{12.5, 34.5}));
}

TEST(Linear, NoRowsAreFine) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({2, 0, 4}, DType::f32)),
            w = tape.input(rank.normal({3, 4}, DType::f32, "w"));
  const Var y = ops::linear(tape, x, w, {});
  EXPECT_EQ(y.shape(), (Shape{2, 0, 3}));
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(w)), std::vector<double>(12, 0.0));
}

TEST(Linear, WrongShapesAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const auto input = [&](const Shape& shape, DType dtype = DType::f32) {
    return tape.input(rank.normal(shape, dtype, "in"));
  };
  const auto message = [&](const Var& x, const Var& w, const Var& bias) -> std::string {
    try {
      ops::linear(tape, x, w, bias);
    } catch (const ShapeError& e) {
      return e.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message(input({2, 4}), input({3, 5}), {}), "linear: w must be [N, K=4], got [3, 5]");
  EXPECT_EQ(message(input({2, 4}), input({4}), {}), "linear: w must be [N, K=4], got [4]");
  EXPECT_EQ(message(input({2, 4}), input({3, 4}, DType::f64), {}), "linear: w is float64 but x is float32");
  EXPECT_EQ(message(input({2, 4}), input({3, 4}), input({4})), "linear: bias must be [N=3], got [4]");
  EXPECT_EQ(message(input({2, 4}), input({3, 4}), input({3}, DType::bf16)),
            "linear: bias is bfloat16 but x is float32");
  EXPECT_EQ(message(input({}), input({3, 4}), {}), "linear: x must have at least one dim");
}

}  // namespace
}  // namespace witan
