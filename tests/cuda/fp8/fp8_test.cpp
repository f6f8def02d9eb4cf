#include "witan/kernels/fp8/fp8.h"

#include <cstring>
#include <limits>

#include "support/cuda_rank.h"
#include "support/fp8.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using kernels::fp8_blocks;
using kernels::Fp8Columns;
using kernels::Fp8Format;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;
using kernels::Fp8Weights;
using kernels::kFp8Block;
using testing::CudaTest;
using testing::dequantised;
using testing::ExactSum;
using testing::fp8_cases;
using testing::fp8_groups;
using testing::fp8_rows_of;
using testing::fp8_tokens_of;
using testing::Fp8Case;
using testing::kFp8Topk;
using testing::values;

class CudaFp8 : public CudaTest {
 protected:
  struct Quantised {
    Fp8RowBlocks blocks;
    Fp8Rows rows;
    Fp8Columns columns;
  };
  using CudaTest::to_gpu;

  RowGroups to_gpu(const RowGroups& groups) {
    return {to_gpu(groups.begin), to_gpu(groups.count), to_gpu(groups.source_begin), to_gpu(groups.source_count),
            groups.expected_rows};
  }
  // Tensors of the same shapes, poisoned, between guards.
  Tensor like(const Tensor& tensor) { return tensor.defined() ? poisoned(tensor.shape(), tensor.dtype()) : Tensor(); }
  Fp8RowBlocks like(const Fp8RowBlocks& of) {
    const RowGroups& g = of.groups;
    return {{like(g.begin), like(g.count), like(g.source_begin), like(g.source_count), g.expected_rows},
            like(of.table),
            of.most};
  }

  Quantised on_cpu(const Tensor& x, const RowGroups& groups, Fp8Format format = Fp8Format::e4m3,
                   const Tensor& largest = {}) {
    Quantised out{Fp8RowBlocks::empty(host.stream, groups, x.size(0)),
                  Fp8Rows::empty(host.stream, x.size(0), x.size(1), format),
                  {}};
    out.columns = Fp8Columns::empty(host.stream, out.blocks, x.size(1), format);
    // Both devices' memory begins equal, so that bytes that neither writes are equal.
    for (const Tensor& to : {out.rows.values, out.rows.scales, out.columns.values, out.columns.scales})
      if (to.bytes() > 0) std::memset(to.raw(), 0xFF, static_cast<size_t>(to.bytes()));
    kernels::fp8_row_blocks(host.stream, out.blocks, groups);
    kernels::fp8_quantise(host.stream, out.rows, out.columns, x, out.blocks, {{}, largest});
    return out;
  }
  Quantised on_gpu(const Quantised& shapes, const Tensor& x, const RowGroups& groups, const Tensor& largest = {}) {
    Quantised out{like(shapes.blocks),
                  {like(shapes.rows.values), like(shapes.rows.scales), shapes.rows.format},
                  {like(shapes.columns.values), like(shapes.columns.scales), shapes.columns.format}};
    kernels::fp8_row_blocks(gpu(), out.blocks, groups);
    kernels::fp8_quantise(gpu(), out.rows, out.columns, x, out.blocks, {{}, largest});
    return out;
  }
  Fp8Weights weights_on_cpu(const Tensor& w, const Tensor& largest = {}) {
    const int64_t E = w.size(0), N = w.size(1), K = w.size(2);
    const Fp8Weights out{host.stream.empty({E, N, K}, DType::f8), host.stream.empty({E, K, N}, DType::f8),
                         host.stream.empty({E, fp8_blocks(N), fp8_blocks(K)}, DType::f32)};
    kernels::fp8_quantise_weights(host.stream, out, w, largest);
    return out;
  }
  Quantised to_gpu(const Quantised& q) {
    return {{to_gpu(q.blocks.groups), to_gpu(q.blocks.table), q.blocks.most},
            {to_gpu(q.rows.values), to_gpu(q.rows.scales), q.rows.format},
            {to_gpu(q.columns.values), to_gpu(q.columns.scales), q.columns.format}};
  }
  Fp8Weights to_gpu(const Fp8Weights& w) { return {to_gpu(w.values), to_gpu(w.transposed), to_gpu(w.scales)}; }

