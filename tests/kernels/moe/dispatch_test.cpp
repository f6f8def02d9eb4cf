#include "witan/kernels/moe/dispatch.h"

#include <numeric>

#include "support/message_of.h"
#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;
using Integers = std::vector<int64_t>;

Integers histogram(const std::vector<int32_t>& ids, int64_t E) {
  Integers counts(static_cast<size_t>(E));
  for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  return counts;
}

std::vector<int32_t> random_ids(int64_t n, int64_t E, uint64_t seed) {
  std::vector<int32_t> ids;
  const Philox rng(seed, 1);
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(E), static_cast<uint64_t>(i))));
  return ids;
}

Tensor unset(Rank& rank, const Shape& shape) {
  const Tensor out = rank.stream.empty(shape, DType::i64);
  std::ranges::fill(out.span<int64_t>(), -7);
  return out;
}

TEST(SendOrder, IsAStableSortByExpert) {
  Rank rank;
  for (const auto& [T, K, E] : std::vector<std::array<int64_t, 3>>{
           {0, 2, 4}, {1, 1, 1}, {1, 4, 4}, {5, 2, 8}, {40, 1, 3}, {129, 3, 7}, {1000, 8, 64}}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto ids = random_ids(T * K, E, seed);
      Integers order(ids.size());
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {}, [&](int64_t assignment) { return ids[static_cast<size_t>(assignment)]; });

      const Tensor slot = unset(rank, {T * K}), source = unset(rank, {T * K});
      kernels::send_order(rank.stream, slot, source, rank.tensor<int32_t>({T, K}, ids),
                          rank.tensor<int64_t>({E}, histogram(ids, E)));
      EXPECT_EQ(source.to_vector<int64_t>(), order);
      for (size_t row = 0; row < order.size(); ++row)
        EXPECT_EQ(slot.data<int64_t>()[order[row]], static_cast<int64_t>(row)) << "slot is not the inverse of source";
    }
  }
}

TEST(CountAssignments, IgnoresDroppedAssignments) {
  Rank rank;
  const Tensor counts = unset(rank, {4});
  kernels::count_assignments(rank.stream, counts, rank.tensor<int32_t>({3, 2}, {2, -1, 0, 2, -1, 0}));
  EXPECT_EQ(counts.to_vector<int64_t>(), (Integers{2, 0, 2, 0}));
}

TEST(CountAssignments, CountsEqualRunsOfTokensSeparately) {
  Rank rank;
  const Tensor counts = rank.stream.empty({2, 3}, DType::i64);
  std::ranges::fill(counts.span<int64_t>(), -7);
  kernels::count_assignments(rank.stream, counts, rank.tensor<int32_t>({4, 2}, {2, -1, 0, 2, /**/ 1, 0, -1, -1}));
  EXPECT_EQ(counts.to_vector<int64_t>(), (Integers{1, 0, 2, /**/ 1, 1, 0}));
}

// Two receive buffers of five rows: experts 0 and 2 of the first begin at 0 and 2; those of the second have gaps
// between them.
TEST(MergeOrder, SortsByExpertThenRank) {
  Rank rank;
  const Tensor begin = unset(rank, {3}), count = unset(rank, {3}), place = unset(rank, {10});
  kernels::merge_order(rank.stream, {begin, count}, place,
                       rank.tensor<int64_t>({2, 2, 3}, {0, 2, 2, 2, 0, 1, 1, 3, 4, 1, 1, 0}), 5);
  EXPECT_EQ(begin.to_vector<int64_t>(), (Integers{0, 3, 4}));
  EXPECT_EQ(count.to_vector<int64_t>(), (Integers{3, 1, 1}));
  EXPECT_EQ(place.to_vector<int64_t>(), (Integers{0, 1, 6, 8, 2, -7, -7, -7, -7, -7}));
}

