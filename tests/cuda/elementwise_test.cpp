#include "witan/kernels/elementwise.h"

#include "support/cuda_rank.h"

namespace witan {
namespace {

using testing::CudaTest;

using Elementwise = CudaTest;

TEST_F(Elementwise, BroadcastWritesEveryElement) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor x = host.normal({1}, dtype, "x"), expected = host.stream.empty({1027}, dtype);
    kernels::broadcast(host.stream, expected, x);
    const Tensor y = poisoned({1027}, dtype);
    kernels::broadcast(gpu(), y, to_gpu(x));
    EXPECT_TRUE(agree(y, expected, 0, 0));
  }
}

}  // namespace
}  // namespace witan
