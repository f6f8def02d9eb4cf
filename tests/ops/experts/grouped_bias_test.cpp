#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

// Every row belongs to a group, so that every output is defined; the groups are out of order and one is empty. The op
// overwrites its input, which is therefore the result of a sum.
TEST(GroupedBias, GradientsMatchDifferences) {
  Rank rank;
  const RowGroups groups{rank.tensor<int64_t>({4}, {4, 0, 0, 3}), rank.tensor<int64_t>({4}, {2, 3, 0, 1})};
  const Tensor y = rank.normal({6, 5}, DType::f64, "y"), s = rank.normal({6}, DType::f64, "s");
  for (const auto& [columns, first] : {std::pair<int64_t, int64_t>{5, 0}, {2, 3}, {1, 1}}) {
    const Tensor bias = rank.normal({4, columns}, DType::f64, "bias");
    gradcheck(rank, "grouped_bias",
              [&, first = first](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::grouped_bias(tape, ops::scale(tape, in[0], 1), groups, in[1], in[2], first)};
              },
              {y, bias, s});
    gradcheck(rank, "grouped_bias",
              [&, first = first](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::grouped_bias(tape, ops::scale(tape, in[0], 1), groups, in[1], {}, first)};
              },
              {y, bias});
  }
}

TEST(GroupedBias, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const RowGroups groups{rank.tensor<int64_t>({2}, {0, 1}), rank.tensor<int64_t>({2}, {1, 1})};
  const auto said = [&](const Shape& bias, DType dtype, const Shape& weight, int64_t first) {
    return message_of<ShapeError>([&] {
      ops::grouped_bias(tape, tape.input(rank.normal({2, 4}, DType::f32, "y")), groups,
                        tape.input(rank.normal(bias, dtype, "bias")), tape.input(rank.normal(weight, DType::f32, "s")),
                        first);
    });
  };
  EXPECT_EQ(said({3, 4}, DType::f32, {2}, 0), "grouped_bias: bias must be [E=2, M] float32, got float32 [3, 4]");
  EXPECT_EQ(said({2, 4}, DType::f64, {2}, 0), "grouped_bias: bias must be [E=2, M] float32, got float64 [2, 4]");
  EXPECT_EQ(said({2, 2}, DType::f32, {2}, 3), "grouped_bias: 2 columns from 3 on are not those of y [2, 4]");
  EXPECT_EQ(said({2, 2}, DType::f32, {3}, 2), "grouped_bias: row_weight must be [capacity=2] float32, got float32 [3]");
}

}  // namespace
}  // namespace witan
