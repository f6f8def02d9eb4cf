#include "support/gradcheck.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;

TEST(Reshape, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "reshape",
            [](Tape& tape, const std::vector<Var>& in) {
              return std::vector{ops::reshape(tape, in[0], {3, 2, 2})};
            },
            {rank.normal({4, 3}, DType::f64, "x")});
}

TEST(Reshape, SharesTheElements) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({4, 3}, DType::f32, "x"));
  EXPECT_EQ(ops::reshape(tape, x, {12}).value().raw(), x.value().raw());
  EXPECT_THROW(ops::reshape(tape, x, {5}), ShapeError);
}

}  // namespace
}  // namespace witan