  void expect_bits(const Tensor& on_gpu, const Tensor& on_cpu, const char* what) {
    if (!on_cpu.defined() || on_cpu.bytes() == 0) return;
    const Tensor found = to_host(on_gpu);
    const auto *a = reinterpret_cast<const uint8_t*>(found.raw()), *b = reinterpret_cast<const uint8_t*>(on_cpu.raw());
    const auto bytes = static_cast<size_t>(on_cpu.bytes());
    if (std::memcmp(a, b, bytes) == 0) return;
    for (size_t i = 0; i < bytes; ++i)
      ASSERT_EQ(int{a[i]}, int{b[i]}) << what << " " << on_cpu.shape() << ", byte " << i;
  }
  // Compares all bits, including unused blocks and their NaN.
  void expect_same(const Quantised& found, const Quantised& want) {
    expect_bits(found.rows.values, want.rows.values, "rows");
    expect_bits(found.rows.scales, want.rows.scales, "scales of rows");
    expect_bits(found.columns.values, want.columns.values, "columns");
    expect_bits(found.columns.scales, want.columns.scales, "scales of columns");
    expect_bits(found.blocks.table, want.blocks.table, "table");
    for (const auto& [a, b] : {std::pair{found.blocks.groups.begin, want.blocks.groups.begin},
                               {found.blocks.groups.count, want.blocks.groups.count},
                               {found.blocks.groups.source_begin, want.blocks.groups.source_begin},
                               {found.blocks.groups.source_count, want.blocks.groups.source_count}})
      expect_bits(a, b, "groups");
  }
};

// The tensor cores keep 13 bits of the largest term when they sum 32 products, four times in a row.
void expect_sum(double got, const ExactSum& exact, DType out) {
  const double rounding = out == DType::bf16 ? 0x1p-8 : 0x1p-24;
  ASSERT_NEAR(got, exact.sum, exact.magnitudes * 0x1p-10 + std::abs(exact.sum) * rounding);
}

TEST_F(CudaFp8, QuantisesToTheBitsOfTheCpu) {
  for (const Fp8Case& c : fp8_cases()) {
    SCOPED_TRACE(cat(c.capacity, " rows of ", c.K));
    const RowGroups groups = fp8_groups(host, c);
    const Tensor x = fp8_rows_of(host, c, c.K, DType::bf16, "x"), x_gpu = to_gpu(x);
    const Quantised cpu = on_cpu(x, groups), first = on_gpu(cpu, x_gpu, to_gpu(groups));
    expect_same(first, cpu);
    const Fp8Rows rows{like(cpu.rows.values), like(cpu.rows.scales)};
    const Fp8Columns columns{like(cpu.columns.values), like(cpu.columns.scales)};
    kernels::fp8_quantise(gpu(), rows, {}, x_gpu, first.blocks);
    kernels::fp8_quantise(gpu(), {}, columns, x_gpu, first.blocks);
    expect_same({first.blocks, rows, columns}, cpu);
    expect_same(on_gpu(on_cpu(x, {}), x_gpu, {}), on_cpu(x, {}));
  }
}

// In e5m2, and with one magnitude for a whole group: its own, half of it, beyond which numbers saturate, or a larger
// one.
TEST_F(CudaFp8, QuantisesByGivenAmaxesToTheBitsOfTheCpu) {
  for (const Fp8Case& c : fp8_cases())
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", c.K, format == Fp8Format::e4m3 ? "" : " in e5m2"));
      const RowGroups groups = fp8_groups(host, c), groups_gpu = to_gpu(groups);
      const Tensor x = fp8_rows_of(host, c, c.K, DType::bf16, "x"), x_gpu = to_gpu(x);
      const Quantised own = on_cpu(x, groups, format);
      expect_same(on_gpu(own, x_gpu, groups_gpu), own);

      const int64_t G = own.blocks.number();
      const Tensor amax = host.stream.zeros({G}, DType::f32), amax_gpu = to_gpu(amax);
      kernels::fp8_amax(host.stream, amax, x, own.blocks);
      kernels::fp8_amax(gpu(), amax_gpu, x_gpu, to_gpu(own).blocks);
      expect_bits(amax_gpu, amax, "magnitudes");
      for (const float factor : {1.0F, 0.5F, 3.0F}) {
        for (float& one : amax.span<float>()) one *= factor;
        const Quantised cpu = on_cpu(x, groups, format, amax);
        expect_same(on_gpu(cpu, x_gpu, groups_gpu, to_gpu(amax)), cpu);
      }
      // An index gathers the rows.
      const auto [tokens, index] = fp8_tokens_of(host, c, DType::bf16);
      const Tensor of_tokens = host.stream.zeros({G}, DType::f32), on_gpu_too = to_gpu(of_tokens);
      kernels::fp8_amax(host.stream, of_tokens, tokens, own.blocks, {index, kFp8Topk});
      kernels::fp8_amax(gpu(), on_gpu_too, to_gpu(tokens), to_gpu(own).blocks, {to_gpu(index), kFp8Topk});
      expect_bits(on_gpu_too, of_tokens, "magnitudes of tokens");
    }
}

