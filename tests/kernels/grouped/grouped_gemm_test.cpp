#include "witan/kernels/grouped/grouped_gemm.h"

#include <numeric>

#include "support/optimizer.h"
#include "support/rank.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan {
namespace {

using kernels::Transpose;
using testing::Rank;
using testing::values;

constexpr int64_t kUnits = 70, kFeatures = 300;  // N, K

struct Case {
  int64_t capacity;
  std::vector<int64_t> begin, count;
};
// Gaps, groups out of order, empty groups, few and many rows, one hot expert, no rows.
const std::vector<Case> kCases = {
    {40, {3, 10, 30}, {5, 17, 1}},
    {64, {40, 0, 20, 64}, {20, 16, 0, 0}},
    {300, {0, 0, 0, 0}, {0, 0, 300, 0}},
    {90, {0, 1, 3, 6, 11, 28, 59}, {1, 2, 3, 5, 17, 31, 28}},
    {8, {0, 0}, {0, 0}},
    {0, {0, 0}, {0, 0}},
};

struct Problem {
  Problem(Rank& rank, const Case& c, DType dtype)
      : x(rank.normal({c.capacity, kFeatures}, dtype, "x")),
        dy(rank.normal({c.capacity, kUnits}, dtype, "dy")),
        w(rank.normal({std::ssize(c.count), kUnits, kFeatures}, dtype, "w")),
        groups{rank.tensor<int64_t>({std::ssize(c.begin)}, c.begin),
               rank.tensor<int64_t>({std::ssize(c.count)}, c.count)} {}
  Tensor x, dy, w;
  RowGroups groups;
};

Tensor expert(const Tensor& w, int64_t e) {
  return w.narrow(0, e, 1).reshape({w.size(1), w.size(2)});
}

// Compares the bits with one plain product per expert; rows outside the groups must keep their poison.
void expect_rows(Rank& rank, const Case& c, const Tensor& to, const Tensor& from, const Tensor& w,
                 Transpose transpose_w) {
  const Tensor expected = rank.poisoned(to.shape(), to.dtype());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t begin = c.begin[static_cast<size_t>(e)], count = c.count[static_cast<size_t>(e)];
    kernels::gemm(rank.stream, expected.narrow(0, begin, count), Write::overwrite, from.narrow(0, begin, count),
                  Transpose::no, expert(w, e), transpose_w);
  }
  const auto got = values(to), want = values(expected);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
        << i << ": " << got[i] << ", " << want[i];
}

bool same_or_nan(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(values(a), values(b),
                            [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

TEST(GroupedGemm, EqualsOneProductPerExpert) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(cat(c.capacity, " rows of ", dtype, ", ", threads, " threads"));
        Rank rank(threads);
        const Problem p(rank, c, dtype);
        const Tensor y = rank.poisoned(p.dy.shape(), dtype), dx = rank.poisoned(p.x.shape(), dtype);
        kernels::grouped_gemm_forward(rank.stream, y, p.x, p.groups, p.w);
        expect_rows(rank, c, y, p.x, p.w, Transpose::yes);
        kernels::grouped_gemm_backward_input(rank.stream, dx, p.dy, p.groups, p.w);
        expect_rows(rank, c, dx, p.dy, p.w, Transpose::no);
      }
}

TEST(GroupedGemm, WeightGradientsOfEmptyGroupsAreZerosOrUntouched) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : {std::pair{DType::f64, DType::f64},
                                  {DType::f32, DType::f32},
                                  {DType::bf16, DType::bf16},
                                  {DType::bf16, DType::f32}})
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(cat(c.capacity, " rows of ", in, " -> ", out, ", ", threads, " threads"));
        Rank rank(threads);
        const Problem p(rank, c, in);
        const Tensor dw = rank.poisoned(p.w.shape(), out), expected = rank.poisoned(p.w.shape(), out);
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          kernels::grouped_gemm_backward_weight(rank.stream, {dw, write}, p.dy, p.x, p.groups);
          for (int64_t e = 0; e < p.w.size(0); ++e) {
            const int64_t begin = c.begin[static_cast<size_t>(e)], count = c.count[static_cast<size_t>(e)];
            kernels::gemm(rank.stream, expert(expected, e), write, p.dy.narrow(0, begin, count), Transpose::yes,
                          p.x.narrow(0, begin, count), Transpose::no);
          }
          ASSERT_EQ(values(dw), values(expected));
        }
      }
}

