#include <tuple>

#include "support/cuda_rank.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::values;

class CudaBatchedGemm : public testing::CudaTest {
 protected:
  kernels::BatchedProduct product(const Shape& d, int64_t K, DType dtype, bool ta, bool tb) {
    const int64_t n = d[0], M = d[1], N = d[2];
    return {.a = host.normal(ta ? Shape{n, K, M} : Shape{n, M, K}, dtype, "a", 0.1),
            .transpose_a = ta ? Transpose::yes : Transpose::no,
            .b = host.normal(tb ? Shape{n, N, K} : Shape{n, K, N}, dtype, "b"),
            .transpose_b = tb ? Transpose::yes : Transpose::no,
            .alpha = -0.5};
  }
  kernels::BatchedProduct on_gpu(kernels::BatchedProduct p) {
    p.a = to_gpu(p.a);
    p.b = to_gpu(p.b);
    if (p.c.defined()) p.c = to_gpu(p.c);
    return p;
  }
};

TEST_F(CudaBatchedGemm, AgreesWithTheCpu) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (const auto& [n, M, N, K] : {std::tuple{1, 1, 1, 1}, {3, 5, 7, 9}, {2, 64, 128, 32}, {5, 256, 256, 96}})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true})
          for (const bool with_c : {false, true}) {
            SCOPED_TRACE(cat(dtype, " ", n, " ", M, " ", N, " ", K, " ", ta, tb, with_c));
            const Shape shape{n, M, N};
            kernels::BatchedProduct p = product(shape, K, dtype, ta, tb);
            if (with_c) {
              p.c = host.normal(shape, dtype, "c");
              p.beta = 2;
            }
            const Tensor d = host.poisoned(shape, dtype), d_gpu = to_gpu(d);
            const kernels::BatchedProduct there = on_gpu(p);
            kernels::batched_gemm(host.stream, d, p);
            kernels::batched_gemm(gpu(), d_gpu, there);
            const double most = tolerance(dtype);
            EXPECT_TRUE(agree(d_gpu, d, 2 * most, 2 * most));
            const auto once = values(to_host(d_gpu));
            kernels::batched_gemm(gpu(), d_gpu, there);
            EXPECT_EQ(values(to_host(d_gpu)), once);
          }
}

// Heads of attention: a matrix is a head's channels of all tokens.
TEST_F(CudaBatchedGemm, TakesMatricesWhoseRowsAlternate) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64})
    for (const int64_t tokens : {1, 3, 40})
      for (const bool tb : {false, true}) {
        SCOPED_TRACE(cat(dtype, " ", tokens, " ", tb));
        constexpr int64_t H = 6, K = 64, N = 96;
        kernels::BatchedProduct p = product({H, tokens, N}, K, dtype, false, tb);
        p.alpha = 1;
        const Tensor a = host.normal({tokens, H, K + 32}, dtype, "a", 0.1), d = host.poisoned({tokens, H, N}, dtype);
        kernels::BatchedProduct there = on_gpu(p);
        const Tensor d_gpu = to_gpu(d);
        there.a = to_gpu(a).transpose(0, 1).narrow(2, 0, K);
        p.a = a.transpose(0, 1).narrow(2, 0, K);
        kernels::batched_gemm(host.stream, d.transpose(0, 1), p);
        kernels::batched_gemm(gpu(), d_gpu.transpose(0, 1), there);
        EXPECT_TRUE(agree(d_gpu, d, 2 * tolerance(dtype), 2 * tolerance(dtype)));
      }
}

// Ranks that own different numbers of matrices must find the same bits.
TEST_F(CudaBatchedGemm, HasTheSameBitsInEveryBatch) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const kernels::BatchedProduct all = on_gpu(product({40, 128, 192}, 256, dtype, false, true));
    const Tensor d = to_gpu(host.poisoned({40, 128, 192}, dtype));
    kernels::batched_gemm(gpu(), d, all);
    const auto expected = values(to_host(d));
    for (const int64_t count : {1, 7, 33}) {
      kernels::BatchedProduct some = all;
      some.a = all.a.narrow(0, 4, count);
      some.b = all.b.narrow(0, 4, count);
      const Tensor part = to_gpu(host.poisoned({count, 128, 192}, dtype));
      kernels::batched_gemm(gpu(), part, some);
      const auto begin = expected.begin() + 4 * 128 * 192;
      EXPECT_EQ(values(to_host(part)), std::vector<double>(begin, begin + count * 128 * 192)) << count;
    }
  }
}

}  // namespace
}  // namespace witan