TEST_F(CudaFp8, QuantisesWeightsByGivenAmaxesToTheBitsOfTheCpu) {
  for (const Shape& shape : {Shape{3, 144, 272}, {1, 128, 128}, {2, 16, 400}}) {
    const Tensor w = host.normal(shape, DType::bf16, "w", 0.02), w_gpu = to_gpu(w);
    const Tensor amax = host.stream.zeros({shape[0]}, DType::f32), amax_gpu = to_gpu(amax);
    kernels::fp8_weight_amax(host.stream, amax, w);
    kernels::fp8_weight_amax(gpu(), amax_gpu, w_gpu);
    expect_bits(amax_gpu, amax, "magnitudes");
    amax.data<float>()[0] /= 2;
    const Fp8Weights cpu = weights_on_cpu(w, amax), found{like(cpu.values), like(cpu.transposed), like(cpu.scales)};
    kernels::fp8_quantise_weights(gpu(), found, w_gpu, to_gpu(amax));
    expect_bits(found.values, cpu.values, "values");
    expect_bits(found.transposed, cpu.transposed, "transposed");
    expect_bits(found.scales, cpu.scales, "scales");
  }
}

TEST_F(CudaFp8, DelayedScalesAgreeWithTheCpu) {
  constexpr int64_t E = 300, R = 3, H = 4;
  const Tensor amax = host.normal({E * R}, DType::f32, "amax"), reference = host.normal({E}, DType::f32, "reference"),
               seen = host.stream.zeros({E}, DType::f32), history = host.stream.zeros({H, E}, DType::f32),
               step = host.stream.zeros({kernels::kStepValues}, DType::f64);
  for (const Tensor& of : {amax, reference})
    for (float& one : of.span<float>()) one = std::max(one, 0.0F);  // half of them are not known yet
  const Tensor amax_gpu = to_gpu(amax), reference_gpu = to_gpu(reference), seen_gpu = to_gpu(seen),
               history_gpu = to_gpu(history);
  kernels::fp8_delay(host.stream, amax, seen, reference);
  kernels::fp8_delay(gpu(), amax_gpu, seen_gpu, reference_gpu);
  expect_bits(amax_gpu, amax, "magnitudes");
  expect_bits(seen_gpu, seen, "what a step has seen");
  kernels::fp8_delay(host.stream, amax, {}, reference);
  kernels::fp8_delay(gpu(), amax_gpu, {}, reference_gpu);
  expect_bits(amax_gpu, amax, "magnitudes of an evaluation");
  for (int64_t update = 1; update <= 6; ++update)
    for (const double skip : {1.0, 0.0})
      for (const bool remembers : {false, true}) {
        step.data<double>()[kernels::step_value::update] = static_cast<double>(update);
        step.data<double>()[kernels::step_value::skip] = skip;
        for (float& one : seen.span<float>()) one = one * 0.9F + (skip != 0 ? 1 : 0);
        kernels::fp8_next_references(host.stream, {reference, remembers ? history : Tensor(), seen}, step, 2);
        kernels::fp8_next_references(gpu(), {reference_gpu, remembers ? history_gpu : Tensor(), to_gpu(seen)},
                                     to_gpu(step), 2);
        expect_bits(reference_gpu, reference, "references");
        expect_bits(history_gpu, history, "history");
      }
}

