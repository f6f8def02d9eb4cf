#include "witan/kernels/moe/receive_buffer.h"

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using Integers = std::vector<int64_t>;

// Two ranks, two experts of each: what rank 0 and rank 1 have for experts 0 … 3.
const Integers kCounts = {3, 0, 1, 2, 1, 2, 0, 1};
const std::vector<int32_t> kIds = {0, 3, -1, 2, 0, 3, 0};  // of rank 0, one of them dropped

struct Limited {
  Integers counts;
  std::vector<int32_t> ids;
  double fill;
};

Limited limit(Rank& rank, const kernels::PassBounds& bounds, double fill = 0) {
  const Tensor ids = rank.stream.empty({7}, DType::i32), counts = rank.stream.empty({4}, DType::i64);
  const Tensor found = rank.tensor<double>({1}, {fill});
  kernels::limit_to_buffer(rank.stream, {ids, counts}, found, rank.tensor<int32_t>({7}, kIds),
                           rank.tensor<int64_t>({2, 4}, kCounts), bounds);
  return {counts.to_vector<int64_t>(), ids.to_vector<int32_t>(), found.data<double>()[0]};
}

TEST(LimitToBuffer, SendsAllRowsOrNone) {
  Rank rank;
  const Limited fits = limit(rank, {.rows = 6, .rank = 0});  // rank 0 gets 6 rows, rank 1 four
  EXPECT_EQ(fits.counts, (Integers{3, 0, 1, 2}));
  EXPECT_EQ(fits.ids, kIds);
  EXPECT_EQ(fits.fill, 1);
  const Limited not_all = limit(rank, {.rows = 5, .rank = 0});
  EXPECT_EQ(not_all.counts, Integers(4, 0)) << "no rank is sent anything, whichever has no room";
  EXPECT_EQ(not_all.ids, std::vector<int32_t>(7, -1));
  EXPECT_EQ(not_all.fill, 1.2);
  EXPECT_EQ(limit(rank, {.rows = 5, .rank = 1}).counts, Integers(4, 0)) << "ranks decide alike";
}

TEST(LimitToBuffer, APassCoversSomeOfEachRanksExperts) {
  Rank rank;
  const Limited first = limit(rank, {.rows = 4, .rank = 0, .pass = 0, .passes = 2});
  EXPECT_EQ(first.counts, (Integers{3, 0, 1, 0}));
  EXPECT_EQ(first.ids, (std::vector<int32_t>{0, -1, -1, 2, 0, -1, 0}));
  EXPECT_EQ(first.fill, 1);
  const Limited second = limit(rank, {.rows = 4, .rank = 1, .pass = 1, .passes = 2});
  EXPECT_EQ(second.counts, (Integers{0, 2, 0, 1}));
  EXPECT_EQ(second.fill, 0.75);
  EXPECT_EQ(limit(rank, {.rows = 4, .rank = 1, .pass = 1, .passes = 2}, 3).fill, 3) << "the largest of all layers";
}

// Rank 0 has 3 rows for itself and 3 for rank 1; rank 1 has 3 and 1.
TEST(LimitToBuffer, SendsNothingIfRowsExceedAPart) {
  Rank rank;
  const Limited fits = limit(rank, {.rows = 8, .rank = 0, .part_rows = 3});
  EXPECT_EQ(fits.counts, (Integers{3, 0, 1, 2}));
  EXPECT_EQ(fits.fill, 1) << "the part, not the pool, is full";
  for (const int64_t of : {0, 1}) {
    const Limited not_all = limit(rank, {.rows = 8, .rank = of, .part_rows = 2});
    EXPECT_EQ(not_all.counts, Integers(4, 0)) << "ranks decide alike";
    EXPECT_EQ(not_all.fill, 1.5);
  }
  EXPECT_EQ(limit(rank, {.rows = 3, .rank = 0, .part_rows = 2}).fill, 2) << "the larger of pool and part";
}

// Four ranks of two hosts, an expert each: what the first ranks of both hosts have goes through the first, and so on.
TEST(LimitToBuffer, BoundsRowsThatTravelByHosts) {
  Rank rank;
  // Of each rank, the first of host 0 first: rows for each expert, tokens for each host.
  const std::vector<Integers> all = {{1, 0, 3, 0, 1, 3}, {0, 2, 0, 1, 2, 1}, {2, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 0, 0}};
  Integers table;
  for (const Integers& of_rank : all) table.insert(table.end(), of_rank.begin(), of_rank.end());
  const auto limit = [&](int64_t part_rows, int64_t send_rows, int64_t copies) {
    const kernels::PassBounds bounds{
        .rows = 100, .rank = 0, .part_rows = part_rows, .hosts = 2, .send_rows = send_rows, .copies = copies};
    const Tensor ids = rank.stream.empty({4}, DType::i32), sums = rank.stream.empty({4}, DType::i64);
    const Tensor fill = rank.tensor<double>({1}, {0});
    kernels::limit_to_buffer(rank.stream, {ids, sums}, fill, rank.tensor<int32_t>({4}, {0, 2, 2, 2}),
                             rank.tensor<int64_t>({4, 6}, table), bounds);
    EXPECT_EQ(sums.to_vector<int64_t>(), *fill.data<double>() > 1 ? Integers(4, 0) : (Integers{1, 0, 3, 0}));
    return *fill.data<double>();
  };
  EXPECT_EQ(limit(4, 0, 0), 1) << "the first ranks have 3 and 1 rows for rank 2";
  EXPECT_EQ(limit(2, 0, 0), 2);
  EXPECT_EQ(limit(0, 5, 0), 1) << "and 4 + 1 for host 1";
  EXPECT_EQ(limit(0, 4, 0), 1.25);
  EXPECT_EQ(limit(0, 0, 3), 1) << "rank 0 has 3 tokens for host 1";
  EXPECT_EQ(limit(0, 0, 2), 1.5);
  EXPECT_EQ(limit(0, 0, 0), 0.04) << "rank 2 gets 4 rows, as ever";
}

TEST(SkipOverflow, SkipsStepsThatLeftRowsOut) {
  Rank rank;
  for (const double found : {0.0, 1.0, 1.25})
    for (const double skip : {0.0, 1.0}) {
      const Tensor step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
      step.data<double>()[kernels::step_value::skip] = skip;
      kernels::skip_overflow(rank.stream, step, rank.tensor<double>({1}, {found}));
      EXPECT_EQ(step.data<double>()[kernels::step_value::skip], found > 1 ? found : skip);
    }
}

TEST(NumberRows, CountsUp) {
  Rank rank;
  const Tensor index = rank.stream.empty({4}, DType::i64);
  kernels::number_rows(rank.stream, index);
  EXPECT_EQ(index.to_vector<int64_t>(), (Integers{0, 1, 2, 3}));
}

}  // namespace
}  // namespace witan