// The sums are those of the stored values in either mode, and computing them changes no bit of those.
TEST(GroupedGemm, BlockSumsMatchTheWeightGradient) {
  for (const Case& c : kCases)
    for (const auto& [in, out] : {std::pair{DType::f64, DType::f64},
                                  {DType::f32, DType::f32},
                                  {DType::bf16, DType::bf16},
                                  {DType::bf16, DType::f32}}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", in, " -> ", out));
      Rank rank;
      const Problem p(rank, c, in);
      testing::put_zeros(p.x);
      const Tensor dw = rank.poisoned(p.w.shape(), out), without = rank.poisoned(p.w.shape(), out);
      const Tensor sums = rank.poisoned(kernels::block_sums_shape(p.w.shape()), DType::f64);
      for (const Write write : {Write::overwrite, Write::accumulate}) {
        kernels::grouped_gemm_backward_weight(rank.stream, {dw, write, sums}, p.dy, p.x, p.groups);
        kernels::grouped_gemm_backward_weight(rank.stream, {without, write}, p.dy, p.x, p.groups);
        EXPECT_EQ(values(dw), values(without));
        EXPECT_TRUE(testing::close_block_sums(sums, dw, 1e-13));
      }
    }
}

// A GPU computes block sums in the product, unless it adds to float32; a CPU needs a pass of its own.
TEST(GroupedGemm, BlockSumsCostAPassUnlessTheProductMakesThem) {
  ThreadPool pool(1);
  const auto bytes = [&](Device device, DType dtype, Write write) {
    Stream meta(device, Arena::meta(), pool);
    const Tensor x = meta.empty({64, 256}, DType::bf16), dy = meta.empty({64, 32}, DType::bf16);
    const Tensor dw = meta.empty({4, 32, 256}, dtype), sums = meta.empty({4, 4, 2}, DType::f64);
    const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64)};
    kernels::grouped_gemm_backward_weight(meta, {dw, write}, dy, x, groups);
    const double without = meta.costs().at("other").at("grouped_gemm_backward_weight").bytes;
    kernels::grouped_gemm_backward_weight(meta, {dw, write, sums}, dy, x, groups);
    const auto& costs = meta.costs().at("other");
    const auto pass = costs.find("block_square_sums");
    return std::pair(costs.at("grouped_gemm_backward_weight").bytes - 2 * without,
                     pass == costs.end() ? 0 : pass->second.bytes);
  };
  constexpr double kSums = 4 * 4 * 16, kElements = 4 * 32 * 256;
  const Device gpu{Device::Kind::meta, 0, Device::Kind::cuda}, cpu{Device::Kind::meta};
  EXPECT_EQ(bytes(gpu, DType::bf16, Write::overwrite), std::pair(kSums, 0.0));
  EXPECT_EQ(bytes(gpu, DType::bf16, Write::accumulate), std::pair(kSums, 0.0));
  EXPECT_EQ(bytes(gpu, DType::f32, Write::overwrite), std::pair(kSums, 0.0));
  EXPECT_EQ(bytes(gpu, DType::f32, Write::accumulate), std::pair(0.0, 4 * kElements + kSums));
  EXPECT_EQ(bytes(cpu, DType::bf16, Write::overwrite), std::pair(0.0, 2 * kElements + kSums));
}

