#include "witan/kernels/fp8/fp8.h"

#include <cstring>
#include <limits>

#include "support/fp8.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

using kernels::fp8_blocks;
using kernels::Fp8Columns;
using kernels::Fp8Format;
using kernels::Fp8RowBlocks;
using kernels::Fp8Rows;
using kernels::Fp8Weights;
using kernels::kFp8Block;
using testing::dequantised;
using testing::ExactSum;
using testing::fp8_cases;
using testing::fp8_groups;
using testing::fp8_rows_of;
using testing::fp8_tokens_of;
using testing::Fp8Case;
using testing::kFp8Topk;
using testing::Rank;
using testing::values;

struct Quantised {
  Fp8RowBlocks blocks;
  Fp8Rows rows;
  Fp8Columns columns;
};

void poison(const Tensor& tensor) {
  if (tensor.bytes() > 0) std::memset(tensor.raw(), 0xFF, static_cast<size_t>(tensor.bytes()));
}

Quantised quantised(Rank& rank, const Tensor& x, const RowGroups& groups, Fp8Format format = Fp8Format::e4m3,
                    const Tensor& largest = {}) {
  Stream& s = rank.stream;
  Quantised out{Fp8RowBlocks::empty(s, groups, x.size(0)), Fp8Rows::empty(s, x.size(0), x.size(1), format), {}};
  out.columns = Fp8Columns::empty(s, out.blocks, x.size(1), format);
  for (const Tensor& to : {out.rows.values, out.rows.scales, out.columns.values, out.columns.scales}) poison(to);
  if (out.blocks.table.defined()) poison(out.blocks.table);
  kernels::fp8_row_blocks(s, out.blocks, groups);
  kernels::fp8_quantise(s, out.rows, out.columns, x, out.blocks, {{}, largest});
  return out;
}

Fp8Weights quantised_weights(Rank& rank, const Tensor& w, const Tensor& largest = {}) {
  Stream& s = rank.stream;
  const int64_t E = w.size(0), N = w.size(1), K = w.size(2);
  Fp8Weights out{s.empty({E, N, K}, DType::f8), s.empty({E, K, N}, DType::f8),
                 s.empty({E, fp8_blocks(N), fp8_blocks(K)}, DType::f32)};
  for (const Tensor& to : {out.values, out.transposed, out.scales}) poison(to);
  kernels::fp8_quantise_weights(s, out, w, largest);
  return out;
}

// The largest error of a number in a block with this largest magnitude: half the distance between neighbours, which is
// 2^-4 of the number or 2^-10 of the scale, plus float32's rounding.
double most_lost(double number, double largest) {
  return std::max(std::abs(number) * 0x1p-4, largest / 448 * 0x1p-10) * (1 + 0x1p-20);
}

double largest_of(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers) largest = std::max(largest, std::abs(number));
  return largest;
}

// Calls body(first row in the pool, rows, block, group) for each source's rows of an expert, in blocks of 128.
template <class Body>
void for_blocks_of_groups(const Fp8Case& c, const Body& body) {
  int64_t block = 0;
  for (int64_t e = 0; e < c.experts(); ++e)
    for (int64_t r = 0; r < c.sources; ++r) {
      const auto at = static_cast<size_t>(r * c.experts() + e);
      for (int64_t row = 0; row < c.count[at]; row += kFp8Block)
        body(c.begin[at] + row, std::min(kFp8Block, c.count[at] - row), block++, e * c.sources + r);
    }
}
template <class Body>
void for_blocks(const Fp8Case& c, const Body& body) {
  for_blocks_of_groups(c, [&](int64_t first, int64_t rows, int64_t block, int64_t) { body(first, rows, block); });
}

