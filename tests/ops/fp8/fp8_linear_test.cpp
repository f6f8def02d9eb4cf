#include <functional>

#include "support/message_of.h"
#include "support/rank.h"
#include "witan/autograd/recompute.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/fp8/fp8_products.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::Rank;
using testing::values;

RowGroups make_groups(Rank& rank, const std::vector<int64_t>& begin, const std::vector<int64_t>& count) {
  return {rank.tensor<int64_t>({std::ssize(begin)}, begin), rank.tensor<int64_t>({std::ssize(count)}, count)};
}

// The norm of a - b relative to that of b.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> left = values(a), right = values(b);
  EXPECT_EQ(left.size(), right.size());
  double apart = 0, size = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    apart += (left[i] - right[i]) * (left[i] - right[i]);
    size += right[i] * right[i];
  }
  return std::sqrt(apart / size);
}

struct Results {
  Tensor y, dx, dw;
};
using Map = std::function<Var(Tape&, const Var& x, const Var& w)>;

Results run(Rank& rank, const Map& map, const Tensor& x, const Tensor& w, const Tensor& dy) {
  Tape tape(rank.stream);
  const Var in = tape.input(x), by = tape.input(w), y = map(tape, in, by);
  const Tensor result = y.value();
  tape.backward({{y, dy}});
  return {result, tape.gradient(in), tape.gradient(by)};
}

// Each operand of a product has a relative rounding error of up to 2^-4: together 3.7 % for uniform mantissas.
void expect_near(const Results& got, const Results& want) {
  constexpr double kLost = 0.045;
  EXPECT_LT(distance(got.y, want.y), kLost);
  EXPECT_LT(distance(got.dx, want.dx), kLost);
  EXPECT_LT(distance(got.dw, want.dw), kLost);
  EXPECT_GT(distance(got.y, want.y), 0.005) << "nothing was rounded";
}

TEST(Fp8Linear, MatchesLinearUpToRounding) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Rank rank;
    const Tensor x = rank.normal({3, 50, 272}, dtype, "x"), w = rank.normal({144, 272}, dtype, "w"),
                 dy = rank.normal({3, 50, 144}, dtype, "dy");
    expect_near(run(
                    rank, [](Tape& t, const Var& a, const Var& b) { return ops::fp8_linear(t, a, b); }, x, w, dy),
                run(
                    rank, [](Tape& t, const Var& a, const Var& b) { return ops::linear(t, a, b, {}); }, x, w, dy));
  }
}

TEST(Fp8GroupedLinear, MatchesGroupedLinearUpToRounding) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Rank rank;
    const RowGroups groups = make_groups(rank, {170, 0, 0, 169}, {130, 169, 0, 1});
    const Tensor x = rank.normal({300, 272}, dtype, "x"), w = rank.normal({4, 144, 272}, dtype, "w"),
                 dy = rank.normal({300, 144}, dtype, "dy");
    expect_near(
        run(
            rank, [&](Tape& t, const Var& a, const Var& b) { return ops::fp8_grouped_linear(t, a, groups, b); }, x, w,
            dy),
        run(
            rank, [&](Tape& t, const Var& a, const Var& b) { return ops::grouped_linear(t, a, groups, b); }, x, w, dy));
  }
}

// A single group of all rows has the bits of a plain product.
TEST(Fp8GroupedLinear, OneExpertHasTheBitsOfFp8Linear) {
  Rank rank;
  const Tensor x = rank.normal({150, 144}, DType::bf16, "x"), w = rank.normal({1, 160, 144}, DType::bf16, "w"),
               dy = rank.normal({150, 160}, DType::bf16, "dy");
  const RowGroups groups = make_groups(rank, {0}, {150});
  const Results stack = run(
      rank, [&](Tape& t, const Var& a, const Var& b) { return ops::fp8_grouped_linear(t, a, groups, b); }, x, w, dy);
  const Results plain = run(
      rank, [](Tape& t, const Var& a, const Var& b) { return ops::fp8_linear(t, a, b); }, x, w.reshape({160, 144}), dy);
  EXPECT_EQ(values(stack.y), values(plain.y));
  EXPECT_EQ(values(stack.dx), values(plain.dx));
  EXPECT_EQ(values(stack.dw), values(plain.dw));
}