// Rows that an index names give the bits of a copy in order. Index entries outside the groups are invalid, and not
// used.
TEST(GroupedGemm, GatheredRowsGiveTheBitsOfACopy) {
  constexpr int64_t kNowhere = int64_t{1} << 60;
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const int64_t divisor : {1, 2, 8}) {
        SCOPED_TRACE(cat(c.capacity, " rows of ", dtype, ", divisor ", divisor));
        Rank rank;
        const Problem p(rank, c, dtype);
        const int64_t tokens = c.capacity / 2 + 1;
        const Tensor x = rank.normal({tokens, kFeatures}, dtype, "tokens"),
                     dy = rank.normal({tokens, kUnits}, dtype, "dy of tokens");
        std::vector<int64_t> index(static_cast<size_t>(c.capacity), kNowhere);
        const auto copy = [&](const Tensor& to, int64_t row, const Tensor& from, int64_t at) {
          rank.stream.copy(to.narrow(0, row, 1), from.narrow(0, at / divisor, 1));
        };
        for (size_t e = 0; e < c.count.size(); ++e)
          for (int64_t i = c.begin[e]; i < c.begin[e] + c.count[e]; ++i) {
            const int64_t at = tokens * divisor - 1 - i * 31 % (tokens * divisor);
            index[static_cast<size_t>(i)] = at;
            copy(p.x, i, x, at);
            copy(p.dy, i, dy, at);
          }
        const RowIndex rows{rank.tensor<int64_t>({c.capacity}, index), divisor};
        const Tensor y = rank.poisoned(p.dy.shape(), dtype), dx = rank.poisoned(p.x.shape(), dtype);
        kernels::grouped_gemm_forward(rank.stream, y, x, p.groups, p.w, rows);
        expect_rows(rank, c, y, p.x, p.w, Transpose::yes);
        kernels::grouped_gemm_backward_input(rank.stream, dx, dy, p.groups, p.w, rows);
        expect_rows(rank, c, dx, p.dy, p.w, Transpose::no);
        const auto dw = [&](const Tensor& left, const Tensor& right, const SumRows& of) {
          const Tensor out = rank.poisoned(p.w.shape(), dtype);
          kernels::grouped_gemm_backward_weight(rank.stream, {out, Write::overwrite}, left, right, p.groups, of);
          return values(out);
        };
        const std::vector<double> expected = dw(p.dy, p.x, {});
        EXPECT_EQ(dw(p.dy, x, {.x = rows}), expected);
        EXPECT_EQ(dw(dy, p.x, {.dy = rows}), expected);
      }
}

// Expects the bits of the product followed by SwiGLU's backward; other rows must keep their poison.
TEST(GroupedGemm, SwigluBackwardHasTheBitsOfItsTwoParts) {
  for (const Case& c : kCases)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(cat(c.capacity, " rows of ", dtype, weighted ? ", weighted" : ""));
        Rank rank(3);
        const Problem p(rank, c, dtype);
        const Shape wide{c.capacity, 2 * kFeatures}, each{c.capacity};
        const Tensor h = rank.normal(wide, dtype, "h");
        const Tensor s = weighted ? rank.normal(each, accumulator(dtype), "s") : Tensor();
        const auto empty = [&](const Shape& shape, DType of) { return rank.poisoned(shape, of); };
        const Tensor da = empty(p.x.shape(), dtype), dh = empty(wide, dtype), dh_apart = empty(wide, dtype);
        const Tensor ds = empty(each, accumulator(dtype)), ds_apart = empty(each, accumulator(dtype));
        kernels::grouped_gemm_backward_input(rank.stream, da, p.dy, p.groups, p.w);
        kernels::swiglu_backward(rank.stream, dh_apart, ds_apart, da, h, s, p.groups);
        kernels::grouped_swiglu_backward(rank.stream, {dh, ds}, p.dy, p.groups, p.w, {h, s});
        EXPECT_TRUE(same_or_nan(dh, dh_apart));
        EXPECT_TRUE(same_or_nan(ds, ds_apart));
        const Tensor unweighted = empty(wide, dtype);
        kernels::grouped_swiglu_backward(rank.stream, {unweighted, {}}, p.dy, p.groups, p.w, {h, s});
        EXPECT_TRUE(same_or_nan(unweighted, dh_apart)) << "without ds";
      }
}

