#include "support/cuda_rank.h"
#include "witan/kernels/norm/norm.h"

namespace witan {
namespace {

class ShardedRmsNormOnGpu : public testing::CudaTest {};

TEST_F(ShardedRmsNormOnGpu, AgreesWithTheCpu) {
  constexpr double kEps = 1e-5;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Shape& shape : {Shape{0, 8}, Shape{1, 1}, Shape{3, 37}, Shape{33, 264}, Shape{9, 4096}}) {
      SCOPED_TRACE(cat(dtype, " ", shape));
      const DType wide = accumulator(dtype);
      const int64_t T = shape[0], width = 4 * shape[1];
      const Tensor x = host.normal(shape, dtype, "x"), w = host.normal({shape[1]}, dtype, "w"),
                   dy = host.normal(shape, dtype, "dy"), sums = host.poisoned({T}, wide), r = host.poisoned({T}, wide),
                   products = host.poisoned({T}, wide), y = host.poisoned(shape, dtype),
                   dx = host.poisoned(shape, dtype);
      kernels::sharded_rmsnorm_squares(host.stream, sums, x);
      kernels::sharded_rmsnorm_forward(host.stream, y, r, x, w, sums, width, kEps);
      kernels::sharded_rmsnorm_products(host.stream, products, dy, x, w);
      kernels::sharded_rmsnorm_backward_input(host.stream, dx, dy, x, w, r, products, width);
      const Tensor sums_gpu = poisoned({T}, wide), r_gpu = poisoned({T}, wide), products_gpu = poisoned({T}, wide),
                   y_gpu = poisoned(shape, dtype), dx_gpu = poisoned(shape, dtype);
      const Tensor x_gpu = to_gpu(x), w_gpu = to_gpu(w), dy_gpu = to_gpu(dy);
      kernels::sharded_rmsnorm_squares(gpu(), sums_gpu, x_gpu);
      kernels::sharded_rmsnorm_forward(gpu(), y_gpu, r_gpu, x_gpu, w_gpu, sums_gpu, width, kEps);
      kernels::sharded_rmsnorm_products(gpu(), products_gpu, dy_gpu, x_gpu, w_gpu);
      kernels::sharded_rmsnorm_backward_input(gpu(), dx_gpu, dy_gpu, x_gpu, w_gpu, r_gpu, products_gpu, width);
      const double allowed = tolerance(dtype), sum_allowed = tolerance(wide) * 100;
      EXPECT_TRUE(agree(sums_gpu, sums, sum_allowed, sum_allowed)) << "squares";
      EXPECT_TRUE(agree(r_gpu, r, sum_allowed, sum_allowed)) << "r";
      EXPECT_TRUE(agree(products_gpu, products, sum_allowed, sum_allowed)) << "products";
      EXPECT_TRUE(agree(y_gpu, y, allowed, allowed)) << "y";
      EXPECT_TRUE(agree(dx_gpu, dx, 10 * allowed, 10 * allowed)) << "dx";
    }
}

}  // namespace
}  // namespace witan