// Rows that an index names, of tokens that are aligned to 16 bytes or not.
TEST_F(CudaFp8, QuantisesGatheredRowsToTheBitsOfTheCpu) {
  for (const Fp8Case& c : fp8_cases())
    for (const bool aligned : {true, false}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", c.K, aligned ? "" : ", not aligned to 16 bytes"));
      const RowGroups groups = fp8_groups(host, c);
      const auto [x, index] = fp8_tokens_of(host, c, DType::bf16);
      Quantised cpu = on_cpu(fp8_rows_of(host, c, c.K, DType::bf16, "shapes"), groups);
      for (const Tensor& to : {cpu.rows.values, cpu.rows.scales, cpu.columns.values, cpu.columns.scales})
        if (to.bytes() > 0) std::memset(to.raw(), 0xFF, static_cast<size_t>(to.bytes()));
      kernels::fp8_quantise(host.stream, cpu.rows, cpu.columns, x, cpu.blocks, {index, kFp8Topk});
      Tensor tokens = to_gpu(x);
      if (!aligned) {
        const Tensor more = poisoned({x.elements() + 1}, DType::bf16).narrow(0, 1, x.elements());
        gpu().copy(more, tokens.reshape({x.elements()}));
        tokens = more.reshape(x.shape());
      }
      const Quantised found{{to_gpu(cpu.blocks.groups), to_gpu(cpu.blocks.table), cpu.blocks.most},
                            {like(cpu.rows.values), like(cpu.rows.scales)},
                            {like(cpu.columns.values), like(cpu.columns.scales)}};
      kernels::fp8_quantise(gpu(), found.rows, found.columns, tokens, found.blocks, {to_gpu(index), kFp8Topk});
      expect_same(found, cpu);
    }
}

TEST_F(CudaFp8, QuantisesWeightsToTheBitsOfTheCpu) {
  for (const Shape& shape : {Shape{3, 144, 272}, {1, 128, 128}, {2, 16, 400}, {1, 400, 16}})
    for (const bool aligned : {true, false}) {
      const Tensor w = host.normal(shape, DType::bf16, "w", 0.02);
      Tensor w_gpu = to_gpu(w);
      if (!aligned) {
        const Tensor more = poisoned({w.elements() + 1}, DType::bf16).narrow(0, 1, w.elements());
        gpu().copy(more, w_gpu.reshape({w.elements()}));
        w_gpu = more.reshape(shape);
      }
      const Fp8Weights cpu = weights_on_cpu(w);
      for (const int copies : {1, 2, 3}) {
        const Fp8Weights found{copies & 1 ? like(cpu.values) : Tensor(), copies & 2 ? like(cpu.transposed) : Tensor(),
                               like(cpu.scales)};
        kernels::fp8_quantise_weights(gpu(), found, w_gpu);
        if (copies & 1) expect_bits(found.values, cpu.values, "values");
        if (copies & 2) expect_bits(found.transposed, cpu.transposed, "transposed");
        expect_bits(found.scales, cpu.scales, "scales");
      }
    }
}