// A GPU reads the rows in place; a meta stream for a CPU plans the copy that a CPU makes.
TEST(GroupedGemm, OnlyTheCpuCopiesGatheredRows) {
  ThreadPool pool(1);
  const auto copies = [&](Device device) {
    Stream meta(device, Arena::meta(), pool);
    const Tensor x = meta.empty({64, 256}, DType::bf16), y = meta.empty({512, 32}, DType::bf16);
    const Tensor w = meta.empty({4, 32, 256}, DType::bf16), index = meta.empty({512}, DType::i64);
    const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64)};
    kernels::grouped_gemm_forward(meta, y, x, groups, w, {index, 8});
    return meta.costs().at("other").contains("gather_grouped_rows");
  };
  EXPECT_TRUE(copies({Device::Kind::meta}));
  EXPECT_FALSE(copies({Device::Kind::meta, 0, Device::Kind::cuda}));
}

TEST(GroupedGemm, CostsFollowTheExpectedRows) {
  ThreadPool pool(2);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const Tensor x = meta.empty({100, 16}, DType::bf16), y = meta.empty({100, 32}, DType::bf16);
  const Tensor w = meta.empty({4, 32, 16}, DType::bf16), dw = meta.empty({4, 32, 16}, DType::f32);
  const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64), {}, {}, 60};
  kernels::grouped_gemm_forward(meta, y, x, groups, w);
  kernels::grouped_gemm_backward_input(meta, x, y, groups, w);
  kernels::grouped_gemm_backward_weight(meta, {dw, Write::accumulate}, y, x, groups);
  const auto& costs = meta.costs().at("other");
  const double flops = 2.0 * 60 * 16 * 32, rows = 2.0 * 60 * (16 + 32), weights = 4.0 * 32 * 16;
  EXPECT_EQ(costs.at("grouped_gemm_forward").flops, flops);
  EXPECT_EQ(costs.at("grouped_gemm_forward").bytes, rows + 2 * weights);
  EXPECT_EQ(costs.at("grouped_gemm_backward_input").flops, flops);
  EXPECT_EQ(costs.at("grouped_gemm_backward_input").bytes, rows + 2 * weights);
  EXPECT_EQ(costs.at("grouped_gemm_backward_weight").flops, flops);
  EXPECT_EQ(costs.at("grouped_gemm_backward_weight").bytes, rows + 2 * 4 * weights);
}

// dh is written and h is read, whereas the product alone writes half as much; a GPU uses a single kernel.
TEST(GroupedGemm, CostsOfSwigluBackwardAreThoseOfOneKernelOrTwo) {
  ThreadPool pool(2);
  const auto costs = [&](Device device) {
    Stream meta(device, Arena::meta(), pool);
    const Tensor h = meta.empty({100, 32}, DType::bf16), dy = meta.empty({100, 24}, DType::bf16);
    const Tensor w = meta.empty({4, 24, 16}, DType::bf16), s = meta.empty({100}, DType::f32);
    const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64), {}, {}, 60};
    kernels::grouped_swiglu_backward(meta, {meta.empty_like(h), meta.empty_like(s)}, dy, groups, w, {h, s});
    return meta.costs().at("other");
  };
  const auto gpu = costs({Device::Kind::meta, 0, Device::Kind::cuda}), cpu = costs({Device::Kind::meta});
  EXPECT_EQ(gpu.at("grouped_swiglu_backward").flops, 2.0 * 60 * 16 * 24);
  EXPECT_EQ(gpu.at("grouped_swiglu_backward").bytes, 2.0 * 60 * (24 + 4 * 16) + 2 * 4 * 24 * 16);
  EXPECT_EQ(gpu.size(), 1U);
  EXPECT_TRUE(cpu.contains("grouped_gemm_backward_input") && cpu.contains("swiglu_backward"));
}

}  // namespace
}  // namespace witan
