#include "witan/kernels/gemm/gemm.h"

#include <functional>
#include <tuple>

#include "support/cuda_rank.h"
#include "support/products.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/tensor/cuda/stream.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::rounding_of;
using testing::summation_error;
using testing::values;
using testing::widened;

constexpr Transpose kNo = Transpose::no, kYes = Transpose::yes;
constexpr std::pair<DType, DType> kTypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                              {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                              {DType::f16, DType::f16},   {DType::f16, DType::f32}};

using Product = decltype(kernels::gemm);

class CudaGemm : public CudaTest {
 protected:
  Tensor operand(int64_t rows, int64_t columns, Transpose transpose, DType dtype, const char* name) {
    return host.normal(transpose == kYes ? Shape{columns, rows} : Shape{rows, columns}, dtype, name);
  }
  // Compares `product` on the GPU with the exact one, in both write modes, twice.
  void check(const std::function<Product>& product, int64_t M, int64_t N, int64_t K, Transpose ta, Transpose tb,
             DType in, DType out);
  Tensor run(const std::function<Product>& product, const Tensor& c, Write write, const Tensor& a, Transpose ta,
             const Tensor& b, Transpose tb) {
    const Tensor on_gpu = to_gpu(c);
    product(gpu(), on_gpu, write, a, ta, b, tb);
    return to_host(on_gpu);
  }
};

void CudaGemm::check(const std::function<Product>& product, int64_t M, int64_t N, int64_t K, Transpose ta, Transpose tb,
                     DType in, DType out) {
  SCOPED_TRACE(cat(M, " x ", N, " x ", K, ta == kYes ? " T" : " N", tb == kYes ? "T " : "N ", in, " -> ", out));
  const Tensor a = operand(M, K, ta, in, "a"), b = operand(K, N, tb, in, "b");
  const Tensor a_gpu = to_gpu(a), b_gpu = to_gpu(b);
  ExactProduct exact{{}, {}, K};
  const Tensor product_alone = host.poisoned({M, N}, DType::f64);
  kernels::gemm(host.stream, product_alone, Write::overwrite, widened(host, a), ta, widened(host, b), tb);
  exact.product = values(product_alone);
  for (const Write write : {Write::overwrite, Write::accumulate}) {
    const Tensor before = write == Write::overwrite ? host.poisoned({M, N}, out) : host.normal({M, N}, out, "c");
    if (write == Write::accumulate) exact.before = values(before);
    const Tensor c = run(product, before, write, a_gpu, ta, b_gpu, tb);
    const Tensor again = run(product, before, write, a_gpu, ta, b_gpu, tb);
    ASSERT_TRUE(close(c, exact, in));
    ASSERT_EQ(values(c), values(again));
  }
}

// Around the edges of tiles, sizes that tensor cores support (rows of 16 bytes) and others, long sums, single rows.
const std::vector<std::tuple<int64_t, int64_t, int64_t>> kSizes = {
    {1, 1, 1},      {1, 33, 17},     {3, 31, 5},    {64, 64, 16},  {65, 63, 17},   {128, 64, 512}, {300, 530, 20},
    {67, 48, 1300}, {256, 384, 128}, {1, 1000, 40}, {1000, 1, 40}, {40, 24, 4096}, {129, 257, 72}};

TEST_F(CudaGemm, IsTheProduct) {
  for (const auto& [M, N, K] : kSizes)
    for (const Transpose ta : {kNo, kYes})
      for (const Transpose tb : {kNo, kYes})
        for (const auto& [in, out] : kTypes) check(kernels::gemm, M, N, K, ta, tb, in, out);
}

TEST_F(CudaGemm, ThePlainKernelIsTheProduct) {
  for (const auto& [M, N, K] : kSizes)
    for (const Transpose ta : {kNo, kYes})
      for (const Transpose tb : {kNo, kYes})
        for (const auto& [in, out] : kTypes) check(kernels::cuda::plain_gemm, M, N, K, ta, tb, in, out);
}

// Few enough tiles for racecheck, which tracks every access to shared memory.
TEST_F(CudaGemm, ThePlainKernelIsTheProductOfFewTiles) {
  for (const auto& [in, out] : kTypes) check(kernels::cuda::plain_gemm, 65, 67, 37, kYes, kNo, in, out);
}

