#include "witan/kernels/grouped/grouped_gemm.h"

#include <cmath>
#include <cstring>

#include "support/cuda_rank.h"
#include "support/optimizer.h"
#include "support/products.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::kGroupedTypes;
using testing::values;
using testing::widened;
using Case = testing::GroupedCase;

// Gaps, groups out of order, empty groups, single rows, one hot expert, no rows; sizes around tiles of 64, 128 and 256
// and blocks of 64 of K, rows of whole 16 bytes (as tensor cores require) and others.
const std::vector<Case> kCases = {
    {40, 72, 136, {3, 10, 30}, {5, 17, 1}},
    {64, 70, 90, {40, 0, 20, 64}, {20, 16, 0, 0}},
    {300, 200, 520, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {700, 320, 136, {0, 1, 3, 6, 11, 300}, {1, 2, 3, 5, 289, 400}},
    {700, 64, 768, {5, 69, 133, 261, 261, 453}, {64, 64, 128, 0, 192, 243}},
    {700, 131, 33, {5, 69, 133, 261, 261, 453}, {64, 64, 128, 0, 192, 243}},
    {520, 264, 128, {0, 130}, {130, 390}},
    {200, 328, 48, {0, 70}, {70, 130}},
    {1300, 128, 464, {0, 257, 577, 960}, {257, 320, 383, 340}},
    {1400, 1032, 392, {0, 650}, {650, 750}},
    {1400, 392, 1032, {0, 890}, {890, 510}},
    {1100, 1040, 264, {0, 550}, {550, 550}},
    {1100, 264, 1040, {0, 520}, {520, 580}},
    {8, 64, 64, {0, 0}, {0, 0}},
    {0, 64, 64, {0, 0}, {0, 0}},
};

class CudaGroupedGemm : public CudaTest {
 protected:
  struct Problem {
    Tensor x, dy, w;
    RowGroups groups;
  };
  Problem on_host(const Case& c, DType dtype) {
    const int64_t E = std::ssize(c.count);
    Problem p{host.normal({c.capacity, c.K}, dtype, "x"),
              host.normal({c.capacity, c.N}, dtype, "dy"),
              host.normal({E, c.N, c.K}, dtype, "w"),
              {host.tensor<int64_t>({E}, c.begin), host.tensor<int64_t>({E}, c.count)}};
    for (const Tensor* rows : {&p.x, &p.dy}) poison_outside(c, *rows);
    return p;
  }
  // The same operands in float64.
  Problem exact(const Problem& p) { return {widened(host, p.x), widened(host, p.dy), widened(host, p.w), p.groups}; }
  Problem to_gpu(const Problem& p) {
    return {to_gpu(p.x), to_gpu(p.dy), to_gpu(p.w), {to_gpu(p.groups.begin), to_gpu(p.groups.count)}};
  }
  using CudaTest::to_gpu;

  // Rows that belong to no group are NaN, and must not be read.
  static void poison_outside(const Case& c, const Tensor& rows) {
    std::vector<bool> inside(static_cast<size_t>(c.capacity));
    for (size_t e = 0; e < c.count.size(); ++e) std::fill_n(inside.begin() + c.begin[e], c.count[e], true);
    dispatch_floating(rows.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < rows.elements(); ++i)
        if (!inside[static_cast<size_t>(i / rows.size(1))]) rows.data<T>()[i] = T(std::nanf(""));
    });
  }
  // The exact products of x's rows, of dy's, and of both; NaN outside the groups, as in poisoned outputs.
  ExactProduct forward(const Problem& p) {
    const Tensor y = host.poisoned(p.dy.shape(), DType::f64);
    const Problem wide = exact(p);
    kernels::grouped_gemm_forward(host.stream, y, wide.x, wide.groups, wide.w);
    return {values(y), {}, p.x.size(1)};
  }
  ExactProduct backward_input(const Problem& p) {
    const Tensor dx = host.poisoned(p.x.shape(), DType::f64);
    const Problem wide = exact(p);
    kernels::grouped_gemm_backward_input(host.stream, dx, wide.dy, wide.groups, wide.w);
    return {values(dx), {}, p.dy.size(1)};
  }
  ExactProduct backward_weight(const Problem& p) {
    const Tensor dw = host.poisoned(p.w.shape(), DType::f64);
    const Problem wide = exact(p);
    kernels::grouped_gemm_backward_weight(host.stream, {dw, Write::overwrite}, wide.dy, wide.x, wide.groups);
    const auto counts = p.groups.count.span<int64_t>();
    return {values(dw), {}, counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end())};
  }
  void expect_same_bits(const Tensor& a, const Tensor& b) {
    const Tensor one = to_host(a), two = to_host(b);
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), static_cast<size_t>(one.bytes())), 0);
  }
  // Expects the result within the tolerance, and the same bits in a second call.
  void expect_product(const Tensor& on_gpu, const Tensor& again, const ExactProduct& expected, DType in) {
    EXPECT_TRUE(close(to_host(on_gpu), expected, in));
    expect_same_bits(on_gpu, again);
  }
};

