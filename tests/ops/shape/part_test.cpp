#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using testing::gradcheck;
using testing::Rank;
using testing::values;

TEST(TakePart, GradientsMatchDifferences) {
  Rank rank;
  for (const int64_t part : {0, 1, 2})
    gradcheck(rank, "take_part",
              [&](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::take_part(tape, in[0], part)}; },
              {rank.normal({2, 3, 4}, DType::f64, "x")});
}

TEST(TakePart, IsThePart) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor x = rank.normal({2, 3, 4}, DType::f32, "x");
  const auto all = values(x), part = values(ops::take_part(tape, tape.input(x), 2).value());
  for (size_t a = 0; a < 2; ++a)
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(part[a * 4 + i], all[a * 12 + 8 + i]);
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::take_part(tape, tape.input(x), 3); }),
            "take_part: part 3 of x, which must be [A, N > 3, I], got [2, 3, 4]");
}

}  // namespace
}  // namespace witan