// A fused pass changes no bit, forward and backward, but the gradient of row weights is summed in another order.
TEST_F(CudaFp8, QuantisesSwigluToTheBitsOfTwoKernels) {
  for (const Fp8Case& c : fp8_cases())
    for (const int64_t F : {int64_t{128}, int64_t{384}, int64_t{80}})
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(cat(c.capacity, " rows of ", F, weighted ? ", weighted" : ""));
        const RowGroups groups = fp8_groups(host, c), groups_gpu = to_gpu(groups);
        const Tensor h = to_gpu(fp8_rows_of(host, c, 2 * F, DType::bf16, "h")),
                     dy = to_gpu(fp8_rows_of(host, c, F, DType::bf16, "dy"));
        const Tensor s = weighted ? to_gpu(host.normal({c.capacity}, DType::f32, "s")) : Tensor();
        const Tensor y = poisoned({c.capacity, F}, DType::bf16), dh = poisoned({c.capacity, 2 * F}, DType::bf16),
                     ds = weighted ? poisoned({c.capacity}, DType::f32) : Tensor(), ds_fused = like(ds);
        kernels::swiglu_forward(gpu(), y, h, s, groups_gpu);
        kernels::swiglu_backward(gpu(), dh, ds, dy, h, s, groups_gpu);
        const Quantised of_y = on_gpu(on_cpu(host.stream.zeros({c.capacity, F}, DType::bf16), groups), y, groups_gpu);
        // The gradient is in e5m2 if rows are weighted.
        const Quantised of_dh = on_gpu(on_cpu(host.stream.zeros({c.capacity, 2 * F}, DType::bf16), groups,
                                              weighted ? Fp8Format::e5m2 : Fp8Format::e4m3),
                                       dh, groups_gpu);
        const auto fused = [&](const Quantised& like_this, const auto& kernel) {
          const Quantised out{
              like_this.blocks,
              {like(like_this.rows.values), like(like_this.rows.scales), like_this.rows.format},
              {like(like_this.columns.values), like(like_this.columns.scales), like_this.columns.format}};
          kernel(out);
          for (const auto& [a, b] : {std::pair{out.rows.values, like_this.rows.values},
                                     {out.rows.scales, like_this.rows.scales},
                                     {out.columns.values, like_this.columns.values},
                                     {out.columns.scales, like_this.columns.scales}})
            expect_bits(a, to_host(b), "fused");
        };
        fused(of_y, [&](const Quantised& q) {
          kernels::fp8_quantise_swiglu(gpu(), q.rows, q.columns, h, s, groups_gpu, q.blocks);
        });
        fused(of_dh, [&](const Quantised& q) {
          kernels::fp8_quantise_swiglu_backward(gpu(), q.rows, q.columns, {ds_fused, dy, h, s}, groups_gpu, q.blocks);
        });
        if (!weighted) continue;
        const std::vector<double> got = values(to_host(ds_fused)), want = values(to_host(ds));
        double largest = 0;
        for (const double one : want) largest = std::isnan(one) ? largest : std::max(largest, std::abs(one));
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : std::abs(got[i] - want[i]) <= 1e-5 * largest)
              << i << ": " << got[i] << ", " << want[i];
      }
}

TEST_F(CudaFp8, QuantisesTheEdgesOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float edge : {0.0F, -0.0F, infinity, -infinity, std::nanf(""), 0x1p-133F, 0x1p-120F, 3e38F}) {
    SCOPED_TRACE(edge);
    Tensor x = host.stream.zeros({130, 144}, DType::bf16);
    x.data<bf16>()[5 * 144 + 131] = bf16(edge);
    const Quantised cpu = on_cpu(x, {});
    expect_same(on_gpu(cpu, to_gpu(x), {}), cpu);
    const Tensor w = x.narrow(0, 0, 128).reshape({1, 128, 144});
    const Fp8Weights weights = weights_on_cpu(w), found{like(weights.values), {}, like(weights.scales)};
    kernels::fp8_quantise_weights(gpu(), found, to_gpu(w));
    expect_bits(found.values, weights.values, "weights");
    expect_bits(found.scales, weights.scales, "scales of weights");
  }
}

TEST_F(CudaFp8, ProductsMatchDequantisedOperands) {
  if (!cuda::properties(0).hopper_kernels) GTEST_SKIP() << "needs code of sm_90a";
  for (const Fp8Case& c : fp8_cases())
    for (const auto& [turned, format] :
         {std::pair{false, Fp8Format::e4m3}, {true, Fp8Format::e4m3}, {true, Fp8Format::e5m2}}) {
      const int64_t in = turned ? c.N : c.K, out = turned ? c.K : c.N, E = c.experts();
      SCOPED_TRACE(cat(c.capacity, " rows, ", in, " -> ", out, turned ? ", turned" : "",
                       format == Fp8Format::e4m3 ? "" : ", of e5m2"));
      const RowGroups groups = fp8_groups(host, c), groups_gpu = to_gpu(groups);
      const Quantised x = on_cpu(fp8_rows_of(host, c, in, DType::bf16, "x"), groups, format), x_gpu = to_gpu(x);
      const Fp8Weights w = weights_on_cpu(host.normal({E, c.N, c.K}, DType::bf16, "w")), w_gpu = to_gpu(w);
      const Tensor ys[] = {poisoned({c.capacity, out}, DType::bf16), poisoned({c.capacity, out}, DType::bf16)};
      for (const Tensor& y : ys) kernels::fp8_product(gpu(), y, {x_gpu.rows, w_gpu, turned}, groups_gpu);
      const Tensor y = to_host(ys[0]);
      expect_bits(ys[1], y, "the same product again");
      const std::vector<double> rows = dequantised(x.rows), by = dequantised(w, false), got = values(y);
      std::vector<bool> inside(static_cast<size_t>(c.capacity));
      for (size_t g = 0; g < c.count.size(); ++g)
        for (int64_t i = c.begin[g]; i < c.begin[g] + c.count[g]; ++i) {
          inside[static_cast<size_t>(i)] = true;
          const int64_t e = static_cast<int64_t>(g) % E;
          for (int64_t n = 0; n < out; ++n) {
            ExactSum sum;
            for (int64_t k = 0; k < in; ++k)
              sum.add(rows[static_cast<size_t>(i * in + k)] *
                      by[static_cast<size_t>(turned ? (e * c.N + k) * c.K + n : (e * c.N + n) * c.K + k)]);
            expect_sum(got[static_cast<size_t>(i * out + n)], sum, DType::bf16);
          }
        }
      for (int64_t i = 0; i < c.capacity; ++i)
        ASSERT_TRUE(inside[static_cast<size_t>(i)] || std::isnan(got[static_cast<size_t>(i * out)])) << i;
    }
}