TEST_F(CudaGroupedGemm, RowsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype));
      const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
      const Tensor ys[] = {poisoned(cpu.dy.shape(), dtype), poisoned(cpu.dy.shape(), dtype)};
      for (const Tensor& out : ys) kernels::grouped_gemm_forward(gpu(), out, on_gpu.x, on_gpu.groups, on_gpu.w);
      expect_product(ys[0], ys[1], forward(cpu), dtype);
      const Tensor dxs[] = {poisoned(cpu.x.shape(), dtype), poisoned(cpu.x.shape(), dtype)};
      for (const Tensor& out : dxs)
        kernels::grouped_gemm_backward_input(gpu(), out, on_gpu.dy, on_gpu.groups, on_gpu.w);
      expect_product(dxs[0], dxs[1], backward_input(cpu), dtype);
    }
}

// The tile depends on the number of an expert's rows, but changes no bit: the first rows of the groups are the same in
// all cases.
TEST_F(CudaGroupedGemm, RowsDoNotDependOnEachOther) {
  constexpr int64_t kFirst = 40, K = 1032, N = 392;
  const Tensor w = to_gpu(host.normal({2, N, K}, DType::bf16, "w"));
  const Tensor x = to_gpu(host.normal({2, 700, K}, DType::bf16, "x")),
               dy = to_gpu(host.normal({2, 700, N}, DType::bf16, "dy"));
  std::vector<Tensor> first_y, first_dx, first_gated;
  for (const int64_t rows : {kFirst, int64_t{64}, int64_t{200}, int64_t{300}, int64_t{512}, int64_t{700}}) {
    SCOPED_TRACE(cat(rows, " rows"));
    const RowGroups groups{to_gpu(host.tensor<int64_t>({2}, {0, rows})),
                           to_gpu(host.tensor<int64_t>({2}, {rows, rows}))};
    const auto of = [&](const Tensor& all) {
      const Tensor part = gpu().empty({2 * rows, all.size(2)}, DType::bf16);
      for (const int64_t e : {0, 1})
        gpu().copy(part.narrow(0, e * rows, rows), all.narrow(0, e, 1).reshape({700, all.size(2)}).narrow(0, 0, rows));
      return part;
    };
    const Tensor y = poisoned({2 * rows, N}, DType::bf16), dx = poisoned({2 * rows, K}, DType::bf16);
    kernels::grouped_gemm_forward(gpu(), y, of(x), groups, w);
    kernels::grouped_gemm_backward_input(gpu(), dx, of(dy), groups, w);
    const Tensor h = poisoned(y.shape(), DType::bf16), gated = poisoned({2 * rows, N / 2}, DType::bf16);
    kernels::grouped_swiglu_forward(gpu(), gated, h, of(x), groups, w, {});
    expect_same_bits(h, y);
    for (const int64_t e : {0, 1}) {
      first_y.push_back(to_host(y).narrow(0, e * rows, kFirst));
      first_dx.push_back(to_host(dx).narrow(0, e * rows, kFirst));
      first_gated.push_back(to_host(gated).narrow(0, e * rows, kFirst));
    }
  }
  for (size_t i = 2; i < first_y.size(); ++i) {
    EXPECT_EQ(values(first_y[i]), values(first_y[i % 2])) << i;
    EXPECT_EQ(values(first_dx[i]), values(first_dx[i % 2])) << i;
    EXPECT_EQ(values(first_gated[i]), values(first_gated[i % 2])) << i;
  }
}

// A fused kernel changes no bit of the sums or of the activations, and leaves other rows alone.
TEST_F(CudaGroupedGemm, SwigluFusedChangesNoBit) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const bool weighted : {false, true}) {
        if (c.N % 2 != 0) continue;
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype, weighted ? ", weighted" : ""));
        const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
        const Tensor s = weighted ? host.normal({c.capacity}, accumulator(dtype), "s") : Tensor(), s_gpu = to_gpu(s);
        const Shape wide{c.capacity, c.N}, half{c.capacity, c.N / 2};
        const Tensor h = poisoned(wide, dtype), y = poisoned(half, dtype);
        const Tensor h_apart = poisoned(wide, dtype), y_apart = poisoned(half, dtype);
        kernels::grouped_swiglu_forward(gpu(), y, h, on_gpu.x, on_gpu.groups, on_gpu.w, s_gpu);
        kernels::grouped_gemm_forward(gpu(), h_apart, on_gpu.x, on_gpu.groups, on_gpu.w);
        kernels::swiglu_forward(gpu(), y_apart, h_apart, s_gpu, on_gpu.groups);
        expect_same_bits(y, y_apart);
        expect_product(h, h_apart, forward(cpu), dtype);
      }
}

