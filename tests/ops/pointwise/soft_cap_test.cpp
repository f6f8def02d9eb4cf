#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

TEST(SoftCap, GradientsMatchDifferences) {
  Rank rank;
  gradcheck(rank, "soft_cap",
            [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::soft_cap(tape, in[0], 0.7, 1.5)}; },
            {rank.normal({3, 7}, DType::f64, "x", 2)});
}

// Logits that nobody else holds are written over.
TEST(SoftCap, TakesThePlaceOfWhatIsMovedIn) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({5}, DType::f64, "x"));
  Var twice = ops::scale(tape, x, 2);
  const std::byte* const place = twice.value().raw();
  EXPECT_EQ(ops::soft_cap(tape, std::move(twice), 1, 3).value().raw(), place);
  EXPECT_NE(ops::soft_cap(tape, x, 1, 3).value().raw(), x.value().raw());
}

TEST(SoftCap, WrongArgumentsAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({5}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::soft_cap(tape, x, 1, 0); }),
            "soft_cap: the bound must be above 0, got 0");
}

}  // namespace
}  // namespace witan
