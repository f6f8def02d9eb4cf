#include "witan/kernels/norm/magnitude.h"

#include "support/cuda_rank.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

class MagnitudesOnGpu : public testing::CudaTest {};

TEST_F(MagnitudesOnGpu, AgreeWithTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [N, r] : {std::pair<int64_t, int64_t>{0, 3}, {1, 1}, {37, 3}, {264, 40}, {4096, 64}}) {
      SCOPED_TRACE(cat(dtype, ' ', N, ' ', r));
      const DType wide = accumulator(dtype);
      const int64_t T = 9;
      const Tensor base = host.normal({N}, wide, "base"), p = host.normal({N, r}, wide, "p"),
                   g = host.normal({r, r}, wide, "g"), b = host.normal({N, r}, dtype, "b"),
                   change = host.normal({N}, dtype, "change"), x = host.normal({T, N}, dtype, "x");
      kernels::product(host.stream, base, base, base);  // squares are positive
      const Tensor squares = host.poisoned({N}, wide), factors = host.poisoned({N}, wide),
                   inverses = host.poisoned({N}, wide), y = host.poisoned({T, N}, dtype);
      kernels::low_rank_squares(host.stream, squares, base, p, g, b, 0.01);
      kernels::magnitude_factors(host.stream, factors, inverses, change, base, squares);
      kernels::scale_columns(host.stream, y, x, factors);
      const Tensor squares_gpu = poisoned({N}, wide), factors_gpu = poisoned({N}, wide),
                   inverses_gpu = poisoned({N}, wide), y_gpu = poisoned({T, N}, dtype);
      kernels::low_rank_squares(gpu(), squares_gpu, to_gpu(base), to_gpu(p), to_gpu(g), to_gpu(b), 0.01);
      kernels::magnitude_factors(gpu(), factors_gpu, inverses_gpu, to_gpu(change), to_gpu(base), to_gpu(squares));
      kernels::scale_columns(gpu(), y_gpu, to_gpu(x), to_gpu(factors));
      const double allowed = tolerance(dtype), sum_allowed = tolerance(wide) * 100;
      EXPECT_TRUE(agree(squares_gpu, squares, sum_allowed, sum_allowed)) << "squares";
      EXPECT_TRUE(agree(factors_gpu, factors, sum_allowed, sum_allowed)) << "factors";
      EXPECT_TRUE(agree(inverses_gpu, inverses, sum_allowed, sum_allowed)) << "inverses";
      EXPECT_TRUE(agree(y_gpu, y, allowed, allowed)) << "y";
    }
}

}  // namespace
}  // namespace witan
