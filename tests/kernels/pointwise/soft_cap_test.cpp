#include <cmath>

#include "support/rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

TEST(SoftCap, AgreesWithTheFormulaAndItsSlopeAlsoInPlace) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-12}, std::pair{DType::f32, 2e-5}, std::pair{DType::bf16, 3e-2}})
    for (const int64_t n : {0, 1, 5, 1003}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      Rank rank;
      constexpr double kScale = 0.25, kCap = 3;
      const Tensor x = rank.normal({n}, dtype, "x", 20), dy = rank.normal({n}, dtype, "dy"),
                   y = rank.poisoned({n}, dtype), dx = rank.poisoned({n}, dtype);
      const auto in = values(x), slope = values(dy);
      kernels::soft_cap_forward(rank.stream, y, x, kScale, kCap);
      kernels::soft_cap_backward(rank.stream, dx, dy, y, kScale, kCap);
      std::vector<double> capped, back;
      const auto bounded = values(y);
      for (size_t i = 0; i < in.size(); ++i) {
        capped.push_back(kCap * std::tanh(kScale * in[i] / kCap));
        back.push_back(kScale * (1 - bounded[i] * bounded[i] / (kCap * kCap)) * slope[i]);
      }
      EXPECT_TRUE(close(bounded, capped, tolerance, tolerance));
      EXPECT_TRUE(close(values(dx), back, tolerance, tolerance));
      kernels::soft_cap_forward(rank.stream, x, x, kScale, kCap);
      EXPECT_EQ(values(x), bounded);
      kernels::soft_cap_backward(rank.stream, dy, dy, y, kScale, kCap);
      EXPECT_EQ(values(dy), values(dx));
    }
}

// Results stay finite for any input.
TEST(SoftCap, LargeLogitsReachTheBound) {
  Rank rank;
  const Tensor x = rank.tensor<float>({4}, {-1e30f, -1e4f, 1e4f, 1e30f}), y = rank.poisoned({4}, DType::f32),
               dy = rank.tensor<float>({4}, {1, 1, 1, 1}), dx = rank.poisoned({4}, DType::f32);
  kernels::soft_cap_forward(rank.stream, y, x, 1, 15);
  kernels::soft_cap_backward(rank.stream, dx, dy, y, 1, 15);
  EXPECT_EQ(values(y), (std::vector<double>{-15, -15, 15, 15}));
  EXPECT_TRUE(close(values(dx), {0, 0, 0, 0}, 1e-6, 0));
}

}  // namespace
}  // namespace witan
