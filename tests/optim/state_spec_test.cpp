#include "witan/optim/state_spec.h"

#include "support/message_of.h"
#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;

int64_t corner(const OptimizerSettings&, int64_t rows, int64_t columns) {
  return rows * rows + columns;
}
const OptimizerStateSpec kElements{"e"};
const OptimizerStateSpec kRows{"r", OptimizerStateSpec::Shape::rows};
const OptimizerStateSpec kMatrices{"m", OptimizerStateSpec::Shape::matrices, DType::f64, corner};

// Describes the state of a shard: "[shape] split dim: regions".
std::string described(const OptimizerStateSpec& state, const Parameter& parameter, int64_t first, int64_t elements) {
  const ShardState found = state_of(state, {}, parameter, first, elements);
  std::string text = cat(found.global.shape, " ", found.global.tensor_split.dim, ":");
  for (const Region& region : found.regions) text += cat(" ", region);
  return text;
}

Parameter piece_of(const ParameterSpec& spec, int expert_ranks, int expert_rank, int tensor_ranks, int tensor_rank) {
  return {spec, spec.part(expert_ranks, expert_rank, tensor_ranks, tensor_rank)};
}

TEST(StateSpec, FollowsThePlaceOfTheMatrix) {
  const ParameterSpec matrix{.name = "w", .shape = {6, 4}};
  const Parameter whole(matrix, matrix.whole());
  EXPECT_EQ(described(kElements, whole, 3, 9), "[6, 4] -1: [3, 12)");
  EXPECT_EQ(described(kRows, whole, 0, 24), "[6] -1: [0, 6)");
  EXPECT_EQ(described(kMatrices, whole, 0, 24), "[40] -1: [0, 40)");
  const ParameterSpec vector{.name = "v", .shape = {5}};
  EXPECT_EQ(described(kMatrices, Parameter(vector, vector.whole()), 0, 5), "[6] -1: [0, 6)");
}

TEST(StateSpec, TensorParallelRanksSplitRowStateOnly) {
  const ParameterSpec by_rows{.name = "w", .shape = {6, 4}, .tensor_split = {0}};
  const ParameterSpec by_columns{.name = "w", .shape = {6, 4}, .tensor_split = {1}};
  const ParameterSpec gate_and_up{.name = "w", .shape = {8, 4}, .tensor_split = {0, 2}};
  EXPECT_EQ(described(kRows, piece_of(by_rows, 1, 0, 2, 1), 0, 12), "[6] 0: [3, 6)");
  EXPECT_EQ(described(kRows, piece_of(by_columns, 1, 0, 2, 1), 0, 12), "[6] -1: [0, 6)");
  EXPECT_EQ(described(kRows, piece_of(gate_and_up, 1, 0, 2, 1), 0, 16), "[8] 0: (2 + i * 4, 2) x 2");
  EXPECT_EQ(described(kMatrices, piece_of(by_rows, 1, 0, 2, 1), 0, 12), "[40] -1: [0, 40)");
}

TEST(StateSpec, TreatsExpertsAsMatrices) {
  const ParameterSpec stack{.name = "w", .shape = {4, 6, 2}, .expert = true, .tensor_split = {1}};
  const Parameter second_half = piece_of(stack, 2, 1, 1, 0), piece = piece_of(stack, 2, 1, 2, 1);
  EXPECT_EQ(described(kMatrices, second_half, 12, 12), "[4, 38] -1: [114, 152)");
  EXPECT_EQ(described(kRows, second_half, 12, 12), "[4, 6] 1: [18, 24)");
  EXPECT_EQ(described(kMatrices, piece, 0, 12), "[4, 38] -1: [76, 152)");
  EXPECT_EQ(described(kRows, piece, 0, 12), "[4, 6] 1: (15 + i * 6, 3) x 2");
  const ShardMatrices last = matrices_of(piece, 6, 6);
  EXPECT_EQ(last.first, 3);
  EXPECT_EQ(last.count, 1);
  EXPECT_EQ(last.piece.rows, 3);
}

TEST(StateSpec, UsesTheAccumulatorsOrItsOwnDType) {
  EXPECT_EQ(kElements.dtype_of({.name = "p", .shape = {1}, .dtype = DType::bf16}), DType::f32);
  EXPECT_EQ(kElements.dtype_of({.name = "p", .shape = {1}, .dtype = DType::f64}), DType::f64);
  EXPECT_EQ(kMatrices.dtype_of({.name = "p", .shape = {1}, .dtype = DType::bf16}), DType::f64);
}

TEST(StateSpec, RefusesPartsOfAMatrix) {
  const ParameterSpec stack{.name = "w", .shape = {4, 6, 2}, .expert = true};
  const Parameter parameter(stack, stack.whole());
  EXPECT_EQ(test::message_of<ShapeError>([&] { state_of(kMatrices, {}, parameter, 6, 12); }),
            "optimizer: elements [6, 18) of w cut a matrix of 12 elements, which is updated as a whole");
}

}  // namespace
}  // namespace witan
