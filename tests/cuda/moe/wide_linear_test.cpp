#include <bit>
#include <cmath>
#include <tuple>

#include "support/cuda_rank.h"
#include "witan/kernels/moe/router.h"

namespace witan {
namespace {

using testing::CudaTest;
using testing::values;

class WideLinearOnGpu : public CudaTest {
 protected:
  // Compares everything with the CPU, for all dtypes of the weight's gradient, and expects the same bits twice.
  void check(int64_t T, int64_t D, int64_t E, DType dtype) {
    SCOPED_TRACE(cat("T ", T, " D ", D, " E ", E, " ", dtype));
    const DType A = accumulator(dtype);
    const Tensor x = host.normal({T, D}, dtype, "x"), w = host.normal({E, D}, A, "w"),
                 dy = host.normal({T, E}, A, "dy");
    const Tensor y = host.poisoned({T, E}, A), dx = host.poisoned({T, D}, dtype);
    kernels::wide_linear(host.stream, y, x, w);
    kernels::wide_linear_backward_input(host.stream, dx, Write::overwrite, dy, w);
    const Tensor x_gpu = to_gpu(x), w_gpu = to_gpu(w), dy_gpu = to_gpu(dy);
    expect([&](const Tensor& out) { kernels::wide_linear(gpu(), out, x_gpu, w_gpu); }, host.poisoned({T, E}, A), y, D);
    expect([&](const Tensor& out) { kernels::wide_linear_backward_input(gpu(), out, Write::overwrite, dy_gpu, w_gpu); },
           host.poisoned({T, D}, dtype), dx, E);
    const Tensor added = host.normal({T, D}, dtype, "before"), start = host.stream.empty_like(added);
    host.stream.copy(start, added);
    kernels::wide_linear_backward_input(host.stream, added, Write::accumulate, dy, w);
    expect(
        [&](const Tensor& out) { kernels::wide_linear_backward_input(gpu(), out, Write::accumulate, dy_gpu, w_gpu); },
        start, added, E);
    for (const DType kept : {A, DType::bf16})
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const Tensor dw = write == Write::overwrite ? host.poisoned({E, D}, kept) : host.normal({E, D}, kept, "before");
        const Tensor before = host.stream.empty_like(dw);
        host.stream.copy(before, dw);
        kernels::wide_linear_backward_weight(host.stream, dw, write, dy, x);
        expect([&](const Tensor& out) { kernels::wide_linear_backward_weight(gpu(), out, write, dy_gpu, x_gpu); },
               before, dw, T);
      }
  }
  void expect_all_bits(int64_t E);
  // `sum` [..] of this many products of size one; each run begins with `before`.
  template <class Product>
  void expect(const Product& product, const Tensor& before, const Tensor& sum, int64_t terms) {
    const Tensor out = to_gpu(before), again = to_gpu(before);
    product(out);
    product(again);
    const double size = std::sqrt(static_cast<double>(terms));
    // 2^-7: both are rounded to bfloat16, by half a unit each.
    const double relative = sum.dtype() == DType::f64 ? 1e-13 : sum.dtype() == DType::f32 ? 1e-5 : 0x1p-7;
    EXPECT_TRUE(agree(out, sum, std::min(relative, 1e-4) * size, relative));
    EXPECT_EQ(values(to_host(out)), values(to_host(again)));
  }
};

// Sizes around the edges of the kernels' tiles, several tiles of each, sums divided into strips, and shapes that are
// left to gemm (the last four).
const std::vector<std::tuple<int64_t, int64_t, int64_t>> kSizes = {
    {1, 16, 8},       {128, 64, 64},   {129, 72, 72},   {127, 56, 56},   {300, 512, 64}, {1000, 136, 128},
    {64, 1024, 8},    {2500, 264, 64}, {333, 400, 136}, {4099, 128, 64}, {77, 24, 200},  {4099, 264, 256},
    {700, 1032, 392}, {130, 640, 128}, {50, 20, 8},     {50, 64, 7},     {33, 17, 5},    {260, 12, 64}};

TEST_F(WideLinearOnGpu, AgreesWithTheCpu) {
  for (const auto& [T, D, E] : kSizes)
    for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) check(T, D, E, dtype);
}

// The sum leaves a number minus its first 8 bits: without the third part it would be off by up to 2^-18 of the number,
// in TF32 by 2^-11.
void WideLinearOnGpu::expect_all_bits(int64_t E) {
  constexpr int64_t T = 256, D = 64;
  const auto first_bits = [](float value) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000U);
  };
  const Tensor numbers = host.normal({E}, DType::f32, "numbers");
  const Tensor x = host.stream.zeros({T, D}, DType::bf16), w = host.stream.zeros({E, D}, DType::f32);
  const Tensor dy = host.stream.zeros({T, E}, DType::f32);
  for (int64_t t = 0; t < T; ++t) {
    x.data<bf16>()[t * D] = bf16(1.0F);
    x.data<bf16>()[t * D + 1] = bf16(-1.0F);
  }
  for (int64_t e = 0; e < E; ++e) {
    const float number = numbers.data<float>()[e];
    w.data<float>()[e * D] = dy.data<float>()[e] = number;
    w.data<float>()[e * D + 1] = first_bits(number);
    dy.data<float>()[E + e] = -first_bits(number);
  }
  const Tensor y = poisoned({T, E}, DType::f32), dw = poisoned({E, D}, DType::f32);
  kernels::wide_linear(gpu(), y, to_gpu(x), to_gpu(w));
  kernels::wide_linear_backward_weight(gpu(), dw, Write::overwrite, to_gpu(dy), to_gpu(x));
  const auto logits = values(to_host(y)), sums = values(to_host(dw));
  for (int64_t e = 0; e < E; ++e) {
    const float number = numbers.data<float>()[e], rest = number - first_bits(number);
    EXPECT_NEAR(logits[static_cast<size_t>(e)], rest, 2e-7 * std::abs(number)) << e;
    EXPECT_NEAR(sums[static_cast<size_t>(e * D)], rest, 2e-7 * std::abs(number)) << e;
  }
}

