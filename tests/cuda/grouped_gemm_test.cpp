#include "witan/kernels/grouped_gemm.h"

#include <cmath>

#include "support/cuda_rank.h"
#include "witan/kernels/activation.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

struct Case {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
};

// Gaps, groups out of order, empty groups, single rows, one hot expert, nothing at all; around tiles of 64, 128 and 256
// and steps of 64, rows of whole 16 bytes (which tensor cores take) and others.
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
    {8, 64, 64, {0, 0}, {0, 0}},
    {0, 64, 64, {0, 0}, {0, 0}},
};
constexpr std::pair<DType, DType> kTypes[] = {
    {DType::f64, DType::f64}, {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

struct Bounds {
  double atol, rtol;
};
// Sums of `terms` of size one: tensor cores truncate what they add up in float32. 2^-7: a bfloat16 may fall to either
// side of where the CPU's fell.
Bounds bounds(DType dtype, int64_t terms) {
  const double size = std::sqrt(static_cast<double>(terms));
  if (dtype == DType::f64) return {1e-12 * size, 1e-12};
  return {1e-4 * size, dtype == DType::f32 ? 1e-5 : 1.0 / 128};
}

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
  Problem to_gpu(const Problem& p) {
    return {to_gpu(p.x), to_gpu(p.dy), to_gpu(p.w), {to_gpu(p.groups.begin), to_gpu(p.groups.count)}};
  }
  using CudaTest::to_gpu;

  // NaN in the rows that belong to no group, which nobody may read.
  static void poison_outside(const Case& c, const Tensor& rows) {
    std::vector<bool> inside(static_cast<size_t>(c.capacity));
    for (size_t e = 0; e < c.count.size(); ++e) std::fill_n(inside.begin() + c.begin[e], c.count[e], true);
    dispatch_floating(rows.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < rows.elements(); ++i)
        if (!inside[static_cast<size_t>(i / rows.size(1))]) rows.data<T>()[i] = T(std::nanf(""));
    });
  }
  static std::vector<std::byte> bits(const Tensor& on_host) {
    const auto* raw = static_cast<const std::byte*>(on_host.raw());
    return {raw, raw + on_host.bytes()};
  }
  // The same numbers, NaN where the other has NaN, and the same bits the second time.
  void expect_same(const Tensor& on_gpu, const Tensor& again, const Tensor& on_cpu, const Bounds& allowed) {
    const auto got = values(to_host(on_gpu)), twice = values(to_host(again)), want = values(on_cpu);
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_TRUE(std::isnan(got[i]) && std::isnan(twice[i])) << i << ": " << got[i] << " outside the groups";
        continue;
      }
      ASSERT_LE(std::abs(got[i] - want[i]), allowed.atol + allowed.rtol * std::abs(want[i])) << i;
      ASSERT_EQ(got[i], twice[i]) << i;
    }
  }
};

TEST_F(CudaGroupedGemm, RowsAgreeWithTheCpu) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype));
      const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
      const Tensor y = host.poisoned(cpu.dy.shape(), dtype), dx = host.poisoned(cpu.x.shape(), dtype);
      kernels::grouped_gemm_forward(host.stream, y, cpu.x, cpu.groups, cpu.w);
      kernels::grouped_gemm_backward_input(host.stream, dx, cpu.dy, cpu.groups, cpu.w);
      const Tensor ys[] = {poisoned(y.shape(), dtype), poisoned(y.shape(), dtype)};
      for (const Tensor& out : ys) kernels::grouped_gemm_forward(gpu(), out, on_gpu.x, on_gpu.groups, on_gpu.w);
      expect_same(ys[0], ys[1], y, bounds(dtype, c.K));
      const Tensor dxs[] = {poisoned(dx.shape(), dtype), poisoned(dx.shape(), dtype)};
      for (const Tensor& out : dxs)
        kernels::grouped_gemm_backward_input(gpu(), out, on_gpu.dy, on_gpu.groups, on_gpu.w);
      expect_same(dxs[0], dxs[1], dx, bounds(dtype, c.N));
    }
}

// One kernel instead of two changes no bit, of the sums or of what is made of them; nor does it touch other rows.
TEST_F(CudaGroupedGemm, SwigluInTheSameKernelChangesNoBit) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
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
        for (const auto& [one, two] : {std::pair{h, h_apart}, {y, y_apart}})
          EXPECT_EQ(bits(to_host(one)), bits(to_host(two)));
        const Tensor h_cpu = host.poisoned(wide, dtype), y_cpu = host.poisoned(half, dtype);
        kernels::grouped_swiglu_forward(host.stream, y_cpu, h_cpu, cpu.x, cpu.groups, cpu.w, s);
        expect_same(h, h_apart, h_cpu, bounds(dtype, c.K));
      }
}

