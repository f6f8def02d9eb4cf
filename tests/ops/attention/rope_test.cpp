#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "witan/ops/attention/heads.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using testing::Rank;

kernels::RopeScaling yarn() {
  kernels::RopeScaling scaling;
  scaling.type = kernels::RopeScaling::Type::yarn;
  scaling.factor = 4, scaling.original_positions = 64, scaling.magnitude = 1.3;
  return scaling;
}

TEST(Rope, GradientsMatchDifferences) {
  Rank rank;
  const Tensor positions = rank.tensor<int32_t>({2, 3}, {0, 1, 2, 5, 0, 40});
  for (const bool interleaved : {false, true})
    for (const int64_t dims : {8, 4})
      for (const kernels::RopeScaling& scaling : {kernels::RopeScaling(), yarn()})
        gradcheck(rank, "rope",
                  [&](Tape& tape, const std::vector<Var>& in) {
                    return std::vector{ops::rope(tape, in[0], positions, {100, dims, interleaved, false, scaling})};
                  },
                  {rank.normal({2, 3, 2, 8}, DType::f64, "x")});
}

TEST(Rope, GradientRotatesBack) {
  Rank rank;
  Tape tape(rank.stream);
  const Tensor positions = rank.tensor<int32_t>({1, 3}, {0, 1, 900});
  const Var x = tape.input(rank.normal({1, 3, 2, 6}, DType::f64, "x"));
  const Var y = ops::rope(tape, x, positions, {10000, 6});
  tape.backward({{y, y.value()}});
  EXPECT_TRUE(testing::close(tape.gradient(x), x.value(), 1e-12, 0));
}

TEST(Rope, ErrorsNameWrongArguments) {
  Rank rank;
  Tape tape(rank.stream);
  const Var x = tape.input(rank.normal({1, 2, 1, 6}, DType::f32, "x"));
  const Tensor positions = rank.tensor<int32_t>({1, 2}, {0, 1});
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::rope(tape, tape.input(rank.normal({2, 6}, DType::f32, "x")), positions, {1e4, 6});
            }),
            "rope: x must be [B, S, H, hd], floating and contiguous, got float32 [2, 6]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::rope(tape, x, rank.tensor<int32_t>({2}, {0, 1}), {1e4, 6});
            }),
            "rope: positions must be [B=1, S=2] int32, got int32 [2]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              ops::rope(tape, x, positions, {0, 6});
            }),
            "rope: base must be positive, got 0");
  for (const int64_t dims : {3, 0, 8, -2})
    EXPECT_THAT(message_of<ShapeError>([&] {
                  ops::rope(tape, x, positions, {1e4, dims});
                }),
                ::testing::StartsWith("rope: an even number of each head's 6 dims must be rotated"));
  EXPECT_EQ(message_of<DataError>([&] {
              ops::rope(tape, x, rank.tensor<int32_t>({1, 2}, {0, -3}), {1e4, 6});
            }),
            "rope: a position cannot be negative, got -3");
}

}  // namespace
}  // namespace witan
