#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

TEST(RowGate, GradientsMatchDifferences) {
  Rank rank;
  for (const Shape& shape : {Shape{3, 10}, Shape{1, 1}, Shape{2, 2, 7}})
    gradcheck(rank, "row_gate",
              [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::row_gate(tape, in[0], in[1])}; },
              {rank.normal(shape, DType::f64, "x"), rank.normal(shape.with(shape.dims() - 1, 1), DType::f64, "gate")});
}

TEST(RowGate, WrongShapesAreNamed) {
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

}  // namespace
}  // namespace witan