TEST_F(CudaGroupedGemm, WeightGradientsAgreeWithTheCpu) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : kTypes)
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", in, " -> ", out,
                         write == Write::accumulate ? ", added" : ""));
        const Problem cpu = on_host(c, in), on_gpu = to_gpu(cpu);
        const Tensor before =
            write == Write::accumulate ? host.normal(cpu.w.shape(), out, "dw") : host.poisoned(cpu.w.shape(), out);
        const Tensor dws[] = {to_gpu(before), to_gpu(before)};
        for (const Tensor& dw : dws)
          kernels::grouped_gemm_backward_weight(gpu(), dw, write, on_gpu.dy, on_gpu.x, on_gpu.groups);
        kernels::grouped_gemm_backward_weight(host.stream, before, write, cpu.dy, cpu.x, cpu.groups);
        expect_same(dws[0], dws[1], before, bounds(out, *std::max_element(c.count.begin(), c.count.end()) + 1));
      }
}

// Many rows to each of many experts, so that every block has several tiles and the ring goes round.
TEST_F(CudaGroupedGemm, ManyTilesPerBlock) {
  Case c{0, 192, 640, {}, {}};
  for (int64_t e = 0; e < 70; ++e) {
    c.begin.push_back(c.capacity);
    c.count.push_back(e * 37 % 400);
    c.capacity += c.count.back();
  }
  const Problem cpu = on_host(c, DType::bf16), on_gpu = to_gpu(cpu);
  const Tensor y = host.poisoned(cpu.dy.shape(), DType::bf16), dx = host.poisoned(cpu.x.shape(), DType::bf16);
  const Tensor dw = host.poisoned(cpu.w.shape(), DType::f32);
  kernels::grouped_gemm_forward(host.stream, y, cpu.x, cpu.groups, cpu.w);
  kernels::grouped_gemm_backward_input(host.stream, dx, cpu.dy, cpu.groups, cpu.w);
  kernels::grouped_gemm_backward_weight(host.stream, dw, Write::overwrite, cpu.dy, cpu.x, cpu.groups);
  const Tensor y_gpu = poisoned(y.shape(), DType::bf16), dx_gpu = poisoned(dx.shape(), DType::bf16);
  const Tensor dw_gpu = poisoned(dw.shape(), DType::f32);
  kernels::grouped_gemm_forward(gpu(), y_gpu, on_gpu.x, on_gpu.groups, on_gpu.w);
  kernels::grouped_gemm_backward_input(gpu(), dx_gpu, on_gpu.dy, on_gpu.groups, on_gpu.w);
  kernels::grouped_gemm_backward_weight(gpu(), dw_gpu, Write::overwrite, on_gpu.dy, on_gpu.x, on_gpu.groups);
  EXPECT_TRUE(agree(y_gpu, y, bounds(DType::bf16, c.K).atol, bounds(DType::bf16, c.K).rtol));
  EXPECT_TRUE(agree(dx_gpu, dx, bounds(DType::bf16, c.N).atol, bounds(DType::bf16, c.N).rtol));
  EXPECT_TRUE(agree(dw_gpu, dw, bounds(DType::f32, 400).atol, bounds(DType::f32, 400).rtol));
}

// The tile follows from the expected rows, which the host knows; no result does.
TEST_F(CudaGroupedGemm, EveryTileOfLinesAgreesWithTheCpu) {
  const Case c{600, 320, 512, {0, 90, 600}, {90, 510, 0}};
  const Problem cpu = on_host(c, DType::bf16);
  Problem on_gpu = to_gpu(cpu);
  const Tensor y = host.poisoned(cpu.dy.shape(), DType::bf16), dx = host.poisoned(cpu.x.shape(), DType::bf16);
  kernels::grouped_gemm_forward(host.stream, y, cpu.x, cpu.groups, cpu.w);
  kernels::grouped_gemm_backward_input(host.stream, dx, cpu.dy, cpu.groups, cpu.w);
  for (const int64_t expected : {int64_t{-1}, int64_t{1}, int64_t{400}, int64_t{100000}}) {
    on_gpu.groups.expected_rows = expected;
    const Tensor y_gpu = poisoned(y.shape(), DType::bf16), dx_gpu = poisoned(dx.shape(), DType::bf16);
    kernels::grouped_gemm_forward(gpu(), y_gpu, on_gpu.x, on_gpu.groups, on_gpu.w);
    kernels::grouped_gemm_backward_input(gpu(), dx_gpu, on_gpu.dy, on_gpu.groups, on_gpu.w);
    EXPECT_TRUE(agree(y_gpu, y, bounds(DType::bf16, c.K).atol, bounds(DType::bf16, c.K).rtol)) << expected;
    EXPECT_TRUE(agree(dx_gpu, dx, bounds(DType::bf16, c.N).atol, bounds(DType::bf16, c.N).rtol)) << expected;
  }
}

}  // namespace
}  // namespace witan