TEST(Fp8, BlocksFollowGroupsSourceBySource) {
  Rank rank;
  for (const Fp8Case& c : fp8_cases()) {
    SCOPED_TRACE(cat(c.capacity, " rows"));
    const RowGroups groups = fp8_groups(rank, c);
    const Fp8RowBlocks blocks = quantised(rank, fp8_rows_of(rank, c, c.K, DType::f32, "x"), groups).blocks;
    int64_t used = 0;
    const int32_t* table = blocks.table.data<int32_t>();
    for_blocks(c, [&](int64_t first, int64_t rows, int64_t block) {
      EXPECT_EQ(table[block * 2], first);
      EXPECT_EQ(table[block * 2 + 1], rows);
      used = block + 1;
    });
    ASSERT_LE(used, blocks.most);
    for (int64_t block = used; block < blocks.most; ++block) EXPECT_EQ(table[block * 2 + 1], 0);
    int64_t next = 0;
    for (int64_t e = 0; e < c.experts(); ++e) {
      EXPECT_EQ(blocks.groups.begin.data<int64_t>()[e], next);
      for (int64_t r = 0; r < c.sources; ++r) {
        const auto at = static_cast<size_t>(r * c.experts() + e);
        const RowGroups source = blocks.groups.of_source(r);
        EXPECT_EQ(source.begin.data<int64_t>()[e], next);
        EXPECT_EQ(source.count.data<int64_t>()[e], fp8_blocks(c.count[at]));
        next += fp8_blocks(c.count[at]);
      }
      EXPECT_EQ(blocks.groups.count.data<int64_t>()[e], next - blocks.groups.begin.data<int64_t>()[e]);
    }
    EXPECT_EQ(next, used);
  }
}

TEST(Fp8, RowsAndColumnsAreRoundedToHalfAStep) {
  for (const Fp8Case& c : fp8_cases())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", c.K, ", ", dtype));
      Rank rank(3);
      const Tensor x = fp8_rows_of(rank, c, c.K, dtype, "x");
      const Quantised q = quantised(rank, x, fp8_groups(rank, c));
      const std::vector<double> exact = values(x), rows = dequantised(q.rows), columns = dequantised(q.columns);
      const int64_t K = c.K, P = q.columns.values.size(1);
      const auto in = [&](int64_t i, int64_t k) { return exact[static_cast<size_t>(i * K + k)]; };
      for_blocks(c, [&](int64_t first, int64_t size, int64_t block) {
        for (int64_t i = first; i < first + size; ++i)
          for (int64_t k = 0; k < K; k += kFp8Block) {
            const int64_t end = std::min(k + kFp8Block, K);
            const double largest = largest_of({exact.begin() + i * K + k, exact.begin() + i * K + end});
            EXPECT_EQ(q.rows.scales.data<float>()[k / kFp8Block * c.capacity + i], static_cast<float>(largest / 448));
            for (int64_t at = k; at < end; ++at)
              ASSERT_NEAR(rows[static_cast<size_t>(i * K + at)], in(i, at), most_lost(in(i, at), largest));
          }
        for (int64_t k = 0; k < K; ++k) {
          double largest = 0;
          for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(in(first + i, k)));
          for (int64_t i = 0; i < kFp8Block; ++i) {
            const double got = columns[static_cast<size_t>(k * P + block * kFp8Block + i)];
            const double want = i < size ? in(first + i, k) : 0;
            ASSERT_NEAR(got, want, i < size ? most_lost(want, largest) : 0);
          }
        }
      });
    }
}

TEST(Fp8, WithoutGroupsAllRowsAreOneGroup) {
  Rank rank;
  const Fp8Case all{300, 144, 16, {0}, {300}};
  const Tensor x = fp8_rows_of(rank, all, 144, DType::bf16, "x");
  const Quantised grouped = quantised(rank, x, fp8_groups(rank, all)), plain = quantised(rank, x, {});
  const auto same = [](const Tensor& a, const Tensor& b) { return std::memcmp(a.raw(), b.raw(), b.bytes()) == 0; };
  EXPECT_TRUE(same(grouped.rows.values, plain.rows.values));
  EXPECT_TRUE(same(grouped.rows.scales, plain.rows.scales));
  EXPECT_EQ(plain.blocks.most, 3);
  EXPECT_EQ(plain.columns.values.shape(), Shape({144, 384}));
  for (int64_t k = 0; k < 144; ++k)
    EXPECT_EQ(std::memcmp(plain.columns.values.data<e4m3>() + k * 384,
                          grouped.columns.values.data<e4m3>() + k * grouped.columns.values.size(1), 384),
              0);
}

