#include <cmath>
#include <cstring>

#include "support/cuda_rank.h"
#include "support/products.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using kernels::FewRows;
using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::values;
using testing::widened;

struct FewCase {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
};

// Experts without rows, one with all of them, several passes over its rows, gaps, groups out of order; weights around
// 16 rows and 8 of each half, sums around blocks of 64.
std::vector<FewCase> few_cases() {
  std::vector<FewCase> cases = {
      {1, 64, 16, {0, 0, 1, 1}, {0, 1, 0, 0}},
      {8, 72, 34, {0, 3, 3, 4}, {3, 0, 1, 4}},
      {8, 128, 33, {0, 3, 3, 4}, {3, 0, 1, 4}},
      {8, 2048, 48, {0, 0, 0, 0, 0, 8}, {0, 0, 0, 0, 8, 0}},
      {9, 768, 20, {0, 0, 9}, {0, 9, 0}},
      {20, 136, 66, {9, 0, 14, 2, 20}, {5, 2, 6, 7, 0}},
      {16, 1096, 130, {0, 0, 0, 0}, {0, 0, 16, 0}},
      {40, 264, 50, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 40, 0, 0, 0, 0, 0, 0, 0}},
      {12, 64, 24, {0, 0, 0}, {0, 0, 0}},
  };
  // More experts than a warp examines at once, with at most one row each.
  FewCase many{64, 128, 40, {}, {}};
  for (int64_t e = 0; e < 300; ++e) {
    many.begin.push_back(e / 5);
    many.count.push_back(e % 5 == 4 ? 1 : 0);
  }
  cases.push_back(many);
  return cases;
}

class GroupedFewRowsOnGpu : public CudaTest {
 protected:
  struct Problem {
    Tensor x, w;
    RowGroups groups;
  };
  Problem on_host(const FewCase& c, DType dtype) {
    const int64_t E = std::ssize(c.count);
    Problem p{host.normal({c.capacity, c.K}, dtype, "x"),
              host.normal({E, c.N, c.K}, dtype, "w"),
              {host.tensor<int64_t>({E}, c.begin), host.tensor<int64_t>({E}, c.count)}};
    std::vector<bool> inside(static_cast<size_t>(c.capacity));
    for (size_t e = 0; e < c.count.size(); ++e) std::fill_n(inside.begin() + c.begin[e], c.count[e], true);
    dispatch_floating(dtype, [&]<class T>() {
      for (int64_t i = 0; i < p.x.elements(); ++i)
        if (!inside[static_cast<size_t>(i / c.K)]) p.x.data<T>()[i] = T(std::nanf(""));
    });
    return p;
  }
  using CudaTest::to_gpu;
  Problem to_gpu(const Problem& p) {
    return {to_gpu(p.x), to_gpu(p.w), {to_gpu(p.groups.begin), to_gpu(p.groups.count)}};
  }
  ExactProduct exact(const Problem& p) {
    const Tensor y = host.poisoned({p.x.size(0), p.w.size(1)}, DType::f64);
    kernels::grouped_gemm_forward(host.stream, y, widened(host, p.x), p.groups, widened(host, p.w));
    return {values(y), {}, p.x.size(1)};
  }
  void expect_same_bits(const Tensor& a, const Tensor& b) {
    const Tensor one = to_host(a), two = to_host(b);
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), static_cast<size_t>(one.bytes())), 0);
  }
};

// Rows outside the groups must stay NaN, as in the exact product.
TEST_F(GroupedFewRowsOnGpu, RowsMatchExactProducts) {
  const FewRows few;
  for (const FewCase& c : few_cases())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype));
      const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
      const Tensor y = poisoned({c.capacity, c.N}, dtype), again = poisoned(y.shape(), dtype);
      ASSERT_TRUE(kernels::cuda::few_rows_grouped(gpu(), y, on_gpu.x, on_gpu.groups, on_gpu.w));
      kernels::grouped_gemm_forward(gpu(), again, on_gpu.x, on_gpu.groups, on_gpu.w);
      ASSERT_TRUE(close(to_host(y), exact(cpu), dtype));
      expect_same_bits(y, again);
    }
}

TEST_F(GroupedFewRowsOnGpu, FusedSwigluChangesNoBit) {
  const FewRows few;
  for (const FewCase& c : few_cases())
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool weighted : {false, true}) {
        if (c.N % 2 != 0) continue;
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype, weighted ? ", weighted" : ""));
        const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
        const Tensor s = weighted ? to_gpu(host.normal({c.capacity}, DType::f32, "s")) : Tensor();
        const Tensor h = poisoned({c.capacity, c.N}, dtype), y = poisoned({c.capacity, c.N / 2}, dtype);
        ASSERT_TRUE(kernels::cuda::few_rows_grouped_swiglu(gpu(), y, h, on_gpu.x, on_gpu.groups, on_gpu.w, s));
        const Tensor h_apart = poisoned(h.shape(), dtype), y_apart = poisoned(y.shape(), dtype);
        kernels::grouped_gemm_forward(gpu(), h_apart, on_gpu.x, on_gpu.groups, on_gpu.w);
        kernels::swiglu_forward(gpu(), y_apart, h_apart, s, on_gpu.groups);
        expect_same_bits(h, h_apart);
        expect_same_bits(y, y_apart);
      }
}