TEST_F(CudaFp8, WeightGradientsMatchDequantisedOperands) {
  if (!cuda::properties(0).hopper_kernels) GTEST_SKIP() << "needs code of sm_90a";
  for (const Fp8Case& c : fp8_cases()) {
    const RowGroups groups = fp8_groups(host, c);
    const Quantised x = on_cpu(fp8_rows_of(host, c, c.K, DType::bf16, "x"), groups), x_gpu = to_gpu(x);
    const std::vector<double> by_x = dequantised(x.columns);
    const int64_t P = x.columns.values.size(1), E = c.experts();
    for (const DType out : {DType::f32, DType::bf16})
      for (const bool aligned : {true, false}) {
        // Each of the four ways to store is combined with each format in one of two cases.
        const bool e5m2 = ((out == DType::f32) == aligned) == (c.K % 32 == 0);
        const Quantised dy = on_cpu(fp8_rows_of(host, c, c.N, DType::bf16, "dy"), groups,
                                    e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3),
                        dy_gpu = to_gpu(dy);
        const std::vector<double> by_dy = dequantised(dy.columns);
        SCOPED_TRACE(
            cat(c.capacity, " rows, ", c.N, " x ", c.K, " -> ", out, aligned ? "" : ", not aligned to 16 bytes"));
        const Tensor whole = poisoned({E * c.N * c.K + 1}, out);
        const Tensor dw = whole.narrow(0, aligned ? 0 : 1, E * c.N * c.K).reshape({E, c.N, c.K});
        std::vector<double> before;
        for (const Write write : {Write::overwrite, Write::accumulate})
          for (int64_t source = 0; source < c.sources; ++source) {
            const bool parts = c.sources > 1;
            const RowGroups of = parts ? x.blocks.groups.of_source(source) : x.blocks.groups;
            kernels::fp8_weight_gradient(gpu(), dw, write, dy_gpu.columns, x_gpu.columns,
                                         parts ? x_gpu.blocks.groups.of_source(source) : x_gpu.blocks.groups);
            const std::vector<double> got = values(to_host(dw));
            for (int64_t i = 0; i < E * c.N * c.K; ++i) {
              const int64_t e = i / (c.N * c.K), n = i / c.K % c.N, k = i % c.K;
              ExactSum sum;
              if (write == Write::accumulate) sum.add(before[static_cast<size_t>(i)]);
              const int64_t first = of.begin.data<int64_t>()[e] * kFp8Block;
              for (int64_t row = first; row < first + of.count.data<int64_t>()[e] * kFp8Block; ++row)
                sum.add(by_dy[static_cast<size_t>(n * P + row)] * by_x[static_cast<size_t>(k * P + row)]);
              expect_sum(got[static_cast<size_t>(i)], sum, out);
            }
            before = got;
          }
      }
  }
}

