#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

TEST(Clamp, GradientsMatchDifferences) {
  Rank rank;
  testing::gradcheck(rank, "clamp",
                     [](Tape& tape, const std::vector<Var>& in) { return std::vector{ops::clamp(tape, in[0], 0.5)}; },
                     {rank.normal({3, 41}, DType::f64, "x")});
}

// As torch.clamp: a value on a bound passes its gradient on.
TEST(Clamp, BoundsBelongToWhatIsKept) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = rank.stream.empty({5}, dtype), dy = rank.stream.empty({5}, dtype);
    dispatch_floating(dtype, [&]<class T>() {
      constexpr float kValues[] = {-3, -2, 0.5, 2, 2.5};
      for (size_t i = 0; i < 5; ++i) x.data<T>()[i] = T(kValues[i]), dy.data<T>()[i] = T(float(i + 1));
    });
    Tape tape(rank.stream);
    const Var in = tape.input(x), y = ops::clamp(tape, in, 2);
    tape.backward({{y, dy}});
    EXPECT_EQ(values(y.value()), (std::vector<double>{-2, -2, 0.5, 2, 2})) << dtype;
    EXPECT_EQ(values(tape.gradient(in)), (std::vector<double>{0, 2, 3, 4, 0})) << dtype;
  }
}

TEST(Clamp, WrongArgumentsAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({2, 4}, DType::f32, "x"));
  EXPECT_EQ(test::message_of<ShapeError>([&] { ops::clamp(tape, x, 0); }), "clamp: the bound must be above 0, got 0");
}

}  // namespace
}  // namespace witan
