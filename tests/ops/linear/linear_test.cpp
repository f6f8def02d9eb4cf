#include "witan/ops/linear/linear.h"

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
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

TEST(Linear, AcceptsNoRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({2, 0, 4}, DType::f32)),
            w = tape.input(rank.normal({3, 4}, DType::f32, "w"));
  const Var y = ops::linear(tape, x, w, {});
  EXPECT_EQ(y.shape(), (Shape{2, 0, 3}));
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(w)), std::vector<double>(12, 0.0));
}

TEST(AddBias, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 4}, Shape{6}})
    gradcheck(rank, "add_bias",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::add_bias(tape, in[0], in[1])}; },
              {rank.normal(shape, DType::f64, "x"), rank.normal({shape.last()}, DType::f64, "bias")});
}

TEST(AddBias, AddsTheBiasToEachRow) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.tensor<float>({2, 2}, {1, 2, 3, 4})),
            none = tape.input(rank.stream.empty({0, 2}, DType::f32)),
            bias = tape.input(rank.tensor<float>({2}, {10, 20}));
  EXPECT_EQ(values(ops::add_bias(tape, x, bias).value()), (std::vector<double>{11, 22, 13, 24}));
  EXPECT_EQ(ops::add_bias(tape, none, bias).shape(), (Shape{0, 2}));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::add_bias(tape, x, tape.input(rank.normal({3}, DType::f32, "b"))); }),
            "add_bias: bias must be [N=2], got [3]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::add_bias(tape, x, tape.input(rank.normal({2}, DType::bf16, "b"))); }),
            "add_bias: bias is bfloat16 but x is float32");
}

TEST(WideLinear, GradientsMatchDifferences) {
  Rank rank;
  const auto wide = [](Tape& tape, const std::vector<Var>& in) {
    return std::vector{ops::wide_linear(tape, in[0], in[1])};
  };
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{2, 3, 4}, Shape{6}})
    gradcheck(rank, "wide_linear", wide,
              {rank.normal(shape, DType::f64, "x"), rank.normal({7, shape.last()}, DType::f64, "w")});
}

// Expects the bits of a cast, a product in float32, and a cast of its gradient back.
TEST(WideLinear, MultipliesBfloat16AsFloat32) {
  Rank rank;
  const Tensor x_value = rank.normal({2, 5, 48}, DType::bf16, "x"), w_value = rank.normal({9, 48}, DType::f32, "w");
  const Tensor dy = rank.normal({2, 5, 9}, DType::f32, "dy");
  struct Results {
    std::vector<double> y, dx, dw;
    bool operator==(const Results&) const = default;
  };
  const auto run = [&](const auto& op) {
    Tape tape(rank.stream);
    const Var x = tape.input(x_value), w = tape.input(w_value), y = op(tape, x, w);
    EXPECT_EQ(y.dtype(), DType::f32);
    tape.backward({{y, dy}});
    EXPECT_EQ(tape.gradient(x).dtype(), DType::bf16);
    return Results{values(y.value()), values(tape.gradient(x)), values(tape.gradient(w))};
  };
  EXPECT_EQ(run(ops::wide_linear), run([](Tape& tape, const Var& x, const Var& w) {
              return ops::linear(tape, ops::cast(tape, x, DType::f32), w, {});
            }));
}

TEST(WideLinear, AcceptsNoRows) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({0, 4}, DType::bf16)),
            w = tape.input(rank.normal({3, 4}, DType::f32, "w"));
  const Var y = ops::wide_linear(tape, x, w);
  EXPECT_EQ(y.shape(), (Shape{0, 3}));
  tape.backward({{y, {}}});
  EXPECT_EQ(values(tape.gradient(w)), std::vector<double>(12, 0.0));
}

TEST(WideLinear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto message = [&](const Tensor& x, const Tensor& w) {
    return message_of<ShapeError>([&] { ops::wide_linear(tape, tape.input(x), tape.input(w)); });
  };
  const auto some = [&](const Shape& shape, DType dtype) { return rank.normal(shape, dtype, "in"); };
  EXPECT_EQ(message(some({2, 4}, DType::bf16), some({3, 5}, DType::f32)),
            "wide_linear: w must be [N, K=4], got [3, 5]");
  EXPECT_EQ(message(some({}, DType::bf16), some({3, 5}, DType::f32)), "wide_linear: x must have at least one dim");
  EXPECT_EQ(message(some({2, 4}, DType::bf16), some({3, 4}, DType::bf16)),
            "wide_linear: w is bfloat16 but x is bfloat16, which is summed in float32");
  EXPECT_EQ(message(some({2, 8}, DType::bf16).narrow(1, 0, 4), some({3, 4}, DType::f32)),
            "wide_linear: x and w must be floating and contiguous, got bfloat16 [2, 4] and float32 [3, 4]");
}

TEST(Linear, ErrorsNameWrongShapes) {
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

// Separate weights, and rows of one matrix, which are multiplied at once.
TEST(JoinedLinear, GradientsMatchDifferences) {
  Rank rank;
  const Tensor both = rank.normal({5, 4}, DType::f64, "w");
  const std::vector<std::vector<Tensor>> pairs = {{both.narrow(0, 0, 2), both.narrow(0, 2, 3)},
                                                  {rank.normal({2, 4}, DType::f64, "a"), both.narrow(0, 2, 3)}};
  for (const auto& weights : pairs)
    gradcheck(rank, "joined_linear",
              [](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::joined_linear(tape, in[0], {in[1], in[2]})};
              },
              {rank.normal({2, 3, 4}, DType::f64, "x"), weights[0], weights[1]});
}

TEST(BlockLinear, MultipliesEachBlockByItsRows) {
  Rank rank;
  const Tensor x = rank.normal({2, 3, 8}, DType::f64, "x"), w = rank.normal({6, 4}, DType::f64, "w");
  gradcheck(
      rank, "block_linear",
      [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::block_linear(tape, in[0], in[1], 2)}; },
      {x, w});
  Tape tape(rank.stream, Tape::Mode::off);
  const auto y = testing::values(ops::block_linear(tape, tape.constant(x), tape.constant(w), 2).value());
  const auto from = testing::values(x), by = testing::values(w);
  for (size_t t = 0; t < 6; ++t)
    for (size_t n = 0; n < 6; ++n) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += from[t * 8 + n / 3 * 4 + k] * by[n * 4 + k];
      EXPECT_NEAR(y[t * 6 + n], sum, 1e-12);
    }
  EXPECT_THROW(ops::block_linear(tape, tape.constant(x), tape.constant(w), 3), ShapeError);
}

}  // namespace
}  // namespace witan