TEST(SendOrder, DroppedAssignmentsHaveNoRow) {
  Rank rank;
  const Tensor slot = unset(rank, {6}), source = unset(rank, {5});
  kernels::send_order(rank.stream, slot, source, rank.tensor<int32_t>({3, 2}, {2, -1, 0, 2, -1, 0}),
                      rank.tensor<int64_t>({3}, {2, 0, 2}));
  EXPECT_EQ(slot.to_vector<int64_t>(), (Integers{2, -1, 0, 3, -1, 1}));
  EXPECT_EQ(source.to_vector<int64_t>(), (Integers{2, 5, 0, 3, -1}));
}

TEST(LocalOrder, HasTheSendOrderTheGroupsAndTheWeightsOfRows) {
  Rank rank;
  const kernels::LocalOrder order{
      unset(rank, {6}), unset(rank, {5}), {unset(rank, {3}), unset(rank, {3})}, rank.poisoned({5, 1}, DType::f32)};
  kernels::local_order(rank.stream, order, rank.tensor<int32_t>({3, 2}, {2, -1, 0, 2, -1, 0}),
                       rank.tensor<int64_t>({3}, {2, 0, 2}), rank.tensor<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(order.slot.to_vector<int64_t>(), (Integers{2, -1, 0, 3, -1, 1}));
  EXPECT_EQ(order.source.to_vector<int64_t>(), (Integers{2, 5, 0, 3, -1}));
  EXPECT_EQ(order.groups.begin.to_vector<int64_t>(), (Integers{0, 2, 2}));
  EXPECT_EQ(order.groups.count.to_vector<int64_t>(), (Integers{2, 0, 2}));
  EXPECT_EQ(order.row_weights.to_vector<float>(), (std::vector<float>{3, 6, 1, 4, 0}));
}

TEST(RankCounts, SumsEqualRunsOfExperts) {
  Rank rank;
  const Tensor counts = rank.tensor<int64_t>({6}, {1, 2, 0, 0, 5, 7});
  const auto dealt_to = [&](int64_t ranks) {
    const Tensor to = unset(rank, {ranks});
    kernels::rank_counts(rank.stream, to, counts);
    return to.to_vector<int64_t>();
  };
  EXPECT_EQ(dealt_to(1), Integers{15});
  EXPECT_EQ(dealt_to(3), (Integers{3, 0, 12}));
  EXPECT_EQ(dealt_to(6), (Integers{1, 2, 0, 0, 5, 7}));
}

// Rows arrive by source rank, then expert, and are labelled accordingly. They must end ordered by expert, then source
// rank, then arrival.
TEST(ReceiveOrder, SortsByExpertThenSourceThenArrival) {
  Rank rank;
  for (const auto& [R, E] : std::vector<std::array<int64_t, 2>>{{1, 1}, {2, 3}, {4, 2}, {8, 8}}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Integers received;
      for (const int32_t rows : random_ids(R * E, 5, seed)) received.push_back(rows);
      struct Label {
        int64_t expert, source, arrival;
        auto operator<=>(const Label&) const = default;
      };
      std::vector<Label> arrived;
      Integers per_rank(static_cast<size_t>(R)), per_expert(static_cast<size_t>(E));
      for (int64_t r = 0; r < R; ++r)
        for (int64_t e = 0; e < E; ++e)
          for (int64_t i = 0; i < received[static_cast<size_t>(r * E + e)]; ++i) {
            arrived.push_back({e, r, static_cast<int64_t>(arrived.size())});
            ++per_rank[static_cast<size_t>(r)];
            ++per_expert[static_cast<size_t>(e)];
          }
      const auto total = static_cast<int64_t>(arrived.size());
      const RowGroups groups{unset(rank, {E}), unset(rank, {E}), unset(rank, {R, E}), unset(rank, {R, E})};
      const Tensor recv_counts = unset(rank, {R}), place = unset(rank, {total + 3});
      kernels::receive_order(rank.stream, groups, recv_counts, place, rank.tensor<int64_t>({R, E}, received));

      std::vector<Label> pool(arrived.size());
      for (size_t i = 0; i < arrived.size(); ++i) pool.at(static_cast<size_t>(place.data<int64_t>()[i])) = arrived[i];
      EXPECT_TRUE(std::ranges::is_sorted(pool));
      EXPECT_EQ(recv_counts.to_vector<int64_t>(), per_rank);
      EXPECT_EQ(groups.count.to_vector<int64_t>(), per_expert);
      Integers begin(per_expert.size());
      std::exclusive_scan(per_expert.begin(), per_expert.end(), begin.begin(), int64_t{0});
      EXPECT_EQ(groups.begin.to_vector<int64_t>(), begin);

      ASSERT_EQ(groups.sources(), R);
      for (int64_t r = 0; r < R; ++r) {
        const RowGroups of = groups.of_source(r);
        for (int64_t e = 0; e < E; ++e) {
          const int64_t first = of.begin.data<int64_t>()[e], count = of.count.data<int64_t>()[e];
          ASSERT_EQ(count, received[static_cast<size_t>(r * E + e)]);
          for (int64_t i = first; i < first + count; ++i) {
            EXPECT_EQ(pool.at(static_cast<size_t>(i)).expert, e);
            EXPECT_EQ(pool.at(static_cast<size_t>(i)).source, r);
          }
        }
      }
    }
  }
}

