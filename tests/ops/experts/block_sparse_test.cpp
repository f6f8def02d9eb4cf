#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/experts/grouped_linear.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

RowGroups groups_at(Rank& rank, const std::vector<int64_t>& begin, const std::vector<int64_t>& count) {
  return {rank.tensor<int64_t>({std::ssize(begin)}, begin), rank.tensor<int64_t>({std::ssize(count)}, count)};
}

// Every row belongs to a group, so that every output is defined; the groups are out of order and one is empty.
TEST(BlockSparseLinear, GradientsMatchDifferences) {
  Rank rank;
  const auto topology = ops::block_topology(rank.stream, groups_at(rank, {4, 0, 0, 3}, {2, 3, 0, 1}), 6);
  gradcheck(rank, "block_sparse_linear",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::block_sparse_linear(tape, in[0], topology, in[1])};
            },
            {rank.normal({6, 5}, DType::f64, "rows"), rank.normal({4, 3, 5}, DType::f64, "w")});
}

// An expert has several block rows.
TEST(BlockSparseLinear, HasTheBitsOfGroupedLinear) {
  Rank rank;
  const RowGroups groups = groups_at(rank, {0, 300, 300}, {300, 0, 131});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto results = [&](bool sparse) {
      Tape tape(rank.stream);
      const Var x = tape.input(rank.normal({431, 7}, dtype, "x")), w = tape.input(rank.normal({3, 9, 7}, dtype, "w"));
      const Var y = sparse ? ops::block_sparse_linear(tape, x, ops::block_topology(rank.stream, groups, 431), w)
                           : ops::grouped_linear(tape, x, groups, w);
      tape.backward({{y, rank.normal({431, 9}, dtype, "dy")}});
      return std::vector{values(y.value()), values(tape.gradient(x)), values(tape.gradient(w))};
    };
    EXPECT_EQ(results(true), results(false)) << dtype;
  }
}

TEST(BlockSparseLinear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto topology = ops::block_topology(rank.stream, groups_at(rank, {0, 1}, {1, 1}), 2);
  const auto said = [&](const Shape& rows, const Shape& w, DType dtype) {
    return test::message_of<ShapeError>([&] {
      ops::block_sparse_linear(tape, tape.input(rank.normal(rows, DType::f32, "rows")), topology,
                               tape.input(rank.normal(w, dtype, "w")));
    });
  };
  EXPECT_EQ(said({8}, {2, 3, 4}, DType::f32), "block_sparse_linear: rows must be [capacity, K], got [8]");
  EXPECT_EQ(said({2, 4}, {3, 3, 4}, DType::f32), "block_sparse_linear: w must be [E=2, N, K=4], got [3, 3, 4]");
  EXPECT_EQ(said({2, 4}, {2, 3, 4}, DType::f64), "block_sparse_linear: w is float64 but rows are float32");
}

}  // namespace
}  // namespace witan
