#include <cmath>
#include <tuple>

#include "support/cuda_rank.h"
#include "support/products.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/moe/router.h"

namespace witan {
namespace {

using kernels::FewRows;
using kernels::Transpose;
using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::values;
using testing::widened;

constexpr Transpose kNo = Transpose::no, kYes = Transpose::yes;
constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};

class FewRowsOnGpu : public CudaTest {
 protected:
  struct Problem {
    Tensor x, w, bias;  // bias undefined: none
  };
  Problem on_host(int64_t M, int64_t N, int64_t K, DType dtype, bool biased) {
    return {host.normal({M, K}, dtype, "x"), host.normal({N, K}, dtype, "w"),
            biased ? host.normal({N}, dtype, "bias") : Tensor()};
  }
  ExactProduct exact(const Problem& p) {
    const Tensor y = host.poisoned({p.x.size(0), p.w.size(0)}, DType::f64);
    kernels::gemm(host.stream, y, Write::overwrite, widened(host, p.x), kNo, widened(host, p.w), kYes);
    ExactProduct product{values(y), {}, p.x.size(1)};
    if (!p.bias.defined()) return product;
    const Tensor rows = host.poisoned(y.shape(), DType::f64);
    kernels::repeat_row(host.stream, rows, widened(host, p.bias));
    product.before = values(rows);
    return product;
  }
  void multiply(const Tensor& y, const Problem& p) {
    if (p.bias.defined())
      kernels::gemm_with_bias(gpu(), y, to_gpu(p.x), kNo, to_gpu(p.w), kYes, to_gpu(p.bias));
    else
      kernels::gemm(gpu(), y, Write::overwrite, to_gpu(p.x), kNo, to_gpu(p.w), kYes);
  }
  bool taken(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias = {}) {
    return kernels::cuda::few_rows_gemm(gpu(), y, Write::overwrite, x, kNo, w, kYes, bias);
  }
};

// Rows of x around tiles of 8, rows of the weight around 16, sums around blocks of 64 and every number of warps, and
// rows that are not whole pieces of 16 bytes, which use other kernels.
TEST_F(FewRowsOnGpu, MatchExactProducts) {
  const FewRows few;
  const std::vector<std::tuple<int64_t, int64_t>> sizes = {{1, 8},     {7, 24},    {16, 64},    {33, 72},
                                                           {5, 13},    {48, 768},  {130, 1096}, {17, 2048},
                                                           {24, 2056}, {40, 4160}, {2200, 520}, {3, 70}};
  for (const DType dtype : kTypes)
    for (const auto& [N, K] : sizes)
      for (const int64_t M : {0, 1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17})
        for (const bool biased : {false, true}) {
          SCOPED_TRACE(cat(M, " x ", N, " x ", K, " ", dtype, biased ? ", biased" : ""));
          const Problem p = on_host(M, N, K, dtype, biased);
          const Tensor y = poisoned({M, N}, dtype), again = poisoned({M, N}, dtype);
          multiply(y, p);
          multiply(again, p);
          ASSERT_TRUE(close(to_host(y), exact(p), dtype));
          ASSERT_EQ(values(to_host(y)), values(to_host(again)));
        }
}

// Otherwise the test above would test only other kernels.
TEST_F(FewRowsOnGpu, TakeTheCallsThatTheyDocument) {
  for (const DType dtype : kTypes) {
    const Tensor x = to_gpu(host.normal({16, 64}, dtype, "x")), w = to_gpu(host.normal({40, 64}, dtype, "w"));
    const Tensor y = poisoned({16, 40}, dtype);
    EXPECT_FALSE(taken(y, x, w)) << "FewRows is not active";
    const FewRows few;
    EXPECT_TRUE(taken(y, x, w));
    EXPECT_TRUE(taken(y, x, w, to_gpu(host.normal({40}, dtype, "bias"))));
    EXPECT_FALSE(kernels::cuda::few_rows_gemm(gpu(), y, Write::accumulate, x, kNo, w, kYes, {}));
    EXPECT_FALSE(taken(y, x.narrow(1, 1, 60), w.narrow(1, 0, 60))) << "rows not aligned to 16 bytes";
    const Tensor more = to_gpu(host.normal({17, 64}, dtype, "x")), of_more = poisoned({17, 40}, dtype);
    EXPECT_FALSE(taken(of_more, more, w));
    const Tensor wide = to_gpu(host.normal({16'392, 64}, dtype, "w")), of_wide = poisoned({16, 16'392}, dtype);
    EXPECT_FALSE(taken(of_wide, x, wide));
    const kernels::RowProducts as_training;
    if (dtype == DType::f32) {
      EXPECT_FALSE(taken(y, x, w)) << "training's bits are required";
    }
  }
}

// Elements of a view's base beside its rows are neither read nor written.
TEST_F(FewRowsOnGpu, ReadsAndWritesViews) {
  const FewRows few;
  for (const DType dtype : kTypes) {
    const Tensor x = host.normal({9, 96}, dtype, "x"), w = host.normal({60, 104}, dtype, "w");
    const Tensor y = host.normal({9, 50}, dtype, "y"), y_gpu = to_gpu(y);
    const auto part = [](const Tensor& of, int64_t rows) { return of.narrow(1, 16, 72).narrow(0, 2, rows); };
    const Tensor x_gpu = to_gpu(x), w_gpu = to_gpu(w);
    ASSERT_TRUE(taken(y_gpu.narrow(1, 5, 33).narrow(0, 1, 7), part(x_gpu, 7), part(w_gpu, 33)));
    const Tensor exact = host.poisoned({7, 33}, DType::f64), x_wide = widened(host, x), w_wide = widened(host, w);
    kernels::gemm(host.stream, exact, Write::overwrite, part(x_wide, 7), kNo, part(w_wide, 33), kYes);
    const auto before = values(y), after = values(to_host(y_gpu)), wanted = values(exact);
    std::vector<double> inside;
    for (int64_t i = 0; i < y.elements(); ++i) {
      const int64_t row = i / 50 - 1, column = i % 50 - 5;
      if (row < 0 || row >= 7 || column < 0 || column >= 33) {
        ASSERT_EQ(after[static_cast<size_t>(i)], before[static_cast<size_t>(i)]) << i;
      } else {
        inside.push_back(after[static_cast<size_t>(i)]);
      }
    }
    const ExactProduct product{wanted, {}, 72};
    for (size_t i = 0; i < inside.size(); ++i) ASSERT_NEAR(inside[i], wanted[i], product.allowed(i, dtype, dtype)) << i;
  }
}

// A sequence's numbers do not depend on others in the batch.
TEST_F(FewRowsOnGpu, RowsDoNotDependOnEachOther) {
  const FewRows few;
  for (const DType dtype : kTypes)
    for (const int64_t K : {768, 2048, 4096}) {
      const Tensor x = to_gpu(host.normal({16, K}, dtype, "x")), w = to_gpu(host.normal({72, K}, dtype, "w"));
      const Tensor all = poisoned({16, 72}, dtype);
      ASSERT_TRUE(taken(all, x, w));
      const auto whole = values(to_host(all));
      for (const int64_t first : {0, 7, 11})
        for (const int64_t rows : {1, 3, 5}) {
          const Tensor some = poisoned({rows, 72}, dtype);
          ASSERT_TRUE(taken(some, x.narrow(0, first, rows), w));
          EXPECT_EQ(values(to_host(some)),
                    std::vector<double>(whole.begin() + first * 72, whole.begin() + (first + rows) * 72));
        }
    }
}

// Generation that is repeatable has the bits of training, which multiplies many rows.
TEST_F(FewRowsOnGpu, HaveTheBitsOfManyRowsWithinRowProducts) {
  const kernels::RowProducts as_training;
  const bool hopper = cuda::properties(0).hopper_kernels;
  constexpr int64_t kMany = 96;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{5120, 2048}, {2048, 4096}, {1536, 2048},
                                                          {2048, 768},  {4104, 2880}, {20'008, 544},
                                                          {72, 64},     {128, 96},    {24, 2056}};
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto& [N, K] : sizes) {
      const Problem p = on_host(kMany, N, K, dtype, dtype == DType::f16);
      const Problem all{to_gpu(p.x), to_gpu(p.w), to_gpu(p.bias)};
      const auto product = [&](int64_t rows) {
        const Tensor y = poisoned({rows, N}, dtype), x = all.x.narrow(0, 0, rows);
        if (rows <= FewRows::kMost && N >= 1024 && hopper) {
          EXPECT_TRUE(taken(y, x, all.w, all.bias)) << N << " x " << K;
        }
        if (all.bias.defined())
          kernels::gemm_with_bias(gpu(), y, x, kNo, all.w, kYes, all.bias);
        else
          kernels::gemm(gpu(), y, Write::overwrite, x, kNo, all.w, kYes);
        return values(to_host(y));
      };
      const auto many = product(kMany);
      const FewRows few;
      for (const int64_t rows : {1, 3, 8, 9, 16, 17, 32, 64}) {
        SCOPED_TRACE(cat(rows, " x ", N, " x ", K, " ", dtype));
        const std::vector<double> wanted(many.begin(), many.begin() + rows * N);
        EXPECT_TRUE(product(rows) == wanted);
      }
    }
}

TEST_F(FewRowsOnGpu, WideProductsHaveTheBitsOfManyRowsWithinRowProducts) {
  const kernels::RowProducts as_training;
  constexpr int64_t kMany = 130;
  for (const auto& [D, E] :
       {std::pair<int64_t, int64_t>{2048, 128}, {2880, 32}, {64, 24}, {80, 7}, {1024, 256}, {20, 8}}) {
    const Tensor x = to_gpu(host.normal({kMany, D}, DType::bf16, "x")),
                 w = to_gpu(host.normal({E, D}, DType::f32, "w"));
    const auto product = [&](int64_t rows) {
      const Tensor y = poisoned({rows, E}, DType::f32);
      kernels::wide_linear(gpu(), y, x.narrow(0, 0, rows), w);
      return values(to_host(y));
    };
    const auto many = product(kMany);
    const FewRows few;
    for (const int64_t rows : {1, 5, 8, 9, 64}) {
      SCOPED_TRACE(cat("T ", rows, " D ", D, " E ", E));
      EXPECT_EQ(product(rows), std::vector<double>(many.begin(), many.begin() + rows * E));
    }
  }
}

// A router's logits, whose weight is in float32, agree with the CPU, which multiplies in float32 too.
TEST_F(FewRowsOnGpu, WideProductsAgreeWithTheCpu) {
  const FewRows few;
  for (const auto& [D, E] : {std::pair<int64_t, int64_t>{8, 8}, {64, 24}, {2048, 128}, {1096, 7}, {20, 8}})
    for (const int64_t T : {0, 1, 2, 4, 5, 16, 17, 33, 64, 65}) {
      SCOPED_TRACE(cat("T ", T, " D ", D, " E ", E));
      const Tensor x = host.normal({T, D}, DType::bf16, "x"), w = host.normal({E, D}, DType::f32, "w");
      const Tensor y = host.poisoned({T, E}, DType::f32), on_gpu = poisoned({T, E}, DType::f32);
      kernels::wide_linear(host.stream, y, x, w);
      const Tensor x_gpu = to_gpu(x), w_gpu = to_gpu(w);
      if (T > 0) {
        EXPECT_EQ(kernels::cuda::few_rows_wide_linear(gpu(), on_gpu, x_gpu, w_gpu), T <= 64 && D % 8 == 0);
      }
      const Tensor through = poisoned({T, E}, DType::f32);
      kernels::wide_linear(gpu(), through, x_gpu, w_gpu);
      const double size = std::sqrt(static_cast<double>(D));
      EXPECT_TRUE(agree(through, y, 1e-5 * size, 1e-5));
    }
}

}  // namespace
}  // namespace witan
