#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/overlap.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using ::testing::HasSubstr;
using testing::Rank;
using testing::values;

TEST(BatchHalves, GradientsMatchDifferences) {
  Rank rank;
  const Tensor x = rank.normal({4, 3, 2}, DType::f64, "x");
  gradcheck(rank, "split_batch",
            [](Tape& tape, const std::vector<Var>& in) {
              const auto halves = ops::split_batch(tape, in[0]);
              return std::vector{halves[0], halves[1]};
            },
            {x});
  gradcheck(rank, "join_batch",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::join_batch(tape, {in[0], in[1]})};
            },
            {rank.normal({2, 3}, DType::f64, "a"), rank.normal({2, 3}, DType::f64, "b")});
}

TEST(BatchHalves, AreViewsThatJoinToTheWhole) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({6, 5}, DType::f32, "x"));
  const auto halves = ops::split_batch(tape, x);
  EXPECT_EQ(halves[0].value().raw(), x.value().raw());
  EXPECT_EQ(halves[1].shape(), (Shape{3, 5}));
  EXPECT_EQ(values(ops::join_batch(tape, halves).value()), values(x.value()));
}

TEST(BatchHalves, UnusedHalvesHaveNoGradient) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 2}, DType::f64, "x"));
  const auto halves = ops::split_batch(tape, x);
  tape.backward({{halves[1], {}}});
  EXPECT_EQ(values(tape.gradient(x)), (std::vector<double>{0, 0, 1, 1}));
}

TEST(BatchHalves, RefuseShapesThatDoNotFit) {
  Rank rank;
  Tape tape(rank.stream);
  const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f64, "x")); };
  EXPECT_THAT(message_of<ShapeError>([&] {
                ops::split_batch(tape, var({3, 2}));
              }),
              HasSubstr("have an even number of rows, got [3, 2]"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                ops::join_batch(tape, {var({1, 2}), var({2, 2})});
              }),
              HasSubstr("halves must be alike and contiguous, got [1, 2] and [2, 2]"));
}

}  // namespace
}  // namespace witan
