#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

class SoftCapOnGpu : public testing::CudaTest {};

TEST_F(SoftCapOnGpu, AgreesWithTheCpuAlsoInPlace) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{100003}}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      const Tensor x = host.normal({n}, dtype, "x", 20), dy = host.normal({n}, dtype, "dy"),
                   y = host.poisoned({n}, dtype), dx = host.poisoned({n}, dtype);
      const Tensor x_gpu = to_gpu(x), dy_gpu = to_gpu(dy);
      kernels::soft_cap_forward(host.stream, y, x, 0.25, 15);
      kernels::soft_cap_forward(gpu(), x_gpu, x_gpu, 0.25, 15);
      const double allowed = tolerance(dtype);
      EXPECT_TRUE(agree(x_gpu, y, 15 * allowed, allowed));
      kernels::soft_cap_backward(host.stream, dx, dy, y, 0.25, 15);
      kernels::soft_cap_backward(gpu(), dy_gpu, dy_gpu, to_gpu(y), 0.25, 15);
      EXPECT_TRUE(agree(dy_gpu, dx, allowed, allowed));
    }
}

}  // namespace
}  // namespace witan
