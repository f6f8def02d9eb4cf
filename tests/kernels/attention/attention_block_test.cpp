// Attention computed in blocks of queries and keys must combine to the attention of the whole sequence.
#include <cmath>
#include <limits>

#include "support/attention.h"
#include "support/dropout.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan {
namespace {

using kernels::PositionRuns;
using testing::close;
using testing::dropout_of;
using testing::Rank;
using testing::values;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16};
constexpr double kNone = -std::numeric_limits<double>::infinity();

double tolerance_of(DType dtype) {
  return dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 3e-2;
}

TEST(PositionRuns, CountsEqualThoseOfListedPositions) {
  for (const PositionRuns& positions : {PositionRuns{}, PositionRuns{7}, PositionRuns{2, 3, 9}, PositionRuns{0, 4, 4},
                                        PositionRuns{5, 0, 6}, PositionRuns{0, 1, 100}})
    for (int64_t tokens = 0; tokens < 8; ++tokens)
      for (int64_t position = -1; position < 110; ++position) {
        int64_t expected = 0;
        for (int64_t token = 0; token < tokens; ++token) expected += positions.at(token) < position;
        ASSERT_EQ(positions.before(position, tokens), expected) << tokens << " tokens before " << position;
      }
}

// [B, S] ids, in which every row consists of documents of these lengths.
Tensor documents(Rank& rank, int64_t B, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < B; ++b)
    for (size_t i = 0; i < lengths.size(); ++i) ids.insert(ids.end(), size_t(lengths[i]), static_cast<int32_t>(i));
  return rank.tensor<int32_t>({B, static_cast<int64_t>(ids.size()) / B}, ids);
}

struct Results {
  Tensor y, lse, dq, dk, dv;
  std::vector<Tensor> all() const { return {y, lse, dq, dk, dv}; }
};

Results poisoned_results(Rank& rank, const kernels::AttentionInputs& in) {
  const DType dtype = in.q.dtype();
  return {rank.poisoned(in.q.shape().with(3, in.v.size(3)), dtype),
          rank.poisoned({in.q.size(0), in.q.size(2), in.q.size(1)}, accumulator(dtype)),
          rank.poisoned(in.q.shape(), dtype), rank.poisoned(in.k.shape(), dtype), rank.poisoned(in.v.shape(), dtype)};
}

