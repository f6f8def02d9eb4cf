#include "witan/ops/norm.h"

#include "support/gradcheck.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

TEST(RmsNorm, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{2, 3, 70}}) {
    gradcheck(
        rank, "rmsnorm",
        [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::rmsnorm(tape, in[0], in[1], 1e-5)}; },
        {rank.normal(shape, DType::f64, "x"), rank.normal({shape.last()}, DType::f64, "w")});
  }
}

TEST(LayerNorm, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(
      rank, "layernorm",
      [](Tape& tape, const std::vector<Var>& in) {
        return std::vector{ops::layernorm(tape, in[0], in[1], in[2], 1e-5)};
      },
      {rank.normal({3, 5}, DType::f64, "x"), rank.normal({5}, DType::f64, "w"), rank.normal({5}, DType::f64, "b")});
  gradcheck(
      rank, "layernorm",
      [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::layernorm(tape, in[0], in[1], {}, 1e-5)}; },
      {rank.normal({2, 66}, DType::f64, "x"), rank.normal({66}, DType::f64, "w")});
}

TEST(Norm, WrongShapesAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 4}, DType::f32, "x"));
  try {
    ops::rmsnorm(tape, x, tape.input(rank.normal({3}, DType::f32, "w")), 1e-5);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "rmsnorm: w must be [D=4], got [3]");
  }
  EXPECT_THROW(ops::layernorm(tape, x, tape.input(rank.normal({4}, DType::f64, "w")), {}, 1e-5), ShapeError);
}

TEST(Norm, NoRowsAreFine) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.stream.empty({0, 4}, DType::f32)), w = tape.input(rank.normal({4}, DType::f32, "w"));
  const Var y = ops::rmsnorm(tape, x, w, 1e-5);
  tape.backward({{y, {}}});
  EXPECT_EQ(testing::values(tape.gradient(w)), std::vector<double>(4, 0.0));
}

}  // namespace
}  // namespace witan
