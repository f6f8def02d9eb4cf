// The choice among the algorithms that cuBLASLt offers for a product.
#include "support/cuda_rank.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/tensor/queue.h"

namespace witan {
namespace {

using kernels::Transpose;
using kernels::cuda::fingerprint;
using testing::CudaTest;

class CudaCublasLt : public CudaTest {};

struct Product {
  int64_t M, N, K;
  Transpose ta, tb;
  DType out;
};

// Products large enough for their algorithms to be timed: a forward product, an input gradient, a weight gradient whose
// sum is split, and one whose sum could be split.
const std::vector<Product> kProducts = {{4096, 1792, 512, Transpose::no, Transpose::yes, DType::bf16},
                                        {4096, 512, 1792, Transpose::no, Transpose::no, DType::bf16},
                                        {512, 768, 4096, Transpose::yes, Transpose::no, DType::f32},
                                        {1792, 512, 4096, Transpose::yes, Transpose::no, DType::f32}};

// A call that adds to zeros cannot try other algorithms, and so has the bits of the first one.
TEST_F(CudaCublasLt, ChosenAlgorithmsHaveTheBitsOfTheFirst) {
  for (const auto& [M, N, K, ta, tb, out] : kProducts) {
    SCOPED_TRACE(cat(M, " x ", N, " x ", K, " -> ", out));
    const Tensor a = host.normal(ta == Transpose::yes ? Shape{K, M} : Shape{M, K}, DType::bf16, "a"),
                 b = host.normal(tb == Transpose::yes ? Shape{N, K} : Shape{K, N}, DType::bf16, "b"),
                 c = host.poisoned({M, N}, out);
    const Tensor left = to_gpu(a), right = to_gpu(b);
    const auto multiply = [&](const Tensor& to, Write write) {
      return kernels::cuda::gemm_by_cublaslt(gpu(), to, write, left, ta, right, tb);
    };
    const Tensor first = gpu().zeros({M, N}, out), tried = poisoned({M, N}, out), kept = poisoned({M, N}, out),
                 replayed = poisoned({M, N}, out);
    if (!multiply(first, Write::accumulate)) GTEST_SKIP() << "cuBLASLt is missing";
    multiply(tried, Write::overwrite);
    multiply(kept, Write::overwrite);
    record(*gpu().queue(), [&] { multiply(replayed, Write::overwrite); })->launch();
    for (const Tensor* other : {&tried, &kept, &replayed})
      ASSERT_EQ(fingerprint(gpu(), *other), fingerprint(gpu(), first));
    kernels::gemm(host.stream, c, Write::overwrite, a, ta, b, tb);
    EXPECT_TRUE(agree(kept, c, 1e-4 * std::sqrt(static_cast<double>(K)), out == DType::f32 ? 1e-5 : 1.0 / 128));
  }
}

// The fastest algorithm, which only large products try, has the bits of the one that smaller products use.
TEST_F(CudaCublasLt, RowsDoNotDependOnTheirNumberWithinRowProducts) {
  const kernels::RowProducts by_row;
  constexpr int64_t kRows = 4096, kFew = 100;
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{1792, 512}, {512, 1792}, {2048, 2048}})
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      SCOPED_TRACE(cat(N, " x ", K));
      const Tensor a = to_gpu(host.normal({kRows, K}, DType::bf16, "a"));
      const Tensor b = to_gpu(host.normal(tb == Transpose::yes ? Shape{N, K} : Shape{K, N}, DType::bf16, "b"));
      const Tensor many = poisoned({kRows, N}, DType::bf16), few = poisoned({kFew, N}, DType::bf16);
      kernels::gemm(gpu(), many, Write::overwrite, a, Transpose::no, b, tb);
      kernels::gemm(gpu(), few, Write::overwrite, a.narrow(0, 0, kFew), Transpose::no, b, tb);
      EXPECT_EQ(fingerprint(gpu(), many.narrow(0, 0, kFew)), fingerprint(gpu(), few));
    }
}

TEST_F(CudaCublasLt, FingerprintsDependOnEveryBitAndItsPlace) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    SCOPED_TRACE(dtype);
    const Tensor x = host.normal({37, 65}, dtype, "x"), on_gpu = to_gpu(x);
    const uint64_t before = fingerprint(gpu(), on_gpu);
    EXPECT_EQ(fingerprint(gpu(), to_gpu(x)), before);
    auto* bytes = reinterpret_cast<uint8_t*>(x.raw());
    for (const int64_t at : {int64_t{0}, x.bytes() / 2, x.bytes() - 1}) {
      bytes[at] ^= 1;
      EXPECT_NE(fingerprint(gpu(), to_gpu(x)), before) << "byte " << at;
      bytes[at] ^= 1;
    }
    std::swap_ranges(bytes, bytes + size_of(dtype), bytes + size_of(dtype));
    EXPECT_NE(fingerprint(gpu(), to_gpu(x)), before) << "two elements have changed places";
    std::swap_ranges(bytes, bytes + size_of(dtype), bytes + size_of(dtype));
    // For a view, only the visible elements count.
    const uint64_t shown = fingerprint(gpu(), on_gpu.narrow(1, 0, 64));
    bytes[65 * size_of(dtype) - 1] ^= 1;
    EXPECT_EQ(fingerprint(gpu(), to_gpu(x).narrow(1, 0, 64)), shown);
    EXPECT_NE(fingerprint(gpu(), to_gpu(x)), before);
  }
}

}  // namespace
}  // namespace witan