// Zeros have the scale 1, a non-finite number makes all of its blocks NaN, and the smallest numbers keep normal scales.
TEST(Fp8, QuantisesTheEdgesOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  for (const float edge :
       {0.0F, -0.0F, infinity, -infinity, std::nanf(""), tiny, 0x1p-120F, std::numeric_limits<float>::max()}) {
    SCOPED_TRACE(edge);
    Rank rank;
    Tensor x = rank.stream.zeros({130, 144}, DType::f32);
    x.data<float>()[5 * 144 + 131] = edge;
    const Quantised q = quantised(rank, x, {});
    Tensor w = x.narrow(0, 0, 128).reshape({1, 128, 144});
    const Fp8Weights weights = quantised_weights(rank, w);
    const float of_row = q.rows.scales.data<float>()[130 + 5], of_column = q.columns.scales.data<float>()[131],
                of_weight = weights.scales.data<float>()[1];
    EXPECT_EQ(q.rows.scales.data<float>()[5], 1);  // the row's first block is zeros
    EXPECT_EQ(q.columns.scales.data<float>()[144 + 131], 1);
    for (const float scale : {of_row, of_column, of_weight}) {
      if (edge == 0) {
        EXPECT_EQ(scale, 1);
      } else if (!std::isfinite(edge)) {
        EXPECT_TRUE(std::isnan(scale));
      } else {
        EXPECT_TRUE(std::isnormal(scale));
        EXPECT_NEAR(static_cast<double>(scale) * 448 / std::max(edge, 0x1p-117F), 1, 1e-6);
      }
    }
  }
}

TEST(Fp8, TransposedWeightsHoldTheSameNumbers) {
  for (const Shape& shape : {Shape{3, 144, 272}, {1, 128, 128}, {2, 16, 400}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Rank rank(3);
      const Tensor w = rank.normal(shape, dtype, "w", 0.02);
      const Fp8Weights q = quantised_weights(rank, w);
      const std::vector<double> exact = values(w), plain = dequantised(q, false), turned = dequantised(q, true);
      EXPECT_EQ(plain, turned);
      const int64_t N = shape[1], K = shape[2];
      for (int64_t i = 0; i < w.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t e = i / (N * K), n = i / K % N, k = i % K;
        const double scale = q.scales.data<float>()[(e * q.scales.size(1) + n / 128) * q.scales.size(2) + k / 128];
        ASSERT_NEAR(plain[at], exact[at], most_lost(exact[at], scale * 448));
        ASSERT_LE(std::abs(plain[at]), scale * 448 * (1 + 1e-6));
      }
    }
}

// Rows that an index names give the results of copied rows.
TEST(Fp8, GatheredRowsEqualThoseOfACopy) {
  for (const Fp8Case& c : fp8_cases()) {
    SCOPED_TRACE(cat(c.capacity, " rows of ", c.K));
    Rank rank(3);
    const RowGroups groups = fp8_groups(rank, c);
    const auto [x, index] = fp8_tokens_of(rank, c, DType::bf16);
    const Tensor copy = rank.stream.empty({c.capacity, c.K}, DType::bf16);
    kernels::gather_rows(rank.stream, copy, x, index, kFp8Topk);
    const Quantised want = quantised(rank, copy, groups);
    Quantised got{want.blocks, Fp8Rows::empty(rank.stream, c.capacity, c.K),
                  Fp8Columns::empty(rank.stream, want.blocks, c.K)};
    for (const Tensor& to : {got.rows.values, got.rows.scales, got.columns.values, got.columns.scales}) poison(to);
    kernels::fp8_quantise(rank.stream, got.rows, got.columns, x, got.blocks, {index, kFp8Topk});
    for (const auto& [a, b] : {std::pair{got.rows.values, want.rows.values},
                               {got.rows.scales, want.rows.scales},
                               {got.columns.values, want.columns.values},
                               {got.columns.scales, want.columns.scales}})
      EXPECT_TRUE(b.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(b.bytes())) == 0);
  }
}

std::vector<double> amaxes_of(const Fp8Case& c, const std::vector<double>& x, int64_t K) {
  std::vector<double> amax(static_cast<size_t>(c.experts() * c.sources));
  for_blocks_of_groups(c, [&](int64_t first, int64_t rows, int64_t, int64_t group) {
    double& most = amax[static_cast<size_t>(group)];
    most = std::max(most, largest_of({x.begin() + first * K, x.begin() + (first + rows) * K}));
  });
  return amax;
}

