#include "witan/kernels/grouped/block_sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/cuda_rank.h"
#include "support/products.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::close;
using testing::CudaTest;
using testing::ExactProduct;
using testing::kGroupedTypes;
using testing::values;
using testing::widened;
using Case = testing::GroupedCase;

// Experts without rows, with whole blocks of 128, with one row more and one less; gaps, groups out of order, no rows;
// widths around tiles of 128 and slices of 32, with rows of whole 16 bytes (as tensor cores require) and others.
const std::vector<Case> kCases = {
    {700, 136, 264, {500, 0, 130, 130, 400}, {127, 128, 0, 257, 1}},
    {700, 33, 17, {500, 0, 130, 130, 400}, {127, 128, 0, 257, 1}},
    {300, 8, 8, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {520, 264, 128, {0, 130}, {130, 390}},
    {600, 120, 136, {0, 33, 66, 98}, {33, 1, 31, 502}},
    {8, 64, 64, {0, 0}, {0, 0}},
    {0, 64, 64, {0, 0}, {0, 0}},
};

class CudaBlockSparse : public CudaTest {
 protected:
  struct Problem {
    Tensor x, dy, w;
    kernels::BlockTopology topology;
  };

  kernels::BlockTopology topology_on(Stream& stream, int64_t capacity, const RowGroups& groups) {
    kernels::BlockTopology topology{stream.empty({kernels::most_block_rows(capacity, groups.experts()), 3}, DType::i32),
                                    stream.empty({groups.experts() + 1}, DType::i32), groups};
    kernels::block_topology(stream, topology);
    return topology;
  }
  Problem on_host(const Case& c, DType dtype) {
    const int64_t E = std::ssize(c.count);
    const RowGroups groups{host.tensor<int64_t>({E}, c.begin), host.tensor<int64_t>({E}, c.count)};
    Problem p{host.normal({c.capacity, c.K}, dtype, "x"), host.normal({c.capacity, c.N}, dtype, "dy"),
              host.normal({E, c.N, c.K}, dtype, "w"), topology_on(host.stream, c.capacity, groups)};
    for (const Tensor* rows : {&p.x, &p.dy}) poison_outside(c, *rows);
    return p;
  }
  Problem to_gpu(const Problem& p) {
    const RowGroups groups{to_gpu(p.topology.groups.begin), to_gpu(p.topology.groups.count)};
    return {to_gpu(p.x), to_gpu(p.dy), to_gpu(p.w), topology_on(gpu(), p.x.size(0), groups)};
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
  // The products in float64, on the CPU; NaN outside the groups, as in poisoned outputs.
  ExactProduct exact_rows(const Problem& p, Transpose transpose_w) {
    const bool forward = transpose_w == Transpose::yes;
    const Tensor from = widened(host, forward ? p.x : p.dy);
    const Tensor to = host.poisoned((forward ? p.dy : p.x).shape(), DType::f64);
    kernels::block_rows_product(host.stream, to, from, p.topology, widened(host, p.w), transpose_w);
    return {values(to), {}, from.size(1)};
  }
  ExactProduct exact_columns(const Problem& p) {
    const Tensor dw = host.poisoned(p.w.shape(), DType::f64);
    kernels::block_columns_product(host.stream, dw, Write::overwrite, widened(host, p.dy), widened(host, p.x),
                                   p.topology);
    return {values(dw), {}, *std::ranges::max_element(p.topology.groups.count.span<int64_t>())};
  }
  void expect_product(const Tensor& on_gpu, const Tensor& again, const ExactProduct& expected, DType in) {
    EXPECT_TRUE(close(to_host(on_gpu), expected, in));
    const Tensor one = to_host(on_gpu), two = to_host(again);
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), static_cast<size_t>(one.bytes())), 0)
        << "a second call must give the same bits";
  }
};

TEST_F(CudaBlockSparse, TopologyMatchesTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(cat(c.capacity, " rows"));
    const Problem cpu = on_host(c, DType::f32), on_gpu = to_gpu(cpu);
    EXPECT_EQ(to_host(on_gpu.topology.blocks).to_vector<int32_t>(), cpu.topology.blocks.to_vector<int32_t>());
    EXPECT_EQ(to_host(on_gpu.topology.first).to_vector<int32_t>(), cpu.topology.first.to_vector<int32_t>());
  }
}

TEST_F(CudaBlockSparse, RowsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const Transpose transpose : {Transpose::yes, Transpose::no}) {
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype,
                         transpose == Transpose::yes ? ", forward" : ", backward"));
        const Problem cpu = on_host(c, dtype), on_gpu = to_gpu(cpu);
        const bool forward = transpose == Transpose::yes;
        const Shape shape = (forward ? cpu.dy : cpu.x).shape();
        const Tensor outs[] = {poisoned(shape, dtype), poisoned(shape, dtype)};
        for (const Tensor& out : outs)
          kernels::block_rows_product(gpu(), out, forward ? on_gpu.x : on_gpu.dy, on_gpu.topology, on_gpu.w, transpose);
        expect_product(outs[0], outs[1], exact_rows(cpu, transpose), dtype);
      }
}

TEST_F(CudaBlockSparse, WeightGradientsMatchExactProducts) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : kGroupedTypes)
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        const bool adds = write == Write::accumulate;
        SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", in, " -> ", out, adds ? ", added" : ""));
        const Problem cpu = on_host(c, in), on_gpu = to_gpu(cpu);
        ExactProduct expected = exact_columns(cpu);
        const Tensor before = adds ? host.normal(cpu.w.shape(), out, "dw") : host.poisoned(cpu.w.shape(), out);
        if (adds) expected.before = values(before);
        const Tensor dws[] = {to_gpu(before), to_gpu(before)};
        for (const Tensor& dw : dws)
          kernels::block_columns_product(gpu(), dw, write, on_gpu.dy, on_gpu.x, on_gpu.topology);
        expect_product(dws[0], dws[1], expected, in);
      }
}

// With many experts, numbering takes several rounds of a warp's scan.
TEST_F(CudaBlockSparse, ManyExperts) {
  Case c{0, 192, 320, {}, {}};
  for (int64_t e = 0; e < 70; ++e) {
    c.begin.push_back(c.capacity);
    c.count.push_back(e * 37 % 400);
    c.capacity += c.count.back();
  }
  const Problem cpu = on_host(c, DType::bf16), on_gpu = to_gpu(cpu);
  EXPECT_EQ(to_host(on_gpu.topology.blocks).to_vector<int32_t>(), cpu.topology.blocks.to_vector<int32_t>());
  const Tensor y = poisoned(cpu.dy.shape(), DType::bf16), dw = poisoned(cpu.w.shape(), DType::f32);
  kernels::block_rows_product(gpu(), y, on_gpu.x, on_gpu.topology, on_gpu.w, Transpose::yes);
  kernels::block_columns_product(gpu(), dw, Write::overwrite, on_gpu.dy, on_gpu.x, on_gpu.topology);
  EXPECT_TRUE(close(to_host(y), exact_rows(cpu, Transpose::yes), DType::bf16));
  EXPECT_TRUE(close(to_host(dw), exact_columns(cpu), DType::bf16));
}

}  // namespace
}  // namespace witan