// Otherwise the tests above would test only the plain kernel.
TEST_F(CudaGemm, CuBlasLtTakesOrdinaryProducts) {
  for (const auto& [in, out] : kTypes) {
    const Tensor a = to_gpu(host.normal({64, 32}, in, "a")), b = to_gpu(host.normal({48, 32}, in, "b"));
    const Tensor c = poisoned({64, 48}, out);
    if (!kernels::cuda::gemm_by_cublaslt(gpu(), c, Write::overwrite, a, kNo, b, kYes))
      GTEST_SKIP() << "cuBLASLt is missing or refuses " << in << " -> " << out;
  }
}

TEST_F(CudaGemm, ReadsAndWritesViews) {
  for (const auto& [in, out] : kTypes)
    for (const int64_t shift : {3, 8, 16}) {  // elements: rows that are not aligned to 16 bytes, and rows that are
      SCOPED_TRACE(cat(in, " -> ", out, ", ", shift));
      const Tensor a = host.normal({20, 50 + shift}, in, "a"), b = host.normal({60, 91}, in, "b");
      const Tensor c = host.normal({11, 80}, out, "c"), c_gpu = to_gpu(c), a_gpu = to_gpu(a), b_gpu = to_gpu(b);
      const auto multiply = [&](Stream& stream, const Tensor& to, const Tensor& left, const Tensor& right) {
        kernels::gemm(stream, to.narrow(1, shift, 35).narrow(0, 1, 9), Write::accumulate,
                      left.narrow(1, shift, 40).narrow(0, 5, 9), kNo, right.narrow(1, 7, 35).narrow(0, 20, 40), kNo);
      };
      multiply(host.stream, c, a, b);
      multiply(gpu(), c_gpu, a_gpu, b_gpu);
      // Both are rounded; the CPU's result is off by half a unit too.
      EXPECT_TRUE(agree(c_gpu, c, 2 * summation_error(in, 40), 3 * rounding_of(out)));
      const auto before = values(host.normal({11, 80}, out, "c")), after = values(to_host(c_gpu));
      for (size_t i = 0; i < after.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / 80, column = static_cast<int64_t>(i) % 80 - shift;
        if (row < 1 || row > 9 || column < 0 || column >= 35) {
          ASSERT_EQ(after[i], before[i]) << i;
        }
      }
    }
}

// Few elements and a long sum, which libraries split among blocks. Parts rounded to bfloat16 would add errors larger
// than the final rounding.
TEST_F(CudaGemm, LongSumsOfBfloat16AreRoundedOnce) {
  constexpr int64_t K = 16384;
  const Tensor a = host.normal({K, 64}, DType::bf16, "a"), b = host.normal({K, 96}, DType::bf16, "b");
  const Tensor c = host.poisoned({64, 96}, DType::f64), on_gpu = poisoned({64, 96}, DType::bf16);
  kernels::gemm(host.stream, c, Write::overwrite, widened(host, a), kYes, widened(host, b), kNo);
  kernels::gemm(gpu(), on_gpu, Write::overwrite, to_gpu(a), kYes, to_gpu(b), kNo);
  EXPECT_TRUE(close(to_host(on_gpu), ExactProduct{values(c), {}, K}, DType::bf16));
}

// TF32 has 10 bits of mantissa: products would be off by 3e-4, and sums of 256 by 5e-3.
TEST_F(CudaGemm, Float32IsMultipliedAsFloat32) {
  const Tensor a = host.normal({512, 256}, DType::f32, "a"), b = host.normal({64, 256}, DType::f32, "b");
  const Tensor c = host.poisoned({512, 64}, DType::f32), on_gpu = poisoned({512, 64}, DType::f32);
  kernels::gemm(host.stream, c, Write::overwrite, a, kNo, b, kYes);
  kernels::gemm(gpu(), on_gpu, Write::overwrite, to_gpu(a), kNo, to_gpu(b), kYes);
  EXPECT_TRUE(agree(on_gpu, c, 3e-4, 1e-6));
}