TEST(ReceiveOrder, RefusesMoreRowsThanTheBufferHolds) {
  Rank rank;
  const RowGroups groups{unset(rank, {2}), unset(rank, {2}), unset(rank, {2, 2}), unset(rank, {2, 2})};
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              kernels::receive_order(rank.stream, groups, unset(rank, {2}), unset(rank, {8}),
                                     rank.tensor<int64_t>({2, 2}, {1, 2, 3, 3}));
            }),
            "receive_order: 9 rows arrive for a receive buffer of 8: all expert-parallel ranks must have the same "
            "number of tokens");
}

Tensor reversed(Rank& rank, int64_t n) {
  const Tensor index = rank.stream.empty({n}, DType::i64);
  std::iota(index.span<int64_t>().rbegin(), index.span<int64_t>().rend(), int64_t{0});
  return index;
}

TEST(GatherRows, CopiesTheRowsNamed) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t D : {1, 3, 300}) {
      const Tensor x = rank.normal({4, D}, dtype, "x"), y = rank.poisoned({7, D}, dtype);
      const Integers index = {6, 0, 3, 3, 7, 1, 2};
      for (const int64_t divisor : {1, 2}) {
        Integers from = index;
        if (divisor == 1)
          for (int64_t& i : from) i /= 2;
        kernels::gather_rows(rank.stream, y, x, rank.tensor<int64_t>({7}, from), divisor);
        for (int64_t i = 0; i < 7; ++i)
          EXPECT_EQ(values(y.narrow(0, i, 1)), values(x.narrow(0, index[static_cast<size_t>(i)] / 2, 1)));
      }
    }
}

TEST(GatherRows, WritesZerosForMissingRows) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t divisor : {1, 2}) {
      const Tensor x = rank.normal({2, 3}, dtype, "x"), y = rank.poisoned({3, 3}, dtype);
      kernels::gather_rows(rank.stream, y, x, rank.tensor<int64_t>({3}, {-1, divisor, -1}), divisor);
      EXPECT_EQ(values(y.narrow(0, 0, 1)), std::vector<double>(3, 0.0));
      EXPECT_EQ(values(y.narrow(0, 1, 1)), values(x.narrow(0, 1, 1)));
      EXPECT_EQ(values(y.narrow(0, 2, 1)), std::vector<double>(3, 0.0));
    }
}