TEST_F(CudaGroupedGemm, WeightGradientsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : kGroupedTypes) {
      const Problem cpu = on_host(c, in), on_gpu = to_gpu(cpu);
      ExactProduct expected = backward_weight(cpu);
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", in, " -> ", out,
                         write == Write::accumulate ? ", added" : ""));
        const Tensor before =
            write == Write::accumulate ? host.normal(cpu.w.shape(), out, "dw") : host.poisoned(cpu.w.shape(), out);
        if (write == Write::accumulate) expected.before = values(before);
        const Tensor dws[] = {to_gpu(before), to_gpu(before)};
        for (const Tensor& dw : dws)
          kernels::grouped_gemm_backward_weight(gpu(), {dw, write}, on_gpu.dy, on_gpu.x, on_gpu.groups);
        expect_product(dws[0], dws[1], expected, in);
      }
    }
}

// For every tile, in either mode: the sums of the stored values, whose computation changes no bit of those, and the
// same sums in a second call. A thread's part of a block is two independent float32 sums of 32 squares.
TEST_F(CudaGroupedGemm, BlockSumsMatchTheStoredValues) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : kGroupedTypes)
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", in, " -> ", out,
                         write == Write::accumulate ? ", added" : ""));
        const Problem cpu = on_host(c, in);
        testing::put_zeros(cpu.x);
        const Problem on_gpu = to_gpu(cpu);
        const bool adds = write == Write::accumulate;
        const Tensor before = adds ? host.normal(cpu.w.shape(), out, "dw") : host.poisoned(cpu.w.shape(), out);
        const Tensor sums_before = host.poisoned(kernels::block_sums_shape(before.shape()), DType::f64);
        if (adds) {
          testing::put_zeros(before);
          kernels::block_square_sums(host.stream, sums_before, before);
        }
        const Tensor dws[] = {to_gpu(before), to_gpu(before), to_gpu(before)};
        const Tensor sums[] = {to_gpu(sums_before), to_gpu(sums_before), {}};
        for (const int i : {0, 1, 2})
          kernels::grouped_gemm_backward_weight(gpu(), {dws[i], write, sums[i]}, on_gpu.dy, on_gpu.x, on_gpu.groups);
        expect_same_bits(dws[0], dws[2]);
        expect_same_bits(sums[0], sums[1]);
        EXPECT_TRUE(testing::close_block_sums(to_host(sums[0]), to_host(dws[0]), out == DType::f64 ? 1e-12 : 2.5e-6));
      }
}

TEST_F(CudaGroupedGemm, NonFiniteGradientsReachTheirBlocks) {
  const Case c{300, 520, 136, {0, 100}, {100, 200}};
  for (const DType out : {DType::bf16, DType::f32})
    for (const Write write : {Write::overwrite, Write::accumulate}) {
      const Problem cpu = on_host(c, DType::bf16);
      cpu.dy.data<bf16>()[150 * c.N + 70] = bf16(std::nanf(""));  // row 70 of the second expert's dw
      const Problem on_gpu = to_gpu(cpu);
      const Tensor dw = to_gpu(host.normal(cpu.w.shape(), out, "dw"));
      const Tensor sums = poisoned(kernels::block_sums_shape(dw.shape()), DType::f64);
      kernels::grouped_gemm_backward_weight(gpu(), {dw, write, sums}, on_gpu.dy, on_gpu.x, on_gpu.groups);
      const std::vector<double> found = values(to_host(sums));
      constexpr size_t kAcross = 5, kDown = 9;  // blocks
      for (size_t block = 0; block < 2 * kDown * kAcross; ++block)
        EXPECT_EQ(std::isnan(found[2 * block]), block / kAcross == kDown + 70 / 16) << block;
    }
}

