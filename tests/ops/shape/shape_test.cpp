#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

Var joined(Tape& tape, const std::vector<Var>& in) {
  return ops::join_columns(tape, in[0], in[1]);
}

TEST(JoinColumns, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "join_columns", [&](Tape& tape, const std::vector<Var>& in) { return std::vector{joined(tape, in)}; },
            {rank.normal({2, 3, 4}, DType::f64, "a"), rank.normal({2, 3, 5}, DType::f64, "b")});
}

TEST(JoinColumns, PutsRowsSideBySide) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor a = rank.normal({2, 3, 2}, DType::f32, "a"), b = rank.normal({2, 3, 1}, DType::f32, "b");
  const Var y = joined(tape, {tape.input(a), tape.input(b)});
  EXPECT_EQ(y.shape(), (Shape{2, 3, 3}));
  const auto all = values(y.value()), of_a = values(a), of_b = values(b);
  for (size_t t = 0; t < 6; ++t) {
    EXPECT_EQ(all[t * 3], of_a[t * 2]);
    EXPECT_EQ(all[t * 3 + 1], of_a[t * 2 + 1]);
    EXPECT_EQ(all[t * 3 + 2], of_b[t]);
  }
}

TEST(JoinColumns, RefusesRowsThatAreNotEquallyMany) {
  Rank rank;
  Tape tape(rank.stream);
  const Var a = tape.input(rank.normal({2, 2}, DType::f32, "a")), b = tape.input(rank.normal({3, 2}, DType::f32, "b"));
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::join_columns(tape, a, b); }),
            "join_columns: a [2, 2] and b [3, 2] must have equal rows and one dtype");
}

}  // namespace
}  // namespace witan
