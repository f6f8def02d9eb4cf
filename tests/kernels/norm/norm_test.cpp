#include "witan/kernels/norm/norm.h"

#include "support/rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::bf16};
const Shape kShapes[] = {{0, 3}, {1, 1}, {3, 37}, {300, 130}};

TEST(AddRmsNorm, ForwardHasTheBitsOfAnAdditionAndANorm) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor a = rank.normal(shape, dtype, "a"), b = rank.normal(shape, dtype, "b"),
                   w = rank.normal({shape.last()}, dtype, "w");
      const Tensor sum = rank.poisoned(shape, dtype), y = rank.poisoned(shape, dtype),
                   r = rank.poisoned({shape[0]}, accumulator(dtype));
      kernels::add_rmsnorm_forward(rank.stream, sum, y, r, a, b, w, 1e-5);
      const Tensor sum2 = rank.poisoned(shape, dtype), y2 = rank.poisoned(shape, dtype),
                   r2 = rank.poisoned({shape[0]}, accumulator(dtype));
      kernels::add(rank.stream, sum2, a, b);
      kernels::rmsnorm_forward(rank.stream, y2, r2, sum2, w, 1e-5);
      EXPECT_EQ(values(sum), values(sum2));
      EXPECT_EQ(values(y), values(y2));
      EXPECT_EQ(values(r), values(r2));
      kernels::add_rmsnorm_forward(rank.stream, a, y, r, a, b, w, 1e-5);
      EXPECT_EQ(values(a), values(sum2)) << "in place";
      EXPECT_EQ(values(y), values(y2)) << "in place";
    }
}

TEST(AddRmsNorm, BackwardHasTheBitsOfTheNormsAndAnAddition) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor sum = rank.normal(shape, dtype, "sum"), dy = rank.normal(shape, dtype, "dy"),
                   dsum = rank.normal(shape, dtype, "dsum"), w = rank.normal({shape.last()}, dtype, "w"),
                   r = rank.normal({shape[0]}, accumulator(dtype), "r");
      const Tensor normed = rank.poisoned(shape, dtype), expected = rank.poisoned(shape, dtype),
                   dx = rank.poisoned(shape, dtype);
      kernels::rmsnorm_backward_input(rank.stream, normed, dy, sum, w, r);
      kernels::add_rmsnorm_backward_input(rank.stream, dx, {}, dy, sum, w, r);
      EXPECT_EQ(values(dx), values(normed));
      kernels::add(rank.stream, expected, dsum, normed);
      kernels::add_rmsnorm_backward_input(rank.stream, dx, dsum, dy, sum, w, r);
      EXPECT_EQ(values(dx), values(expected));
      kernels::add_rmsnorm_backward_input(rank.stream, dsum, dsum, dy, sum, w, r);
      EXPECT_EQ(values(dsum), values(expected)) << "in place";
    }
}

TEST(RmsNorm, FusedBackwardHasTheBitsOfTheSeparateOnes) {
  Rank rank;
  for (const DType dtype : kDTypes)
    for (const Shape& shape : kShapes) {
      const Tensor x = rank.normal(shape, dtype, "x"), dy = rank.normal(shape, dtype, "dy"),
                   w = rank.normal({shape.last()}, dtype, "w"), r = rank.normal({shape[0]}, accumulator(dtype), "r");
      for (const Tensor& dsum : {Tensor(), rank.normal(shape, dtype, "dsum")}) {
        const Tensor dx = rank.poisoned(shape, dtype), expected_dx = rank.poisoned(shape, dtype),
                     dw = rank.poisoned(w.shape(), DType::f32), expected_dw = rank.poisoned(w.shape(), DType::f32);
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          kernels::rmsnorm_backward(rank.stream, dx, dw, write, dsum, dy, x, w, r);
          kernels::add_rmsnorm_backward_input(rank.stream, expected_dx, dsum, dy, x, w, r);
          kernels::rmsnorm_backward_weight(rank.stream, expected_dw, write, dy, x, r);
          EXPECT_EQ(values(dx), values(expected_dx));
          EXPECT_EQ(values(dw), values(expected_dw));
        }
      }
    }
}

TEST(RmsNorm, AddsEpsilonToTheMeanOfTheSquares) {
  Rank rank;
  const Tensor x = rank.tensor<double>({2, 2}, {3, 4, 0, 0}), w = rank.tensor<double>({2}, {1, 2});
  const Tensor y = rank.poisoned({2, 2}, DType::f64), r = rank.poisoned({2}, DType::f64);
  kernels::rmsnorm_forward(rank.stream, y, r, x, w, 0.5);
  const double scale = 1 / std::sqrt(13.0);
  EXPECT_TRUE(testing::close(values(r), {scale, 1 / std::sqrt(0.5)}, 0, 1e-15));
  EXPECT_TRUE(testing::close(values(y), {3 * scale, 8 * scale, 0, 0}, 0, 1e-15));
}

}  // namespace
}  // namespace witan