TEST(FirstRows, ScatterIsTheInverseOfGatherAndLeavesOtherRows) {
  Rank rank;
  const int64_t N = 500, D = 33;
  const Tensor x = rank.normal({N, D}, DType::f32, "x"), index = reversed(rank, N);
  const Tensor some = rank.tensor<int64_t>({3}, {200, 0, 123}), all = rank.tensor<int64_t>({1}, {N}),
               none = rank.tensor<int64_t>({2}, {0, 0});
  const Tensor y = rank.poisoned({N, D}, DType::f32), back = rank.poisoned({N, D}, DType::f32);
  kernels::scatter_first_rows(rank.stream, y, x, index, all);
  kernels::gather_first_rows(rank.stream, back, y, index, all);
  EXPECT_EQ(values(back), values(x));
  EXPECT_EQ(values(y.narrow(0, 0, 1)), values(x.narrow(0, N - 1, 1)));

  const auto is_nan = [](double value) { return std::isnan(value); };
  const Tensor partly = rank.poisoned({N, D}, DType::f32), partly_back = rank.poisoned({N, D}, DType::f32);
  kernels::scatter_first_rows(rank.stream, partly, x, index, some);
  EXPECT_TRUE(std::ranges::all_of(values(partly.narrow(0, 0, N - 323)), is_nan));
  EXPECT_EQ(values(partly.narrow(0, N - 323, 323)), values(y.narrow(0, N - 323, 323)));
  kernels::gather_first_rows(rank.stream, partly_back, y, index, some);
  EXPECT_EQ(values(partly_back.narrow(0, 0, 323)), values(x.narrow(0, 0, 323)));
  EXPECT_TRUE(std::ranges::all_of(values(partly_back.narrow(0, 323, N - 323)), is_nan));
  const Tensor untouched = rank.poisoned({N, D}, DType::f32);
  kernels::scatter_first_rows(rank.stream, untouched, x, index, none);
  kernels::gather_first_rows(rank.stream, untouched, x, index, none);
  EXPECT_TRUE(std::ranges::all_of(values(untouched), is_nan));
}

TEST(SumAssignments, AddsInTheOrderOfK) {
  Rank rank;
  // 1e8 + 1 - 1e8 is 0 in float32 and 1 where the sum is made in another order.
  const Tensor x = rank.tensor<float>({3, 1}, {1, 1e8F, -1e8F}), y = rank.poisoned({2, 1}, DType::f32);
  kernels::sum_assignments(rank.stream, y, x, rank.tensor<int64_t>({6}, {1, 0, 2, 1, 2, 0}));
  EXPECT_EQ(values(y), (std::vector<double>{0, 1}));
}

TEST(SumAssignments, IgnoresDroppedAssignments) {
  Rank rank;
  const Tensor x = rank.tensor<float>({2, 1}, {3, 4}), y = rank.poisoned({3, 1}, DType::f32);
  kernels::sum_assignments(rank.stream, y, x, rank.tensor<int64_t>({6}, {-1, 0, 1, 0, -1, -1}));
  EXPECT_EQ(values(y), (std::vector<double>{3, 7, 0}));
}

TEST(SumAssignments, FollowsItsDefinitionInEveryDType) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const int64_t T = 300, K = 3, D = 137;
    std::vector<std::vector<double>> results;
    for (const int threads : {1, 3}) {
      Rank rank(threads);
      const Tensor x = rank.normal({T * K, D}, dtype, "x"), y = rank.poisoned({T, D}, dtype);
      const Tensor slot = reversed(rank, T * K);
      kernels::sum_assignments(rank.stream, y, x, slot);
      const auto rows = values(x);
      std::vector<double> expected(static_cast<size_t>(T * D));
      for (int64_t t = 0; t < T; ++t)
        for (int64_t k = 0; k < K; ++k)
          for (int64_t d = 0; d < D; ++d)
            expected[size_t(t * D + d)] += rows[size_t(slot.data<int64_t>()[t * K + k] * D + d)];
      const double tolerance = dtype == DType::f64 ? 1e-15 : dtype == DType::f32 ? 1e-6 : 1e-2;
      EXPECT_TRUE(testing::close(values(y), expected, tolerance, tolerance));
      results.push_back(values(y));
    }
    EXPECT_EQ(results[0], results[1]) << "threads changed a bit";
  }
}

TEST(DispatchKernels, AcceptNoTokens) {
  Rank rank;
  const Tensor nothing = unset(rank, {0}), rows = rank.stream.empty({0, 4}, DType::f32);
  kernels::send_order(rank.stream, nothing, nothing, rank.stream.empty({0, 2}, DType::i32),
                      rank.tensor<int64_t>({2}, {0, 0}));
  kernels::gather_rows(rank.stream, rows, rows, nothing, 2);
  kernels::sum_assignments(rank.stream, rows, rows, nothing);
}

}  // namespace
}  // namespace witan
