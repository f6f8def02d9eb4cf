#include "witan/ops/rope.h"

#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

TEST(Rope, GradientsMatchDifferences) {
  Rank rank;
  const Tensor positions = rank.tensor<int32_t>({2, 3}, {0, 1, 2, 5, 0, 40});
  for (const bool interleaved : {false, true})
    for (const double fraction : {1.0, 0.5})
      gradcheck(rank, "rope",
                [&](Tape& tape, const std::vector<Var>& in) {
                  return std::vector{ops::rope(tape, in[0], positions, 100, interleaved, fraction)};
                },
                {rank.normal({2, 3, 2, 8}, DType::f64, "x")});
}

TEST(Rope, TheGradientTurnsBack) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor positions = rank.tensor<int32_t>({1, 3}, {0, 1, 900});
  const Var x = tape.input(rank.normal({1, 3, 2, 6}, DType::f64, "x"));
  const Var y = ops::rope(tape, x, positions, 10000, false);
  tape.backward({{y, y.value()}});
  EXPECT_TRUE(testing::close(tape.gradient(x), x.value(), 1e-12, 0));
}

TEST(Rope, WrongArgumentsAreNamed) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({1, 2, 1, 6}, DType::f32, "x"));
  const Tensor positions = rank.tensor<int32_t>({1, 2}, {0, 1});
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::rope(tape, tape.input(rank.normal({2, 6}, DType::f32, "x")), positions, 1e4, false);
            }),
            "rope: x must be [B, S, H, hd], floating and contiguous, got float32 [2, 6]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::rope(tape, x, rank.tensor<int32_t>({2}, {0, 1}), 1e4, false);
            }),
            "rope: positions must be [B=1, S=2] int32, got int32 [2]");
  EXPECT_EQ(message_of<ShapeError>([&] { ops::rope(tape, x, positions, 0, false); }),
            "rope: base must be positive, got 0");
  for (const double fraction : {0.5, 0.4, 0.0, 1.5})
    EXPECT_THAT(message_of<ShapeError>([&] { ops::rope(tape, x, positions, 1e4, false, fraction); }),
                ::testing::StartsWith("rope: an even number of each head's 6 dims must be rotated"));
  EXPECT_EQ(message_of<DataError>([&] {
              ops::rope(tape, x, rank.tensor<int32_t>({1, 2}, {0, -3}), 1e4, false);
            }),
            "rope: a position cannot be negative, got -3");
}

}  // namespace
}  // namespace witan