// Without groups, one expert has all rows, with the bits of a group of them.
TEST_F(CudaFp8, WithoutGroupsAllRowsAreOneGroup) {
  if (!cuda::properties(0).hopper_kernels) GTEST_SKIP() << "needs code of sm_90a";
  for (const int64_t M : {1, 100, 300, 1000}) {
    const Fp8Case all{M, 272, 144, {0}, {M}};
    const Tensor x = fp8_rows_of(host, all, 272, DType::bf16, "x"), dy = fp8_rows_of(host, all, 144, DType::bf16, "dy");
    const Fp8Weights w = to_gpu(weights_on_cpu(host.normal({1, 144, 272}, DType::bf16, "w")));
    const auto results = [&](const RowGroups& groups) {
      const Quantised q = to_gpu(on_cpu(x, groups)), g = to_gpu(on_cpu(dy, groups));
      const Tensor y = poisoned({M, 144}, DType::bf16), dx = poisoned({M, 272}, DType::bf16),
                   dw = poisoned({1, 144, 272}, DType::f32);
      kernels::fp8_product(gpu(), y, {q.rows, w}, to_gpu(groups));
      kernels::fp8_product(gpu(), dx, {g.rows, w, true}, to_gpu(groups));
      kernels::fp8_weight_gradient(gpu(), dw, Write::overwrite, g.columns, q.columns, q.blocks.groups);
      return std::vector{values(to_host(y)), values(to_host(dx)), values(to_host(dw))};
    };
    EXPECT_EQ(results({}), results(fp8_groups(host, all)));
  }
}

// Results with many tiles per block, and with both shapes of tiles: wide ones, and narrow ones for 128 columns or fewer
// than 256 rows per expert. Sums do not depend on the tile that they are in.
TEST_F(CudaFp8, TilesOfBothShapesGiveTheSameBits) {
  if (!cuda::properties(0).hopper_kernels) GTEST_SKIP() << "needs code of sm_90a";
  constexpr int64_t M = 4400, N = 4112, K = 400, kRows = 200, kColumns = 128;
  const Tensor x = to_gpu(host.normal({M, K}, DType::bf16, "x")), w = to_gpu(host.normal({1, N, K}, DType::bf16, "w"));
  const Fp8RowBlocks blocks = Fp8RowBlocks::empty(gpu(), {}, M);
  const Fp8Rows rows = Fp8Rows::empty(gpu(), M, K);
  kernels::fp8_quantise(gpu(), rows, {}, x, blocks);
  const Fp8Weights weights{
      gpu().empty({1, N, K}, DType::f8), {}, gpu().empty({1, fp8_blocks(N), fp8_blocks(K)}, DType::f32)};
  kernels::fp8_quantise_weights(gpu(), weights, w);
  const Tensor wide = poisoned({M, N}, DType::bf16), narrow = poisoned({M, N}, DType::bf16);
  kernels::fp8_product(gpu(), wide, {rows, weights}, {});
  for (int64_t first = 0; first < M; first += kRows) {
    RowGroups some{to_gpu(host.tensor<int64_t>({1}, {first})), to_gpu(host.tensor<int64_t>({1}, {kRows}))};
    some.expected_rows = kRows;
    kernels::fp8_product(gpu(), narrow, {rows, weights}, some);
  }
  expect_bits(wide, to_host(narrow), "products");

  const Tensor dy = to_gpu(host.normal({K, N}, DType::bf16, "dy")), in = to_gpu(host.normal({K, M}, DType::bf16, "in"));
  const Fp8RowBlocks of_sum = Fp8RowBlocks::empty(gpu(), {}, K);
  const auto by_columns = [&](const Tensor& matrix) {
    Fp8Columns out = Fp8Columns::empty(gpu(), of_sum, matrix.size(1));
    kernels::fp8_quantise(gpu(), {}, out, matrix, of_sum);
    return out;
  };
  const Fp8Columns of_in = by_columns(in);
  for (const DType out : {DType::f32, DType::bf16}) {
    const Tensor dw = poisoned({1, N, M}, out), parts = poisoned({1, N, M}, out);
    kernels::fp8_weight_gradient(gpu(), dw, Write::overwrite, by_columns(dy), of_in, {});
    for (int64_t first = 0; first < N; first += kColumns) {
      const int64_t some = std::min(kColumns, N - first);
      kernels::fp8_weight_gradient(gpu(), parts.narrow(1, first, some), Write::overwrite,
                                   by_columns(dy.narrow(1, first, some)), of_in, {});
    }
    expect_bits(dw, to_host(parts), "gradients of weights");
  }
}

}  // namespace
}  // namespace witan