TEST(Fp8, AmaxesFollowGroupsSourceBySource) {
  for (const Fp8Case& c : fp8_cases())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", c.K, ", ", dtype));
      Rank rank(3);
      const Tensor x = fp8_rows_of(rank, c, c.K, dtype, "x");
      const Fp8RowBlocks blocks = quantised(rank, x, fp8_groups(rank, c)).blocks;
      const Tensor amax = rank.stream.zeros({blocks.number()}, DType::f32);
      kernels::fp8_amax(rank.stream, amax, x, blocks);
      std::vector<double> want = amaxes_of(c, values(x), c.K);
      EXPECT_EQ(values(amax), want);
      // Later, only larger values raise it.
      want.front() = 1e6;
      amax.data<float>()[0] = 1e6F;
      kernels::fp8_amax(rank.stream, amax, x, blocks);
      EXPECT_EQ(values(amax), want);

      const auto [tokens, index] = fp8_tokens_of(rank, c, dtype);
      const Tensor copy = rank.stream.empty({c.capacity, c.K}, dtype);
      kernels::gather_rows(rank.stream, copy, tokens, index, kFp8Topk);
      const Tensor of_tokens = rank.stream.zeros({blocks.number()}, DType::f32);
      kernels::fp8_amax(rank.stream, of_tokens, tokens, blocks, {index, kFp8Topk});
      EXPECT_EQ(values(of_tokens), amaxes_of(c, values(copy), c.K));
    }
}

TEST(Fp8, AmaxesOfWeightsFollowMatrices) {
  Rank rank(3);
  const Tensor w = rank.normal({3, 144, 272}, DType::bf16, "w"), amax = rank.stream.zeros({3}, DType::f32);
  w.data<bf16>()[2 * 144 * 272 + 5] = bf16(std::nanf(""));
  kernels::fp8_weight_amax(rank.stream, amax, w);
  const std::vector<double> all = values(w), found = values(amax);
  for (size_t e = 0; e < 2; ++e)
    EXPECT_EQ(found[e], largest_of({all.begin() + std::ptrdiff_t(e * 144 * 272),
                                    all.begin() + std::ptrdiff_t((e + 1) * 144 * 272)}));
  EXPECT_TRUE(std::isnan(found[2]));
}

// With one scale per tensor, numbers beyond the magnitude saturate, and small ones lose bits that a block's scale
// keeps.
TEST(Fp8, GivenAmaxesScaleWholeGroups) {
  for (const Fp8Case& c : fp8_cases())
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      SCOPED_TRACE(cat(c.capacity, " rows of ", c.K));
      Rank rank(3);
      const RowGroups groups = fp8_groups(rank, c);
      const Tensor x = fp8_rows_of(rank, c, c.K, DType::bf16, "x");
      const std::vector<double> exact = values(x);
      std::vector<float> given;
      for (const double amax : amaxes_of(c, exact, c.K))
        given.push_back(static_cast<float>(given.size() % 2 == 0 ? amax : amax / 2));
      const Tensor largest = rank.tensor<float>({std::ssize(given)}, given);
      const Quantised q = quantised(rank, x, groups, format, largest);
      const std::vector<double> rows = dequantised(q.rows), columns = dequantised(q.columns);
      const int64_t P = q.columns.values.size(1);
      for_blocks_of_groups(c, [&](int64_t first, int64_t size, int64_t block, int64_t group) {
        for (int64_t i = 0; i < size; ++i)
          for (int64_t k = 0; k < c.K; ++k) {
            const auto at = static_cast<size_t>((first + i) * c.K + k);
            const double want = testing::scaled_to(format, exact[at], given[static_cast<size_t>(group)]);
            ASSERT_EQ(rows[at], want);
            ASSERT_EQ(columns[static_cast<size_t>(k * P + block * kFp8Block + i)], want);
          }
      });
    }
}

TEST(Fp8, GivenAmaxesScaleWholeMatrices) {
  Rank rank(3);
  const Tensor w = rank.normal({3, 144, 272}, DType::f32, "w", 0.02);
  const std::vector<float> given = {0.05F, 0.1F, 448.0F};
  const Fp8Weights q = quantised_weights(rank, w, rank.tensor<float>({3}, given));
  const std::vector<double> exact = values(w), plain = dequantised(q, false);
  EXPECT_EQ(plain, dequantised(q, true));
  for (size_t i = 0; i < exact.size(); ++i)
    ASSERT_EQ(plain[i], testing::scaled_to(Fp8Format::e4m3, exact[i], given[i / (144 * 272)]));
}

