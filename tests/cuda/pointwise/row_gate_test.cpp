#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

class RowGateOnGpu : public testing::CudaTest {};

TEST_F(RowGateOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [T, D] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {10, 37}, {33, 264}, {13, 2048}}) {
      SCOPED_TRACE(cat(dtype, " [", T, ", ", D, "]"));
      const Tensor x = host.normal({T, D}, dtype, "x"), gate = host.normal({T}, dtype, "gate", 3),
                   dy = host.normal({T, D}, dtype, "dy"), y = host.poisoned({T, D}, dtype),
                   dx = host.poisoned({T, D}, dtype), dgate = host.poisoned({T}, dtype);
      const Tensor y_gpu = poisoned({T, D}, dtype), dx_gpu = poisoned({T, D}, dtype), dgate_gpu = poisoned({T}, dtype);
      kernels::row_gate_forward(host.stream, y, x, gate);
      kernels::row_gate_backward(host.stream, dx, dgate, dy, x, gate);
      kernels::row_gate_forward(gpu(), y_gpu, to_gpu(x), to_gpu(gate));
      kernels::row_gate_backward(gpu(), dx_gpu, dgate_gpu, to_gpu(dy), to_gpu(x), to_gpu(gate));
      const double allowed = tolerance(dtype);
      EXPECT_TRUE(agree(y_gpu, y, allowed, allowed));
      EXPECT_TRUE(agree(dx_gpu, dx, allowed, allowed));
      EXPECT_TRUE(agree(dgate_gpu, dgate, 10 * allowed, 10 * allowed));
    }
}

}  // namespace
}  // namespace witan