// Neither recomputation nor an input or weight without a gradient changes a bit.
TEST(Fp8Linear, RecomputationChangesNoBit) {
  Rank rank;
  const Tensor x = rank.normal({140, 32}, DType::bf16, "x"), w = rank.normal({48, 32}, DType::bf16, "w"),
               dy = rank.normal({140, 48}, DType::bf16, "dy");
  const auto doubled = [](Tape& t, const std::vector<Var>& in) { return ops::scale(t, in[0], 2); };
  const auto plain = [&](Tape& t, const Var& a, const Var& b) { return ops::fp8_linear(t, doubled(t, {a}), b); };
  const auto selective = [&](Tape& t, const Var& a, const Var& b) {
    return ops::fp8_linear(t, rematerialised(t, {a}, doubled), b);
  };
  const auto full = [&](Tape& t, const Var& a, const Var& b) {
    return recomputed(t, {a, b},
                      [&](Tape& on, const std::vector<Var>& in) { return std::vector{plain(on, in[0], in[1])}; })[0];
  };
  const Results want = run(rank, plain, x, w, dy);
  for (const Map& map : {Map(selective), Map(full)}) {
    const Results got = run(rank, map, x, w, dy);
    EXPECT_EQ(values(got.y), values(want.y));
    EXPECT_EQ(values(got.dx), values(want.dx));
    EXPECT_EQ(values(got.dw), values(want.dw));
  }
  for (const bool weight : {false, true}) {
    Tape tape(rank.stream);
    const Var in = weight ? tape.constant(x) : tape.input(x), by = weight ? tape.input(w) : tape.constant(w);
    const Var y = plain(tape, in, by);
    tape.backward({{y, dy}});
    EXPECT_EQ(values(tape.gradient(weight ? by : in)), values(weight ? want.dw : want.dx));
  }
}

// The backward keeps a byte per number of x, in whole blocks of rows, and their scales.
TEST(Fp8Linear, BackwardKeepsOneBytePerNumber) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor w = rank.normal({128, 256}, DType::bf16, "w");
  const Var by = tape.input(w);
  const int64_t before = rank.stream.arena().live();
  Var y;
  {
    const Var x = tape.constant(rank.normal({1024, 256}, DType::bf16, "x"));
    y = ops::fp8_linear(tape, x, by);
  }
  EXPECT_EQ(rank.stream.arena().live() - before, 1024 * 128 * 2 + 1024 * 256 + 1024 / 128 * 256 * 4);
}

TEST(Fp8Linear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto var = [&](const Shape& shape, DType dtype) { return tape.input(rank.normal(shape, dtype, "v")); };
  const auto linear = [&](const Shape& x, const Shape& w, DType dtype) {
    return message_of<ShapeError>([&] { ops::fp8_linear(tape, var(x, dtype), var(w, dtype)); });
  };
  EXPECT_EQ(linear({4, 32}, {16, 48}, DType::f32), "fp8_linear: w must be [N, K=32], got [16, 48]");
  EXPECT_EQ(linear({4, 40}, {16, 40}, DType::f32), "fp8_linear: N=16 and K=40 must be multiples of 16");
  EXPECT_EQ(linear({4, 32}, {8, 32}, DType::f32), "fp8_linear: N=8 and K=32 must be multiples of 16");
  EXPECT_EQ(linear({4, 32}, {16, 32}, DType::f64), "fp8_linear: results are float32 or bfloat16, got x of float64");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::fp8_grouped_linear(tape, var({4, 32}, DType::f32), {}, var({2, 16, 32}, DType::f32));
            }),
            "fp8_grouped_linear: groups.begin and groups.count must be int64 [E=2]");
}

}  // namespace
}  // namespace witan
