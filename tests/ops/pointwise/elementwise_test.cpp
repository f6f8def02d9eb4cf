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

TEST(Add, AddsAValueToItself) {
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

TEST(Sum, EmptySumIsZero) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({0, 3}, DType::bf16));
  const Var y = ops::sum(tape, x);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_EQ(values(y.value()), std::vector<double>{0});
  tape.backward({{y, {}}});
  EXPECT_EQ(tape.gradient(x).shape(), (Shape{0, 3}));
}

TEST(Elementwise, ErrorsNameWrongShapes) {
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

TEST(Clamp, GradientsMatchDifferences) {
  Rank rank;
  testing::gradcheck(rank, "clamp",
                     [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::clamp(tape, in[0], 0.5)}; },
                     {rank.normal({3, 41}, DType::f64, "x")});
}

// As with torch.clamp, a value on a bound passes its gradient on.
TEST(Clamp, GradientsPassOnTheBounds) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = rank.stream.empty({5}, dtype), dy = rank.stream.empty({5}, dtype);
    dispatch_floating(dtype, [&]<class T>() {
      constexpr float kValues[] = {-3, -2, 0.5, 2, 2.5};
      for (size_t i = 0; i < 5; ++i) x.data<T>()[i] = T(kValues[i]), dy.data<T>()[i] = T(float(i + 1));
    });
    Tape tape(rank.stream);
    const Var in = tape.input(x), y = ops::clamp(tape, in, 2);
    tape.backward({{y, dy}});
    EXPECT_EQ(values(y.value()), (std::vector<double>{-2, -2, 0.5, 2, 2})) << dtype;
    EXPECT_EQ(values(tape.gradient(in)), (std::vector<double>{0, 2, 3, 4, 0})) << dtype;
  }
}

TEST(Clamp, ErrorsNameWrongArguments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 4}, DType::f32, "x"));
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::clamp(tape, x, 0); }), "clamp: the bound must be above 0, got 0");
}

TEST(RowGate, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 10}, Shape{1, 1}, Shape{2, 2, 7}})
    gradcheck(rank, "row_gate",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::row_gate(tape, in[0], in[1])}; },
              {rank.normal(shape, DType::f64, "x"), rank.normal(shape.with(shape.dims() - 1, 1), DType::f64, "gate")});
}

TEST(SigmoidGate, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 10}, Shape{1, 1}, Shape{2, 2, 7}})
    gradcheck(rank, "sigmoid_gate",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::sigmoid_gate(tape, in[0], in[1])}; },
              {rank.normal(shape, DType::f64, "x"), rank.normal(shape, DType::f64, "gate")});
}

TEST(SigmoidGate, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 3}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::sigmoid_gate(tape, x, tape.input(rank.normal({2}, DType::f32, "g"))); }),
            "sigmoid_gate: gate must be contiguous and float32 [2, 3], got float32 [2]");
}

TEST(RowGate, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 3}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::row_gate(tape, x, tape.input(rank.normal({2}, DType::f32, "g"))); }),
            "row_gate: gate must be float32 [2, 1], got float32 [2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::row_gate(tape, x, tape.input(rank.normal({2, 1}, DType::f64, "g")));
            }),
            "row_gate: gate must be float32 [2, 1], got float64 [2, 1]");
}

TEST(ScaleOver, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "scale_over",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::scale_over(tape, in[0], 0.7)}; },
            {rank.normal({3, 7}, DType::f64, "x", 2)});
}

TEST(ScaleOver, OverwritesWhatIsMovedIn) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({5}, DType::f64, "x"));
  Var twice = ops::scale(tape, x, 2);
  const std::byte* const place = twice.value().raw();
  EXPECT_EQ(ops::scale_over(tape, std::move(twice), 3).value().raw(), place);
  EXPECT_NE(ops::scale_over(tape, x, 3).value().raw(), x.value().raw());
}

TEST(SoftCap, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "soft_cap",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::soft_cap(tape, in[0], 0.7, 1.5)}; },
            {rank.normal({3, 7}, DType::f64, "x", 2)});
}

// Logits that nothing else holds are overwritten.
TEST(SoftCap, OverwritesLogitsThatAreMovedIn) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({5}, DType::f64, "x"));
  Var twice = ops::scale(tape, x, 2);
  const std::byte* const place = twice.value().raw();
  EXPECT_EQ(ops::soft_cap(tape, std::move(twice), 1, 3).value().raw(), place);
  EXPECT_NE(ops::soft_cap(tape, x, 1, 3).value().raw(), x.value().raw());
}

TEST(SoftCap, ErrorsNameWrongArguments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({5}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::soft_cap(tape, x, 1, 0); }),
            "soft_cap: the bound must be above 0, got 0");
}

}  // namespace

}  // namespace witan