// A non-finite number makes its blocks NaN, whatever magnitude is given.
TEST(Fp8, GivenAmaxesKeepNonFiniteNumbersVisible) {
  for (const float edge : {std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      Rank rank;
      Tensor x = rank.stream.zeros({130, 144}, DType::f32);
      x.data<float>()[5 * 144 + 131] = edge;
      const Tensor given = rank.tensor<float>({1}, {2.0F});
      const Quantised q = quantised(rank, x, {}, format, given);
      const float largest = format == Fp8Format::e4m3 ? 448 : 57344;
      EXPECT_TRUE(std::isnan(q.rows.scales.data<float>()[130 + 5]));
      EXPECT_TRUE(std::isnan(q.columns.scales.data<float>()[131]));
      EXPECT_EQ(q.rows.scales.data<float>()[5], 2 / largest);
      EXPECT_EQ(q.columns.scales.data<float>()[130], 2 / largest);
      const Fp8Weights w = quantised_weights(rank, x.narrow(0, 0, 128).reshape({1, 128, 144}), given);
      EXPECT_EQ(w.scales.data<float>()[0], 2.0F / 448);
      EXPECT_TRUE(std::isnan(w.scales.data<float>()[1]));
    }
}

TEST(Fp8, DelayedAmaxesComeFromEarlierSteps) {
  Rank rank;
  const Tensor amax = rank.tensor<float>({6}, {1, 2, 3, 4, 0, 0}), seen = rank.tensor<float>({3}, {1.5F, 9, 0}),
               reference = rank.tensor<float>({3}, {7, 0, 0.5F});
  kernels::fp8_delay(rank.stream, amax, seen, reference);
  EXPECT_EQ(values(seen), (std::vector<double>{2, 9, 0}));
  EXPECT_EQ(values(amax), (std::vector<double>{7, 7, 3, 4, 0.5, 0.5}));
  const Tensor again = rank.tensor<float>({3}, {8, 8, 8});
  kernels::fp8_delay(rank.stream, again, {}, reference);
  EXPECT_EQ(values(again), (std::vector<double>{7, 8, 0.5}));
}

// Transformer Engine's rule, with magnitudes instead of scales: the largest of the last H steps, or the last step's,
// times 2^margin. A tensor that no step has used keeps its value, and so do all tensors in a skipped step.
TEST(Fp8, ReferencesFollowTheAmaxHistory) {
  Rank rank;
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  const std::vector<std::vector<float>> steps = {{3, 0}, {1, 2}, {5, 1}, {1, 1}, {1, 0}, {2, 4}};
  for (const int64_t H : {1, 2, 3}) {
    const Tensor reference = rank.stream.zeros({2}, DType::f32);
    const Tensor history = H > 1 ? rank.stream.zeros({H, 2}, DType::f32) : Tensor();
    std::vector<double> want(2, 0);
    for (size_t at = 0; at < steps.size(); ++at) {
      step.data<double>()[kernels::step_value::update] = static_cast<double>(at + 1);
      for (const double skip : {1.0, 0.0}) {
        step.data<double>()[kernels::step_value::skip] = skip;
        const Tensor amax = rank.tensor<float>({2}, skip != 0 ? std::vector<float>{99, 99} : steps[at]);
        kernels::fp8_next_references(rank.stream, {reference, history, amax}, step, 4);
        if (skip == 0)
          for (size_t i = 0; i < 2; ++i) {
            float most = 0;
            for (size_t back = 0; back < static_cast<size_t>(H) && back <= at; ++back)
              most = std::max(most, steps[at - back][i]);
            if (most > 0) want[i] = 4.0 * most;
          }
        EXPECT_EQ(values(reference), want) << "H " << H << ", step " << at;
      }
    }
    const Tensor broken = rank.tensor<float>({2}, {static_cast<float>(infinity), std::numeric_limits<float>::max()});
    if (H == 1) kernels::fp8_next_references(rank.stream, {reference, history, broken}, step, 4);
    EXPECT_EQ(values(reference), want);
  }
}

// Each copy alone, and any number of threads, give the same bits.
TEST(Fp8, EitherCopyAloneHasTheSameBits) {
  const Fp8Case& c = fp8_cases()[3];
  Rank rank(3), alone(1);
  const RowGroups groups = fp8_groups(rank, c);
  const Tensor x = fp8_rows_of(rank, c, c.K, DType::bf16, "x");
  const Quantised both = quantised(rank, x, groups);
  const Fp8Rows rows = Fp8Rows::empty(alone.stream, c.capacity, c.K);
  const Fp8Columns columns = Fp8Columns::empty(alone.stream, both.blocks, c.K);
  for (const Tensor& to : {rows.values, rows.scales, columns.values, columns.scales}) poison(to);
  kernels::fp8_quantise(alone.stream, rows, {}, x, both.blocks);
  kernels::fp8_quantise(alone.stream, {}, columns, x, both.blocks);
  for (const auto& [a, b] : {std::pair{rows.values, both.rows.values},
                             {rows.scales, both.rows.scales},
                             {columns.values, both.columns.values},
                             {columns.scales, both.columns.scales}})
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(b.bytes())), 0);
}

