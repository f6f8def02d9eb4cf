#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

class ScaledSumOnGpu : public testing::CudaTest {};

TEST_F(ScaledSumOnGpu, AgreesWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{37}, int64_t{8192}, int64_t{100003}}) {
      SCOPED_TRACE(cat(dtype, " [", n, "]"));
      const Tensor a = host.normal({n}, dtype, "a"), b = host.normal({n}, dtype, "b"),
                   dy = host.normal({n}, dtype, "dy"), wa = host.normal({1}, dtype, "wa"),
                   wb = host.normal({1}, dtype, "wb");
      const double allowed = tolerance(dtype);
      for (const bool both : {false, true}) {
        const Tensor y = host.poisoned({n}, dtype), y_gpu = poisoned({n}, dtype);
        kernels::scaled_sum(host.stream, y, a, wa, both ? b : Tensor(), both ? wb : Tensor());
        kernels::scaled_sum(gpu(), y_gpu, to_gpu(a), to_gpu(wa), both ? to_gpu(b) : Tensor(),
                            both ? to_gpu(wb) : Tensor());
        EXPECT_TRUE(agree(y_gpu, y, allowed, allowed));
      }
      const int64_t blocks = (n + kernels::kSumBlock - 1) / kernels::kSumBlock;
      const Tensor partials = host.stream.empty({blocks}, DType::f64), partials_gpu = poisoned({blocks}, DType::f64);
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const Tensor dx = host.poisoned({n}, dtype), dw = host.normal({1}, accumulator(dtype), "dw"),
                     dx_gpu = poisoned({n}, dtype), dw_gpu = to_gpu(dw);
        kernels::scaled_sum_backward(host.stream, dx, dw, write, partials, dy, a, wa);
        kernels::scaled_sum_backward(gpu(), dx_gpu, dw_gpu, write, partials_gpu, to_gpu(dy), to_gpu(a), to_gpu(wa));
        EXPECT_TRUE(agree(dx_gpu, dx, allowed, allowed));
        const double of_sum = 10 * tolerance(dw.dtype()) * std::sqrt(static_cast<double>(n) + 1);
        EXPECT_TRUE(agree(dw_gpu, dw, of_sum, of_sum));
        kernels::scaled_sum_backward(gpu(), {}, dw_gpu, Write::overwrite, partials_gpu, to_gpu(dy), to_gpu(a),
                                     to_gpu(wa));
        if (write == Write::overwrite) {
          EXPECT_TRUE(agree(dw_gpu, dw, of_sum, of_sum)) << "dx not wanted";
        }
      }
    }
}

}  // namespace
}  // namespace witan