// Few enough tiles of every kind for racecheck, which tracks every access to shared memory.
TEST_F(CudaGroupedGemm, FewTilesMatchExactProducts) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Problem cpu = on_host({72, 136, 72, {1, 0, 6}, {5, 0, 66}}, dtype), on_gpu = to_gpu(cpu);
    const Tensor y = poisoned(cpu.dy.shape(), dtype), dx = poisoned(cpu.x.shape(), dtype);
    const Tensor dw = poisoned(cpu.w.shape(), dtype);
    kernels::grouped_gemm_forward(gpu(), y, on_gpu.x, on_gpu.groups, on_gpu.w);
    kernels::grouped_gemm_backward_input(gpu(), dx, on_gpu.dy, on_gpu.groups, on_gpu.w);
    const Tensor sums = poisoned(kernels::block_sums_shape(dw.shape()), DType::f64);
    kernels::grouped_gemm_backward_weight(gpu(), {dw, Write::overwrite, sums}, on_gpu.dy, on_gpu.x, on_gpu.groups);
    EXPECT_TRUE(close(to_host(y), forward(cpu), dtype));
    EXPECT_TRUE(close(to_host(dx), backward_input(cpu), dtype));
    EXPECT_TRUE(close(to_host(dw), backward_weight(cpu), dtype));
    EXPECT_TRUE(testing::close_block_sums(to_host(sums), to_host(dw), 2.5e-6));
    const Tensor h = poisoned(cpu.dy.shape(), dtype), gated = poisoned({cpu.dy.size(0), cpu.dy.size(1) / 2}, dtype);
    kernels::grouped_swiglu_forward(gpu(), gated, h, on_gpu.x, on_gpu.groups, on_gpu.w, {});
    expect_same_bits(h, y);
  }
}

// Many rows for each of many experts, so that every block has several tiles and the ring wraps around.
TEST_F(CudaGroupedGemm, ManyTilesPerBlock) {
  Case c{0, 192, 640, {}, {}};
  for (int64_t e = 0; e < 70; ++e) {
    c.begin.push_back(c.capacity);
    c.count.push_back(e * 37 % 400);
    c.capacity += c.count.back();
  }
  const Problem cpu = on_host(c, DType::bf16), on_gpu = to_gpu(cpu);
  const Tensor y = poisoned(cpu.dy.shape(), DType::bf16), dx = poisoned(cpu.x.shape(), DType::bf16);
  const Tensor dw = poisoned(cpu.w.shape(), DType::f32);
  kernels::grouped_gemm_forward(gpu(), y, on_gpu.x, on_gpu.groups, on_gpu.w);
  kernels::grouped_gemm_backward_input(gpu(), dx, on_gpu.dy, on_gpu.groups, on_gpu.w);
  kernels::grouped_gemm_backward_weight(gpu(), {dw, Write::overwrite}, on_gpu.dy, on_gpu.x, on_gpu.groups);
  EXPECT_TRUE(close(to_host(y), forward(cpu), DType::bf16));
  EXPECT_TRUE(close(to_host(dx), backward_input(cpu), DType::bf16));
  EXPECT_TRUE(close(to_host(dw), backward_weight(cpu), DType::bf16));
}

// The tile depends on the expected rows, which the host knows; results do not.
TEST_F(CudaGroupedGemm, EveryTileShapeMatchesExactProducts) {
  const Case c{600, 320, 512, {0, 90, 600}, {90, 510, 0}};
  const Problem cpu = on_host(c, DType::bf16);
  Problem on_gpu = to_gpu(cpu);
  const ExactProduct y = forward(cpu), dx = backward_input(cpu);
  for (const int64_t expected : {int64_t{-1}, int64_t{1}, int64_t{400}, int64_t{100000}}) {
    on_gpu.groups.expected_rows = expected;
    const Tensor y_gpu = poisoned(cpu.dy.shape(), DType::bf16), dx_gpu = poisoned(cpu.x.shape(), DType::bf16);
    kernels::grouped_gemm_forward(gpu(), y_gpu, on_gpu.x, on_gpu.groups, on_gpu.w);
    kernels::grouped_gemm_backward_input(gpu(), dx_gpu, on_gpu.dy, on_gpu.groups, on_gpu.w);
    EXPECT_TRUE(close(to_host(y_gpu), y, DType::bf16)) << expected;
    EXPECT_TRUE(close(to_host(dx_gpu), dx, DType::bf16)) << expected;
    const Tensor h = poisoned(cpu.dy.shape(), DType::bf16), gated = poisoned({c.capacity, c.N / 2}, DType::bf16);
    const Tensor gated_apart = poisoned(gated.shape(), DType::bf16);
    kernels::grouped_swiglu_forward(gpu(), gated, h, on_gpu.x, on_gpu.groups, on_gpu.w, {});
    kernels::swiglu_forward(gpu(), gated_apart, y_gpu, {}, on_gpu.groups);
    expect_same_bits(h, y_gpu);
    expect_same_bits(gated, gated_apart);
  }
}

}  // namespace
}  // namespace witan