// Computed by the library in one pass, or without it in two; an empty sum leaves only the bias.
TEST_F(CudaGemm, ABiasIsAddedToEveryRow) {
  for (const auto& [in, out] : kTypes)
    for (const auto& [M, N, K] : kSizes) {
      SCOPED_TRACE(cat(M, " x ", N, " x ", K, " ", in, " -> ", out));
      const Tensor a = operand(M, K, kNo, in, "a"), b = operand(K, N, kYes, in, "b"),
                   row = host.normal({N}, out, "row");
      const Tensor c = poisoned({M, N}, out), again = poisoned({M, N}, out);
      ExactProduct exact{{}, {}, K};
      const Tensor alone = host.poisoned({M, N}, DType::f64), repeated = host.poisoned({M, N}, DType::f64);
      kernels::gemm(host.stream, alone, Write::overwrite, widened(host, a), kNo, widened(host, b), kYes);
      kernels::repeat_row(host.stream, repeated, widened(host, row));
      exact.product = values(alone);
      exact.before = values(repeated);
      for (const Tensor& to : {c, again})
        kernels::gemm_with_bias(gpu(), to, to_gpu(a), kNo, to_gpu(b), kYes, to_gpu(row));
      ASSERT_TRUE(close(to_host(c), exact, in));
      ASSERT_EQ(values(to_host(c)), values(to_host(again)));
    }
  const Tensor row = to_gpu(host.normal({8}, DType::f32, "row")), c = poisoned({2, 8}, DType::f32);
  kernels::gemm_with_bias(gpu(), c, gpu().empty({2, 0}, DType::f32), kNo, gpu().empty({8, 0}, DType::f32), kYes, row);
  EXPECT_EQ(values(to_host(c.narrow(0, 1, 1).reshape({8}))), values(to_host(row)));
}

TEST_F(CudaGemm, AcceptsEmptySumsAndEmptyResults) {
  for (const auto& [in, out] : kTypes) {
    const Tensor a = gpu().empty({2, 0}, in), b = gpu().empty({0, 3}, in), c = poisoned({2, 3}, out);
    kernels::gemm(gpu(), c, Write::overwrite, a, kNo, b, kNo);
    EXPECT_EQ(values(to_host(c)), std::vector<double>(6, 0.0));
    const Tensor kept = host.normal({2, 3}, out, "c"), on_gpu = to_gpu(kept);
    kernels::gemm(gpu(), on_gpu, Write::accumulate, a, kNo, b, kNo);
    EXPECT_EQ(values(to_host(on_gpu)), values(kept));
    const Tensor some = to_gpu(host.normal({4, 3}, in, "b"));
    kernels::gemm(gpu(), gpu().empty({0, 3}, out), Write::overwrite, gpu().empty({0, 4}, in), kNo, some, kNo);
    kernels::gemm(gpu(), gpu().empty({4, 0}, out), Write::overwrite, some, kNo, gpu().empty({3, 0}, in), kNo);
    gpu().wait();
  }
}

// After the first call of its kind, a product can be captured; replays write the same result as the call.
TEST_F(CudaGemm, CanBeCaptured) {
  const Tensor a = to_gpu(host.normal({200, 128}, DType::bf16, "a")),
               b = to_gpu(host.normal({64, 128}, DType::bf16, "b"));
  const Tensor first = poisoned({200, 64}, DType::bf16), replayed = poisoned({200, 64}, DType::bf16);
  kernels::gemm(gpu(), first, Write::overwrite, a, kNo, b, kYes);
  gpu().wait();
  const cudaStream_t stream = cuda::native(gpu());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning to capture");
  kernels::gemm(gpu(), replayed, Write::overwrite, a, kNo, b, kYes);
  cuda::check(cudaStreamEndCapture(stream, &graph), "capturing");
  cuda::check(cudaGraphInstantiate(&ready, graph, 0), "preparing a graph");
  for (int i = 0; i < 2; ++i) {
    cuda::check(cudaGraphLaunch(ready, stream), "replaying a graph");
    EXPECT_EQ(values(to_host(replayed)), values(to_host(first)));
    gpu().zero(replayed);
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace witan
