#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

class ClampOnGpu : public testing::CudaTest {};

TEST_F(ClampOnGpu, AgreesWithTheCpuToTheBit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t elements : {0, 1, 37, 4096, 10001}) {
      const Tensor x = host.normal({elements}, dtype, "x"), dy = host.normal({elements}, dtype, "dy"),
                   y = host.poisoned({elements}, dtype), dx = host.poisoned({elements}, dtype);
      const Tensor y_gpu = poisoned({elements}, dtype), dx_gpu = poisoned({elements}, dtype);
      kernels::clamp_forward(host.stream, y, x, 0.75);
      kernels::clamp_backward(host.stream, dx, dy, x, 0.75);
      kernels::clamp_forward(gpu(), y_gpu, to_gpu(x), 0.75);
      kernels::clamp_backward(gpu(), dx_gpu, to_gpu(dy), to_gpu(x), 0.75);
      EXPECT_TRUE(agree(y_gpu, y, 0, 0)) << dtype << " " << elements;
      EXPECT_TRUE(agree(dx_gpu, dx, 0, 0)) << dtype << " " << elements;
    }
}

}  // namespace
}  // namespace witan