TEST_F(WideLinearOnGpu, KeepsAllBitsOfFloat32) {
  for (const int64_t E : {64, 128}) expect_all_bits(E);
}

// A parameter may begin at any address among others.
TEST_F(WideLinearOnGpu, WeightsMayBeginOffSixteenBytes) {
  for (const int64_t E : {64, 136}) {
    const Tensor flat = host.normal({1 + E * 128}, DType::f32, "w"), x = host.normal({200, 128}, DType::bf16, "x"),
                 dy = host.normal({200, E}, DType::f32, "dy");
    const auto weight = [E](const Tensor& all) { return all.narrow(0, 1, E * 128).reshape({E, 128}); };
    const Tensor y = host.poisoned({200, E}, DType::f32), dx = host.poisoned({200, 128}, DType::bf16),
                 dw = host.normal({1 + E * 128}, DType::f32, "dw");
    const Tensor dw_gpu = to_gpu(dw), flat_gpu = to_gpu(flat);
    kernels::wide_linear(host.stream, y, x, weight(flat));
    kernels::wide_linear_backward_input(host.stream, dx, Write::overwrite, dy, weight(flat));
    kernels::wide_linear_backward_weight(host.stream, weight(dw), Write::accumulate, dy, x);
    expect([&](const Tensor& out) { kernels::wide_linear(gpu(), out, to_gpu(x), weight(flat_gpu)); },
           host.poisoned({200, E}, DType::f32), y, 128);
    expect(
        [&](const Tensor& out) {
          kernels::wide_linear_backward_input(gpu(), out, Write::overwrite, to_gpu(dy), weight(flat_gpu));
        },
        host.poisoned({200, 128}, DType::bf16), dx, E);
    kernels::wide_linear_backward_weight(gpu(), weight(dw_gpu), Write::accumulate, to_gpu(dy), to_gpu(x));
    EXPECT_TRUE(agree(dw_gpu, dw, 2e-4, 1e-5));
  }
}

// A token's logits do not depend on the number of tokens that are computed with it.
TEST_F(WideLinearOnGpu, RowsDoNotDependOnEachOther) {
  for (const int64_t E : {64, 128}) {
    const Tensor x = to_gpu(host.normal({300, 512}, DType::bf16, "x")),
                 w = to_gpu(host.normal({E, 512}, DType::f32, "w"));
    const Tensor all = poisoned({300, E}, DType::f32), one = poisoned({1, E}, DType::f32);
    kernels::wide_linear(gpu(), all, x, w);
    kernels::wide_linear(gpu(), one, x.narrow(0, 201, 1), w);
    const auto whole = values(to_host(all));
    EXPECT_EQ(values(to_host(one)), std::vector<double>(whole.begin() + 201 * E, whole.begin() + 202 * E));
  }
}

// Gradients whose parts do not fit in scratch memory are summed by other kernels; sums of integers are exact in any
// case.
TEST_F(WideLinearOnGpu, ManyTokensOfManyExperts) {
  constexpr int64_t T = 90000, D = 16, E = 512;
  const Tensor x = host.normal({T, D}, DType::bf16, "x"), dy = host.normal({T, E}, DType::f32, "dy");
  for (bf16& value : x.span<bf16>()) value = bf16(std::round(static_cast<float>(value)));
  for (float& value : dy.span<float>()) value = std::round(value);
  const Tensor dw = host.poisoned({E, D}, DType::f32);
  kernels::wide_linear_backward_weight(host.stream, dw, Write::overwrite, dy, x);
  const Tensor x_gpu = to_gpu(x), dy_gpu = to_gpu(dy), dw_gpu = poisoned({E, D}, DType::f32);
  kernels::wide_linear_backward_weight(gpu(), dw_gpu, Write::overwrite, dy_gpu, x_gpu);
  EXPECT_EQ(values(to_host(dw_gpu)), values(dw));
}

TEST_F(WideLinearOnGpu, AcceptsNoTokens) {
  for (const int64_t D : {24, 20}) {
    const Tensor x = gpu().empty({0, D}, DType::bf16), w = to_gpu(host.normal({8, D}, DType::f32, "w"));
    const Tensor y = gpu().empty({0, 8}, DType::f32), dw = poisoned({8, D}, DType::f32);
    const Tensor kept = host.normal({8, D}, DType::f32, "kept"), kept_gpu = to_gpu(kept);
    kernels::wide_linear(gpu(), y, x, w);
    kernels::wide_linear_backward_input(gpu(), x, Write::overwrite, y, w);
    kernels::wide_linear_backward_weight(gpu(), dw, Write::overwrite, y, x);
    kernels::wide_linear_backward_weight(gpu(), kept_gpu, Write::accumulate, y, x);
    EXPECT_EQ(values(to_host(dw)), std::vector<double>(static_cast<size_t>(8 * D), 0.0));
    EXPECT_EQ(values(to_host(kept_gpu)), values(kept));
  }
}

}  // namespace
}  // namespace witan