Results whole(Rank& rank, const kernels::AttentionInputs& in, const Tensor& dy) {
  const Results r = poisoned_results(rank, in);
  kernels::attention_forward(rank.stream, r.y, r.lse, in);
  kernels::attention_backward(rank.stream, {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
  return r;
}

// Adds the rows of `part` to the rows of `sum`, float64 [B, S, ..], at their positions.
void add_rows(std::vector<double>& sum, const Tensor& part, int64_t S, const PositionRuns& positions) {
  const auto from = values(part);
  const int64_t B = part.size(0), tokens = part.size(1), row = part.elements() / (B * tokens);
  for (int64_t i = 0; i < part.elements(); ++i) {
    const int64_t b = i / (tokens * row), token = i / row % tokens;
    sum[size_t((b * S + positions.at(token)) * row + i % row)] += from[size_t(i)];
  }
}

// Compares every division of the sequence, block by block in an order of its own, with the whole.
void expect_whole(Rank& rank, const kernels::AttentionInputs& in, int n) {
  const int64_t S = in.q.size(1);
  const DType dtype = in.q.dtype();
  const double tolerance = tolerance_of(dtype);
  const Tensor dy = rank.normal(in.q.shape().with(3, in.v.size(3)), dtype, "dy");
  const Results expected = whole(rank, in, dy);
  std::vector<double> dq(size_t(in.q.elements())), dk(size_t(in.k.elements())), dv(size_t(in.v.elements()));
  for (int mine = 0; mine < n; ++mine) {
    const auto rows = [&](const Tensor& x, int of) { return testing::share_of(rank, x, n, of); };
    kernels::AttentionInputs block = in;
    block.q = rows(in.q, mine), block.sequence_ids = rows(in.sequence_ids, mine);
    const auto meet = [&](int theirs) {
      block.k = rows(in.k, theirs), block.v = rows(in.v, theirs);
      block.block = {testing::zigzag(S, n, mine), testing::zigzag(S, n, theirs), rows(in.sequence_ids, theirs), S};
      return poisoned_results(rank, block);
    };
    Tensor y, lse;
    for (int i = 0; i < n; ++i) {
      const Results part = meet((mine + i + 1) % n);  // its own block comes last
      kernels::attention_forward(rank.stream, part.y, part.lse, block);
      if (i > 0) {
        kernels::attention_merge(rank.stream, y, lse, part.y, part.lse);
        continue;
      }
      lse = part.lse, y = rank.stream.empty(part.y.shape(), accumulator(dtype));
      kernels::cast(rank.stream, y, part.y);
    }
    EXPECT_TRUE(close(y, rows(expected.y, mine), tolerance, tolerance)) << "y";
    EXPECT_TRUE(close(lse, testing::lse_share_of(rank, expected.lse, n, mine), std::min(tolerance, 1e-5),
                      std::min(tolerance, 1e-5)))
        << "lse";
    const Tensor narrow = rank.stream.empty(y.shape(), dtype), dy_part = rows(dy, mine);
    kernels::cast(rank.stream, narrow, y);
    for (int theirs = 0; theirs < n; ++theirs) {
      const Results part = meet(theirs);
      kernels::attention_backward(rank.stream, {part.dq, part.dk, part.dv}, dy_part, narrow, lse, block);
      add_rows(dq, part.dq, S, testing::zigzag(S, n, mine));
      add_rows(dk, part.dk, S, testing::zigzag(S, n, theirs));
      add_rows(dv, part.dv, S, testing::zigzag(S, n, theirs));
    }
  }
  EXPECT_TRUE(close(dq, values(expected.dq), 4 * tolerance, tolerance)) << "dq";
  EXPECT_TRUE(close(dk, values(expected.dk), 8 * tolerance, tolerance)) << "dk";
  EXPECT_TRUE(close(dv, values(expected.dv), 8 * tolerance, tolerance)) << "dv";
}

struct Size {
  int64_t B, S, H, G, hd;
  int64_t hd_v = hd;
  int64_t window = 0;
};

kernels::AttentionInputs inputs(Rank& rank, const Size& s, DType dtype, const Tensor& ids = {}) {
  const Shape q{s.B, s.S, s.H, s.hd}, k{s.B, s.S, s.G, s.hd};
  return {.q = rank.normal(q, dtype, "q"),
          .k = rank.normal(k, dtype, "k"),
          .v = rank.normal(k.with(3, s.hd_v), dtype, "v"),
          .sequence_ids = ids,
          .scale = 0.3,
          .window = s.window};
}

TEST(AttentionBlock, BlocksCombineToTheWhole) {
  for (const int threads : {1, 3}) {  // the backward is divided in two ways
    Rank rank(threads);
    for (const DType dtype : kTypes)
      for (const int n : {1, 2, 3, 4})
        for (const Size& size : {Size{1, 24, 1, 1, 1}, Size{2, 168, 4, 2, 20}, Size{1, 240, 3, 1, 17}}) {
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << n << " parts of " << size.S);
          expect_whole(rank, inputs(rank, size, dtype), n);
        }
  }
}

// Some blocks have no pair in the window, and some have a few.
TEST(AttentionBlock, BlocksOfAWindowCombineToTheWhole) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const DType dtype : kTypes)
      for (const int n : {1, 2, 3, 4})
        for (const int64_t window : {1, 5, 50, 130, 300}) {
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << n << " parts, window " << window);
          expect_whole(rank, inputs(rank, {1, 240, 4, 2, 17, 9, window}, dtype), n);
          const Tensor ids = documents(rank, 2, {10, 1, 93, 64});
          kernels::AttentionInputs in = inputs(rank, {2, 168, 4, 2, 20, 24, window}, dtype, ids);
          expect_whole(rank, in, n);
          if (n == 4) continue;  // chunks of 21 tokens, which dropout does not support
          in = inputs(rank, {1, 192, 4, 2, 20, 24, window}, dtype, documents(rank, 1, {100, 92}));
          in.dropout = dropout_of(rank, 0.4);
          expect_whole(rank, in, n);
        }
  }
}

