#include "witan/kernels/moe/expert_replicas.h"

#include <algorithm>
#include <numeric>

#include "support/rank.h"

namespace witan {
namespace {

using testing::Rank;
using testing::values;
using Integers = std::vector<int64_t>;

struct Chosen {
  Integers hosted, place;  // [R, S], [R, E]
};

Chosen choose(Rank& rank, const Integers& counts, int64_t R, int64_t S) {
  const int64_t E = static_cast<int64_t>(counts.size()) / R;
  const kernels::ReplicaChoice choice{rank.stream.empty({R, S}, DType::i64), rank.stream.empty({R, E}, DType::i64)};
  kernels::choose_replicas(rank.stream, choice, rank.tensor<int64_t>({R, E}, counts));
  return {choice.hosted.to_vector<int64_t>(), choice.place.to_vector<int64_t>()};
}

// The number of rows that each rank computes.
Integers loads_of(const Integers& counts, const Integers& place, int64_t R, int64_t width) {
  Integers loads(static_cast<size_t>(R));
  for (size_t i = 0; i < counts.size(); ++i) loads[static_cast<size_t>(place[i] / width)] += counts[i];
  return loads;
}

TEST(ChooseReplicas, LeavesABalancedLoadAlone) {
  Rank rank;
  const Chosen chosen = choose(rank, {3, 3, 3, 3, 3, 3, 3, 3}, 2, 2);
  EXPECT_EQ(chosen.hosted, Integers(4, -1));
  EXPECT_EQ(chosen.place, (Integers{0, 1, 4, 5, 0, 1, 4, 5})) << "own experts, then two slots, of either rank";
  EXPECT_EQ(choose(rank, Integers(8, 0), 2, 2).hosted, Integers(4, -1)) << "nobody has tokens";
}

// Expert 0 has 20 of the 28 assignments of two ranks, and each rank computes its own. Rank 1 then has 16 and rank 0 has
// 12, until rank 0 also computes its own assignments to expert 2.
TEST(ChooseReplicas, ComputesAHotExpertsTokensOnTheirOwnRank) {
  Rank rank;
  const Integers counts = {10, 1, 2, 1, 10, 1, 1, 2};
  const Chosen chosen = choose(rank, counts, 2, 1);
  EXPECT_EQ(chosen.hosted, (Integers{2, 0}));
  EXPECT_EQ(chosen.place, (Integers{0, 1, 2, 4, 5, 1, 3, 4})) << "places 2 and 5 are slots";
  EXPECT_EQ(loads_of(counts, chosen.place, 2, 3), (Integers{14, 14}));
}

// All tokens of four ranks go to one expert: each rank computes its own tokens, with one slot each.
TEST(ChooseReplicas, SpreadsOneExpertOverAllRanks) {
  Rank rank;
  Integers counts(16);
  for (size_t r = 0; r < 4; ++r) counts[r * 4 + 2] = 6;
  const Chosen chosen = choose(rank, counts, 4, 1);
  EXPECT_EQ(chosen.hosted, (Integers{2, 2, -1, 2}));
  EXPECT_EQ(loads_of(counts, chosen.place, 4, 2), Integers(4, 6));
  for (int64_t r = 0; r < 4; ++r)
    EXPECT_EQ(chosen.place[static_cast<size_t>(r * 4 + 2)], r == 2 ? 4 : r * 2 + 1) << "rank " << r;
}

// Without a single hot expert, whole experts move to other ranks.
TEST(ChooseReplicas, MovesWholeExpertsIfThatIsEnough) {
  Rank rank;
  Integers counts;
  for (int64_t r = 0; r < 2; ++r)
    for (const int64_t count : {4, 4, 4, 4, 1, 1, 1, 1}) counts.push_back(count);
  const Chosen chosen = choose(rank, counts, 2, 2);
  EXPECT_EQ(loads_of(counts, chosen.place, 2, 6), (Integers{20, 20})) << "of 32 and 8";
  EXPECT_EQ(chosen.hosted, (Integers{-1, -1, 0, 1}));
}

TEST(ChooseReplicas, NeverRaisesTheLargestLoad) {
  Rank rank;
  for (const auto& [R, E, S] :
       std::vector<std::array<int64_t, 3>>{{2, 4, 1}, {2, 8, 3}, {4, 4, 1}, {4, 16, 2}, {8, 16, 4}, {3, 9, 20}})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(cat(R, " ranks, ", E, " experts, ", S, " slots, seed ", seed));
      const Philox rng(seed, 3);
      Integers counts, home;
      const int64_t own = E / R, width = own + S;
      for (int64_t i = 0; i < R * E; ++i) {
        const double u = rng.uniform(static_cast<uint64_t>(i % E));
        counts.push_back(static_cast<int64_t>(200 * u * u * u * u) + static_cast<int64_t>(rng.below(9, uint64_t(i))));
        home.push_back(i % E / own * width + i % E % own);
      }
      const Chosen chosen = choose(rank, counts, R, S);
      EXPECT_EQ(choose(rank, counts, R, S).place, chosen.place);
      const Integers before = loads_of(counts, home, R, width), after = loads_of(counts, chosen.place, R, width);
      const int64_t total = std::accumulate(before.begin(), before.end(), int64_t{0});
      EXPECT_EQ(std::accumulate(after.begin(), after.end(), int64_t{0}), total);
      EXPECT_LE(std::ranges::max(after), std::ranges::max(before));
      const bool uneven = std::ranges::max(before) * R > 2 * total && own > 1;
      EXPECT_TRUE(!uneven || std::ranges::max(after) < std::ranges::max(before));
      for (size_t i = 0; i < chosen.place.size(); ++i) {  // either at home, or in a slot that holds the expert
        const int64_t expert = static_cast<int64_t>(i) % E, at = chosen.place[i], slot = at % width - own;
        EXPECT_TRUE(slot < 0 ? at == home[i] : chosen.hosted[static_cast<size_t>(at / width * S + slot)] == expert);
      }
      for (int64_t r = 0; r < R; ++r)
        for (int64_t s = 0; s < S; ++s) {
          const int64_t expert = chosen.hosted[static_cast<size_t>(r * S + s)];
          EXPECT_TRUE(expert == -1 || expert / own != r) << "a replica of an own expert";
          for (int64_t other = 0; other < s; ++other)
            EXPECT_TRUE(expert == -1 || expert != chosen.hosted[static_cast<size_t>(r * S + other)]);
        }
    }
}

// Three ranks with two experts and two slots each: rank 1 holds experts 0 and 5, rank 2 experts 0 and 3.
struct Small {
  Rank rank;
  kernels::ReplicaChoice choice{rank.tensor<int64_t>({3, 2}, {-1, -1, 0, 5, 0, 3}),
                                rank.tensor<int64_t>({3, 6}, {0, 1, 4, 5, 8, 9,       // of rank 0: all at home
                                                              6, 1, 4, 5, 8, 7,       // of rank 1: 0 and 5 in its slots
                                                              10, 1, 4, 11, 8, 7})};  // of rank 2: 5 on rank 1
};

TEST(PlaceAssignments, NamesThePlaceThatComputesThem) {
  Small small;
  Rank& rank = small.rank;
  const Tensor ids = rank.stream.empty({5}, DType::i32), counts = rank.stream.empty({12}, DType::i64);
  kernels::place_assignments(rank.stream, {ids, counts}, rank.tensor<int32_t>({5}, {0, 3, -1, 5, 0}),
                             rank.tensor<int64_t>({6}, {2, 0, 0, 1, 0, 1}),
                             small.choice.place.narrow(0, 2, 1).reshape({6}));
  EXPECT_EQ(ids.to_vector<int32_t>(), (std::vector<int32_t>{10, 11, -1, 7, 10}));
  EXPECT_EQ(counts.to_vector<int64_t>(), (Integers{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 1}));
}

TEST(ReplicaSources, NameTheHomeRanksMatrices) {
  Small small;
  const Tensor sources = small.rank.stream.empty({4}, DType::i64);
  kernels::replica_sources(small.rank.stream, sources, small.choice, 1, 100);
  EXPECT_EQ(sources.to_vector<int64_t>(), (Integers{0, 1, 202, 203})) << "expert 0 of rank 0, the second of rank 2";
  kernels::replica_sources(small.rank.stream, sources, small.choice, 0, 100);
  EXPECT_EQ(sources.to_vector<int64_t>(), Integers(4, -1));
}

TEST(ReplicaHomes, AreOrderedByTheRanksThatHoldThem) {
  Small small;
  const auto homes = [&](const kernels::ReplicaRound& round) {
    const Tensor rows = small.rank.stream.empty({2}, DType::i64);
    kernels::replica_homes(small.rank.stream, rows, small.choice, round, 100);
    return rows.to_vector<int64_t>();
  };
  EXPECT_EQ(homes({1, 0, 2}), (Integers{0, 1})) << "rank 1's come first to rank 0";
  EXPECT_EQ(homes({2, 0, 2}), (Integers{2, 3})) << "rank 2's behind them";
  EXPECT_EQ(homes({1, 1, 2}), (Integers{200, 201}));
  EXPECT_EQ(homes({0, 0, 2}), (Integers{-1, -1}));
  EXPECT_EQ(homes({2, 0, 2, 2}), (Integers{0, 1})) << "of rank 2's assignments nothing comes from rank 1";
  EXPECT_EQ(homes({1, 0, 2, 2}), (Integers{-1, -1}));
}

TEST(ReplicaCounts, CountTheRowsThatTravelInARound) {
  Small small;
  Rank& rank = small.rank;
  const kernels::ReplicaCounts counts{rank.stream.empty({3}, DType::i64), rank.stream.empty({3}, DType::i64),
                                      rank.stream.empty({6}, DType::i64)};
  const Tensor experts = rank.stream.empty({3}, DType::i64);
  const auto count = [&](const kernels::ReplicaRound& round) {
    kernels::replica_counts(rank.stream, counts, small.choice, round);
    kernels::replica_experts(rank.stream, experts, small.choice, round);
  };
  count({0, 0, 2});  // rank 0's expert 0 is in slot 0 of both others
  EXPECT_EQ(counts.own.to_vector<int64_t>(), (Integers{0, 2, 2}));
  EXPECT_EQ(counts.hosted.to_vector<int64_t>(), Integers(3, 0));
  EXPECT_EQ(counts.rows.to_vector<int64_t>(), (Integers{0, 1, 0, 1, -1, -1}));
  EXPECT_EQ(experts.to_vector<int64_t>(), (Integers{0, 0, -1}));
  count({1, 1, 2});  // expert 3 is rank 1's second, in slot 1 of rank 2; slot 1 of rank 1 holds expert 5 of rank 2
  EXPECT_EQ(counts.own.to_vector<int64_t>(), (Integers{0, 0, 2}));
  EXPECT_EQ(counts.hosted.to_vector<int64_t>(), (Integers{0, 0, 2}));
  EXPECT_EQ(counts.rows.to_vector<int64_t>(), (Integers{2, 3, -1, -1, -1, -1}));
  EXPECT_EQ(experts.to_vector<int64_t>(), (Integers{1, -1, -1}));
  count({0, 0, 2, 1});  // of rank 1's assignments alone
  EXPECT_EQ(counts.own.to_vector<int64_t>(), (Integers{0, 2, 0}));
  EXPECT_EQ(experts.to_vector<int64_t>(), (Integers{0, -1, -1}));
}

TEST(AddToExperts, AddsInOrder) {
  Rank rank(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t elements : {int64_t{1}, int64_t{7}, int64_t{70000}}) {
      const Tensor w = rank.normal({3, elements}, dtype, "w"), found = rank.normal({4, elements}, dtype, "found");
      std::vector<double> expected = values(w);
      const std::vector<double> added = values(found);
      const Integers experts = {2, 0, 2, -1};
      for (size_t i = 0; i < 3; ++i)
        for (size_t j = 0; j < size_t(elements); ++j) {
          double& to = expected[size_t(experts[i]) * size_t(elements) + j];
          dispatch_floating(dtype, [&]<class T>() {
            using A = Accumulator<T>;
            to = static_cast<double>(T(A(to) + A(added[i * size_t(elements) + j])));
          });
        }
      kernels::add_to_experts(rank.stream, w, found, rank.tensor<int64_t>({4}, experts));
      EXPECT_EQ(values(w), expected) << elements;
    }
}

}  // namespace
}  // namespace witan