// The sums of blocks are in float32, and are added in float32.
void expect_sum(double got, const ExactSum& exact, DType out) {
  const double rounding = out == DType::bf16 ? 0x1p-8 : 0x1p-24;
  ASSERT_NEAR(got, exact.sum, exact.magnitudes * 0x1p-18 + std::abs(exact.sum) * rounding);
}

void expect_rows(const Fp8Case& c, const Tensor& y, const std::vector<double>& x, const std::vector<double>& w,
                 bool turned) {
  const int64_t in = turned ? c.N : c.K, out = turned ? c.K : c.N, E = c.experts();
  const std::vector<double> got = values(y);
  std::vector<bool> inside(static_cast<size_t>(c.capacity));
  for (size_t g = 0; g < c.count.size(); ++g)
    for (int64_t i = c.begin[g]; i < c.begin[g] + c.count[g]; ++i) {
      inside[static_cast<size_t>(i)] = true;
      for (int64_t n = 0; n < out; ++n) {
        ExactSum sum;
        const int64_t e = static_cast<int64_t>(g) % E;
        for (int64_t k = 0; k < in; ++k)
          sum.add(x[static_cast<size_t>(i * in + k)] *
                  w[static_cast<size_t>(turned ? (e * c.N + k) * c.K + n : (e * c.N + n) * c.K + k)]);
        expect_sum(got[static_cast<size_t>(i * out + n)], sum, y.dtype());
      }
    }
  for (int64_t i = 0; i < c.capacity; ++i)
    ASSERT_TRUE(inside[static_cast<size_t>(i)] || std::isnan(got[static_cast<size_t>(i * out)])) << i;
}

// Gradients use e5m2 in one of two dtypes.
Fp8Format gradients_of(DType dtype) {
  return dtype == DType::f32 ? Fp8Format::e5m2 : Fp8Format::e4m3;
}

TEST(Fp8, ProductsMatchDequantisedOperands) {
  for (const Fp8Case& c : fp8_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, ", ", dtype));
      Rank rank(3);
      const RowGroups groups = fp8_groups(rank, c);
      const Quantised x = quantised(rank, fp8_rows_of(rank, c, c.K, dtype, "x"), groups);
      const Quantised dy = quantised(rank, fp8_rows_of(rank, c, c.N, dtype, "dy"), groups, gradients_of(dtype));
      const Fp8Weights w = quantised_weights(rank, rank.normal({c.experts(), c.N, c.K}, dtype, "w"));
      const Tensor y = rank.poisoned({c.capacity, c.N}, dtype), dx = rank.poisoned({c.capacity, c.K}, dtype);
      kernels::fp8_product(rank.stream, y, {x.rows, w}, groups);
      kernels::fp8_product(rank.stream, dx, {dy.rows, w, true}, groups);
      const std::vector<double> exact = dequantised(w, false);
      expect_rows(c, y, dequantised(x.rows), exact, false);
      expect_rows(c, dx, dequantised(dy.rows), exact, true);
    }
  }
}