TEST(AttentionBlock, DocumentsDoNotSeeEachOther) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const DType dtype : kTypes)
      for (const int n : {2, 3})
        for (const auto& lengths : {std::vector<int64_t>{10, 1, 93, 64}, std::vector<int64_t>{168},
                                    std::vector<int64_t>{28, 28, 28, 28, 28, 28}, std::vector<int64_t>{1, 1, 1, 165}}) {
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << n << " parts");
          expect_whole(rank, inputs(rank, {2, 168, 4, 2, 20}, dtype, documents(rank, 2, lengths)), n);
        }
  }
}

TEST(AttentionBlock, DropsTheSameProbabilitiesAsTheWhole) {
  Rank rank;
  for (const int n : {1, 2, 3}) {
    SCOPED_TRACE(n);
    kernels::AttentionInputs in = inputs(rank, {2, 192, 4, 2, 20}, DType::f64, documents(rank, 2, {100, 92}));
    in.dropout = dropout_of(rank, 0.4);
    expect_whole(rank, in, n);
  }
}

// Unseen keys and values are poisoned, and must not affect the results.
TEST(AttentionBlock, QueriesBeforeAllKeysGetZeros) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    for (const DType dtype : kTypes) {
      kernels::AttentionInputs in = inputs(rank, {1, 150, 2, 1, 16}, dtype);
      in.k = rank.poisoned(in.k.shape(), dtype), in.v = rank.poisoned(in.v.shape(), dtype);
      in.block = {{0}, {150}, {}, 300};
      const Results r = poisoned_results(rank, in);
      const Tensor dy = rank.normal(in.q.shape(), dtype, "dy");
      kernels::attention_forward(rank.stream, r.y, r.lse, in);
      for (const double y : values(r.y)) ASSERT_EQ(y, 0);
      for (const double lse : values(r.lse)) ASSERT_EQ(lse, kNone);
      kernels::attention_backward(rank.stream, {r.dq, r.dk, r.dv}, dy, r.y, r.lse, in);
      for (const Tensor& gradient : {r.dq, r.dk, r.dv})
        for (const double x : values(gradient)) ASSERT_EQ(x, 0);
    }
  }
}

// Some queries see no key though earlier keys exist, because those belong to other documents in the same tile.
TEST(AttentionBlock, QueriesOfOtherDocumentsGetZeros) {
  Rank rank;
  for (const DType dtype : kTypes) {
    kernels::AttentionInputs in = inputs(rank, {1, 6, 2, 1, 16}, dtype);
    in.sequence_ids = rank.tensor<int32_t>({1, 6}, {1, 1, 2, 2, 2, 3});
    in.block = {{6}, {0}, rank.tensor<int32_t>({1, 6}, {0, 0, 0, 0, 2, 2}), 12};
    const Results r = whole(rank, in, rank.normal(in.q.shape(), dtype, "dy"));
    for (int64_t i = 0; i < 6; ++i) {
      const bool sees = i >= 2 && i < 5;
      EXPECT_EQ(values(r.lse)[size_t(i)] == kNone, !sees) << i;
      EXPECT_EQ(values(r.y)[size_t(i) * 32] == 0, !sees) << i;
      EXPECT_EQ(values(r.dq)[size_t(i) * 32] == 0, !sees) << i;
      EXPECT_EQ(values(r.dk)[size_t(i) * 16] == 0, i < 4) << i;
    }
  }
}

TEST(AttentionBlock, AcceptsNoKeysAndNoQueries) {
  for (const int threads : {1, 3}) {
    Rank rank(threads);
    kernels::AttentionInputs in = inputs(rank, {2, 20, 2, 1, 5}, DType::f32);
    in.k = in.v = rank.stream.empty({2, 0, 1, 5}, DType::f32);
    const Results r = whole(rank, in, rank.normal(in.q.shape(), DType::f32, "dy"));
    for (const double lse : values(r.lse)) ASSERT_EQ(lse, kNone);
    for (const Tensor& x : {r.y, r.dq})
      for (const double value : values(x)) ASSERT_EQ(value, 0);
    in = inputs(rank, {2, 20, 2, 1, 5}, DType::f32);
    in.q = rank.stream.empty({2, 0, 2, 5}, DType::f32);
    const Results none = whole(rank, in, in.q);
    for (const Tensor& x : {none.dk, none.dv})
      for (const double value : values(x)) ASSERT_EQ(value, 0);
  }
}

