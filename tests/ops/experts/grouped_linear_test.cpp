#include "witan/ops/experts/grouped_linear.h"

#include "support/gradcheck.h"
#include "witan/ops/linear/linear.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

RowGroups make_groups(Rank& rank, const std::vector<int64_t>& begin, const std::vector<int64_t>& count) {
  return {rank.tensor<int64_t>({std::ssize(begin)}, begin), rank.tensor<int64_t>({std::ssize(count)}, count)};
}

// Every row belongs to a group, so that every output is defined; the groups are out of order and one is empty.
TEST(GroupedLinear, GradientsMatchDifferences) {
  Rank rank;
  const RowGroups groups = make_groups(rank, {4, 0, 0, 3}, {2, 3, 0, 1});
  gradcheck(rank, "grouped_linear",
            [&](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::grouped_linear(tape, in[0], groups, in[1])};
            },
            {rank.normal({6, 5}, DType::f64, "rows"), rank.normal({4, 3, 5}, DType::f64, "w")});
}

TEST(GroupedLinear, AppliesEachExpertToItsGroup) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({9, 5}, DType::f32, "rows"), w = rank.normal({2, 3, 5}, DType::f32, "w");
  const Var rows = tape.input(x);
  const Var y = ops::grouped_linear(tape, rows, make_groups(rank, {5, 1}, {3, 2}), tape.input(w));
  tape.backward({{y, {}}});
  Tape plain(rank.stream);
  for (const auto& [e, begin, count] : {std::tuple<int64_t, int64_t, int64_t>{0, 5, 3}, {1, 1, 2}}) {
    const Var in = plain.input(x.narrow(0, begin, count));
    const Var out = ops::linear(plain, in, plain.input(w.narrow(0, e, 1).reshape({3, 5})), {});
    EXPECT_EQ(values(out.value()), values(y.value().narrow(0, begin, count)));
  }
  EXPECT_EQ(tape.gradient(rows).shape(), x.shape());
}

TEST(GroupedLinear, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  const auto input = [&](const Shape& shape, DType dtype = DType::f32) {
    return tape.input(rank.normal(shape, dtype, "in"));
  };
  const auto message = [&](const Var& rows, const RowGroups& groups, const Var& w) -> std::string {
    try {
      ops::grouped_linear(tape, rows, groups, w);
    } catch (const ShapeError& e) {
      return e.what();
    }
    return "nothing thrown";
  };
  const RowGroups two = make_groups(rank, {0, 0}, {0, 0});
  EXPECT_EQ(message(input({4}), two, input({2, 3, 4})), "grouped_linear: rows must be [capacity, K], got [4]");
  EXPECT_EQ(message(input({6, 4}), two, input({2, 3, 5})), "grouped_linear: w must be [E, N, K=4], got [2, 3, 5]");
  EXPECT_EQ(message(input({6, 4}), two, input({2, 3, 4}, DType::f64)),
            "grouped_linear: w is float64 but rows are float32");
  EXPECT_EQ(message(input({6, 4}), two, input({3, 3, 4})),
            "grouped_linear: groups.begin and groups.count must be int64 [E=3], got int64 [2]");
  EXPECT_EQ(message(input({6, 4}), {}, input({3, 3, 4})),
            "grouped_linear: groups.begin and groups.count must be int64 [E=3]");
}

}  // namespace
}  // namespace witan