// A row's bits do not depend on the number of its expert's rows, nor on their place in the pool.
TEST_F(GroupedFewRowsOnGpu, RowsDoNotDependOnEachOther) {
  const FewRows few;
  const int64_t K = 768, N = 96;
  const Tensor rows = host.normal({24, K}, DType::bf16, "x"), w = to_gpu(host.normal({6, N, K}, DType::bf16, "w"));
  const auto product = [&](int64_t first, int64_t count, int64_t expert) {
    std::vector<int64_t> begin(6), counts(6);
    counts[static_cast<size_t>(expert)] = count;
    const Tensor y = poisoned({count, N}, DType::bf16);
    const RowGroups groups{to_gpu(host.tensor<int64_t>({6}, begin)), to_gpu(host.tensor<int64_t>({6}, counts))};
    EXPECT_TRUE(kernels::cuda::few_rows_grouped(gpu(), y, to_gpu(rows).narrow(0, first, count), groups, w));
    return values(to_host(y));
  };
  const auto all = product(0, 24, 2);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {9, 9}, {20, 4}})
    EXPECT_EQ(product(first, count, 2),
              std::vector<double>(all.begin() + first * N, all.begin() + (first + count) * N));
}

// Generation that is repeatable has the bits of training, whose experts have many rows.
TEST_F(GroupedFewRowsOnGpu, HaveTheBitsOfManyRowsWithinRowProducts) {
  const kernels::RowProducts as_training;
  const bool hopper = cuda::properties(0).hopper_kernels;
  auto cases = few_cases();
  cases.push_back({30, 2048, 1536, {0, 1, 9, 9, 20, 22, 22, 22}, {1, 8, 0, 11, 2, 0, 0, 0}});
  cases.push_back({30, 768, 2048, {0, 1, 9, 9, 20, 22, 22, 22}, {1, 8, 0, 11, 2, 0, 0, 0}});
  for (const FewCase& c : cases)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype));
      const Problem p = to_gpu(on_host(c, dtype));
      const Tensor s = to_gpu(host.normal({c.capacity}, DType::f32, "s"));
      const auto products = [&] {
        const Tensor plain = poisoned({c.capacity, c.N}, dtype), h = poisoned({c.capacity, c.N}, dtype);
        const Tensor y = poisoned({c.capacity, c.N / 2}, dtype);
        kernels::grouped_gemm_forward(gpu(), plain, p.x, p.groups, p.w);
        if (c.N % 2 == 0) kernels::grouped_swiglu_forward(gpu(), y, h, p.x, p.groups, p.w, s);
        return std::vector<Tensor>{plain, h, y};
      };
      const auto many = products();
      const FewRows few;
      const auto as_few = products();
      for (size_t i = 0; i < many.size(); ++i) expect_same_bits(many[i], as_few[i]);
      if (hopper && c.K % 32 == 0 && c.N % 8 == 0) {
        EXPECT_TRUE(kernels::cuda::few_rows_grouped(gpu(), many[0], p.x, p.groups, p.w));
      }
    }
}

TEST_F(GroupedFewRowsOnGpu, TakeTheCallsThatTheyDocument) {
  const FewCase c{16, 64, 32, {0, 4, 8, 12}, {4, 4, 4, 4}};
  const Problem p = to_gpu(on_host(c, DType::bf16));
  const Tensor y = poisoned({16, 32}, DType::bf16);
  EXPECT_FALSE(kernels::cuda::few_rows_grouped(gpu(), y, p.x, p.groups, p.w)) << "FewRows is not active";
  const FewRows few;
  EXPECT_TRUE(kernels::cuda::few_rows_grouped(gpu(), y, p.x, p.groups, p.w));
  const Tensor more = poisoned({17, 64}, DType::bf16), of_more = poisoned({17, 32}, DType::bf16);
  EXPECT_FALSE(kernels::cuda::few_rows_grouped(gpu(), of_more, more, p.groups, p.w))
      << "more than four rows per expert";
  const Problem wide = to_gpu(on_host(c, DType::f32));
  const Tensor y_wide = poisoned({16, 32}, DType::f32);
  EXPECT_FALSE(kernels::cuda::few_rows_grouped(gpu(), y_wide, wide.x, wide.groups, wide.w));
}

}  // namespace
}  // namespace witan