TEST(AttentionBlock, CostCountsItsPairs) {
  Rank rank;
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Tensor q = meta.empty({2, 6, 4, 8}, DType::f32), k = meta.empty({2, 9, 2, 8}, DType::f32);
  const Tensor lse = meta.empty({2, 4, 6}, DType::f32);
  for (const PositionRuns& queries :
       {PositionRuns{}, PositionRuns{4}, PositionRuns{40}, PositionRuns{2, 3, 9}, PositionRuns{0, 2, 5}})
    for (const PositionRuns& keys : {PositionRuns{}, PositionRuns{20}, PositionRuns{1, 4, 6}, PositionRuns{0, 4, 30}}) {
      double pairs = 0;
      for (int64_t i = 0; i < 6; ++i) pairs += static_cast<double>(keys.before(queries.at(i) + 1, 9));
      meta.reset_costs();
      kernels::attention_forward(meta, q, lse, {q, k, k, {}, 1, {}, {}, {queries, keys}});
      EXPECT_EQ(meta.flops(), 2 * 4 * pairs * 4 * 8);
      for (const int64_t window : {1, 4, 25}) {
        double seen = pairs;
        for (int64_t i = 0; i < 6; ++i) seen -= static_cast<double>(keys.before(queries.at(i) + 1 - window, 9));
        meta.reset_costs();
        kernels::attention_forward(meta, q, lse, {q, k, k, {}, 1, {}, {}, {queries, keys}, window});
        EXPECT_EQ(meta.flops(), 2 * 4 * seen * 4 * 8);
      }
    }
}

TEST(AttentionMerge, WeighsPartsByTheirSums) {
  Rank rank;
  const Tensor y = rank.tensor<double>({1, 4, 1, 2}, {1, 2, 3, 4, 5, 6, 0, 0});
  const Tensor part = rank.tensor<double>({1, 4, 1, 2}, {10, 20, 0, 0, 50, 60, 70, 80});
  const Tensor lse = rank.tensor<double>({1, 1, 4}, {std::log(1.0), -700, 1000, kNone});
  const Tensor lse_part = rank.tensor<double>({1, 1, 4}, {std::log(3.0), kNone, 1000 + std::log(4.0), 0.1});
  kernels::attention_merge(rank.stream, y, lse, part, lse_part);
  EXPECT_TRUE(close(values(y), {7.75, 15.5, 3, 4, 41, 49.2, 70, 80}, 0, 1e-12));
  EXPECT_TRUE(close(values(lse), {std::log(4.0), -700, 1000 + std::log(5.0), 0.1}, 0, 1e-15));
  // A query without keys on one side keeps the other's bits.
  EXPECT_EQ(values(y)[6], 70);
  EXPECT_EQ(values(y)[2], 3);
  EXPECT_EQ(values(lse)[3], 0.1);
}

TEST(AttentionMerge, KeepsQueriesWithoutKeysAndNaN) {
  Rank rank;
  const double nan = std::nan("");
  const Tensor y = rank.tensor<double>({1, 3, 1, 1}, {0, 1, nan}),
               part = rank.tensor<double>({1, 3, 1, 1}, {0, nan, 1});
  const Tensor lse = rank.tensor<double>({1, 1, 3}, {kNone, 0, nan});
  const Tensor lse_part = rank.tensor<double>({1, 1, 3}, {kNone, nan, 0});
  kernels::attention_merge(rank.stream, y, lse, part, lse_part);
  EXPECT_EQ(values(y)[0], 0);
  EXPECT_EQ(values(lse)[0], kNone);
  for (const size_t i : {1, 2}) EXPECT_TRUE(std::isnan(values(y)[i]) && std::isnan(values(lse)[i])) << i;
}

}  // namespace
}  // namespace witan