void expect_gradient(const Fp8Case& c, const Tensor& dw, const std::vector<double>& before, const RowGroups& blocks,
                     const std::vector<double>& dy, const std::vector<double>& x) {
  const int64_t P = std::ssize(x) / std::max<int64_t>(c.K, 1);
  const std::vector<double> got = values(dw);
  for (int64_t e = 0; e < c.experts(); ++e)
    for (int64_t n = 0; n < c.N; ++n)
      for (int64_t k = 0; k < c.K; ++k) {
        const auto at = static_cast<size_t>((e * c.N + n) * c.K + k);
        ExactSum sum;
        if (!before.empty()) sum.add(before[at]);
        const int64_t first = blocks.begin.data<int64_t>()[e] * kFp8Block;
        for (int64_t i = first; i < first + blocks.count.data<int64_t>()[e] * kFp8Block; ++i)
          sum.add(dy[static_cast<size_t>(n * P + i)] * x[static_cast<size_t>(k * P + i)]);
        expect_sum(got[at], sum, dw.dtype());
      }
}

TEST(Fp8, WeightGradientsMatchDequantisedOperands) {
  for (const Fp8Case& c : fp8_cases()) {
    for (const DType out : {DType::f32, DType::bf16}) {
      if (out == DType::bf16 && c.capacity * c.K * c.N > 20'000'000) continue;  // the reference is slow
      SCOPED_TRACE(cat(c.capacity, " rows, K ", c.K, ", N ", c.N, " -> ", out));
      Rank rank(3);
      const RowGroups groups = fp8_groups(rank, c);
      const Quantised x = quantised(rank, fp8_rows_of(rank, c, c.K, DType::bf16, "x"), groups);
      const Quantised dy = quantised(rank, fp8_rows_of(rank, c, c.N, DType::bf16, "dy"), groups, gradients_of(out));
      const Tensor dw = rank.poisoned({c.experts(), c.N, c.K}, out);
      const std::vector<double> by_x = dequantised(x.columns), by_dy = dequantised(dy.columns);
      std::vector<double> before;
      for (const Write write : {Write::overwrite, Write::accumulate})
        for (int64_t source = 0; source < c.sources; ++source) {
          const RowGroups of = c.sources == 1 ? x.blocks.groups : x.blocks.groups.of_source(source);
          kernels::fp8_weight_gradient(rank.stream, dw, write, dy.columns, x.columns, of);
          expect_gradient(c, dw, write == Write::overwrite ? std::vector<double>() : before, of, by_dy, by_x);
          before = values(dw);
        }
    }
  }
}

TEST(Fp8, CostsFollowTheExpectedRows) {
  ThreadPool pool(2);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  const RowGroups groups{meta.empty({4}, DType::i64), meta.empty({4}, DType::i64), {}, {}, 60};
  const Fp8RowBlocks blocks = Fp8RowBlocks::empty(meta, groups, 100);
  EXPECT_EQ(blocks.most, 4);
  const Fp8Rows rows = Fp8Rows::empty(meta, 100, 16);
  const Fp8Columns x = Fp8Columns::empty(meta, blocks, 16), dy = Fp8Columns::empty(meta, blocks, 32);
  const Fp8Weights w{meta.empty({4, 32, 16}, DType::f8), {}, meta.empty({4, 1, 1}, DType::f32)};
  kernels::fp8_quantise(meta, rows, x, meta.empty({100, 16}, DType::bf16), blocks);
  kernels::fp8_product(meta, meta.empty({100, 32}, DType::bf16), {rows, w}, groups);
  kernels::fp8_weight_gradient(meta, meta.empty({4, 32, 16}, DType::f32), Write::accumulate, dy, x, blocks.groups);
  const auto& costs = meta.costs().at("other");
  EXPECT_EQ(costs.at("fp8_quantise").bytes, 60 * 16 * (2 + 1 + 1));
  EXPECT_EQ(costs.at("fp8_product").flops, 2.0 * 60 * 16 * 32);
  EXPECT_EQ(costs.at("fp8_product").bytes, 60 * (16 + 2 * 32) + 4 * 32 * 16);
  EXPECT_EQ(costs.at("fp8_weight_gradient").flops, 2.0 * 60 * 16 * 32);
  EXPECT_EQ(costs.at("fp8_weight_gradient").bytes, 60 * (16 + 32) + 2 * 4 * 4 * 32 * 16);
}

}  // namespace
}  // namespace witan
