#include "witan/kernels/moe/capacity.h"

#include <cmath>
#include <numeric>

#include "support/rank.h"

namespace witan {
namespace {

using kernels::Assignments;
using testing::Rank;
using Ids = std::vector<int32_t>;

struct Kept {
  Ids ids;
  std::vector<int64_t> counts;
  bool operator==(const Kept&) const = default;
};

std::vector<int64_t> histogram(const Ids& ids, int64_t E) {
  std::vector<int64_t> counts(static_cast<size_t>(E));
  for (const int32_t id : ids)
    if (id >= 0) ++counts[static_cast<size_t>(id)];
  return counts;
}

template <class A>
Kept limited(Rank& rank, const Ids& ids, int64_t K, int64_t E, const std::vector<A>& weights,
             const kernels::Capacity& capacity) {
  const int64_t T = static_cast<int64_t>(ids.size()) / K;
  const Assignments all{rank.tensor<int32_t>({T, K}, ids), rank.tensor<int64_t>({E}, histogram(ids, E))};
  const Assignments kept{rank.tensor<int32_t>({T, K}, Ids(ids.size(), -7)),
                         rank.tensor<int64_t>({E}, std::vector<int64_t>(static_cast<size_t>(E), -7))};
  kernels::limit_to_capacity(rank.stream, kept, rank.stream.empty({T * K}, DType::i64), all,
                             rank.tensor<A>({T, K}, weights), capacity);
  return {kept.ids.to_vector<int32_t>(), kept.counts.to_vector<int64_t>()};
}

// The definition applied literally: sort an expert's assignments, and keep the first ones.
Kept reference(const Ids& ids, int64_t E, const std::vector<float>& weights, const kernels::Capacity& capacity) {
  Kept kept{Ids(ids.size(), -1), {}};
  for (int32_t e = 0; e < E; ++e) {
    std::vector<size_t> mine;
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == e) mine.push_back(i);
    if (capacity.policy == DropPolicy::probs)
      std::ranges::stable_sort(mine, std::greater{}, [&](size_t i) { return weights[i]; });
    for (size_t i = 0; i < mine.size() && static_cast<int64_t>(i) < capacity.per_expert; ++i) kept.ids[mine[i]] = e;
  }
  kept.counts = histogram(kept.ids, E);
  return kept;
}

TEST(LimitToCapacity, KeepsTheLikeliestOrTheFirst) {
  Rank rank;
  const Ids ids = {0, 1, 0, 1, 0, 1};  // three tokens, both experts each
  const std::vector<double> weights = {0.2, 0.8, 0.6, 0.4, 0.5, 0.5};
  EXPECT_EQ(limited(rank, ids, 2, 2, weights, {2, DropPolicy::probs}), (Kept{{-1, 1, 0, -1, 0, 1}, {2, 2}}));
  EXPECT_EQ(limited(rank, ids, 2, 2, weights, {2, DropPolicy::position}), (Kept{{0, 1, 0, 1, -1, -1}, {2, 2}}));
  EXPECT_EQ(limited(rank, ids, 2, 2, weights, {0, DropPolicy::probs}), (Kept{Ids(6, -1), {0, 0}}));
}

// Weights take only a few values, so that most decisions are ties.
TEST(LimitToCapacity, FollowsItsDefinitionOnAnyNumberOfThreads) {
  for (const auto& [T, K, E] :
       std::vector<std::array<int64_t, 3>>{{0, 2, 4}, {1, 1, 1}, {7, 1, 1}, {60, 2, 3}, {500, 4, 16}}) {
    const Philox rng(3, static_cast<uint64_t>(T));
    Ids ids;
    std::vector<float> weights;
    for (uint64_t i = 0; i < static_cast<uint64_t>(T * K); ++i) {
      const double u = rng.uniform(2 * i);
      ids.push_back(static_cast<int32_t>(u * u * static_cast<double>(E)));  // the first experts get most assignments
      weights.push_back(static_cast<float>(rng.below(5, 2 * i + 1)) / 8.0F);
    }
    for (const int64_t per_expert : {int64_t{0}, int64_t{1}, T * K / (2 * E), T * K})
      for (const auto policy : {DropPolicy::probs, DropPolicy::position})
        for (const int threads : {1, 3}) {
          Rank rank(threads);
          EXPECT_EQ(limited(rank, ids, K, E, weights, {per_expert, policy}),
                    reference(ids, E, weights, {per_expert, policy}))
              << T << " tokens, " << per_expert << " per expert, " << threads << " threads";
        }
  }
}

TEST(LimitToCapacity, WeightsThatDifferByRoundingInFloat64Tie) {
  Rank rank;
  EXPECT_EQ(limited<double>(rank, {0, 0, 0}, 1, 1, {0.3, 0.3 + 1e-15, 0.3 + 1e-6}, {2, DropPolicy::probs}),
            (Kept{{0, -1, 0}, {2}}));
}

TEST(LimitToCapacity, NaNIsTheSmallestWeight) {
  Rank rank;
  const float nan = std::nanf("");
  EXPECT_EQ(limited<float>(rank, {0, 0, 0, 0}, 1, 1, {nan, 0, nan, 1}, {3, DropPolicy::probs}),
            (Kept{{0, 0, -1, 0}, {3}}));
}

// Padding rows have no assignments, and do not count as tokens when the capacity is computed.
TEST(LimitToCapacity, DoesNotCountPadding) {
  Rank rank;
  const int64_t T = 12, K = 2, E = 3;
  Ids ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t k = 0; k < K; ++k) {
      ids.push_back(t % 3 == 1 ? -1 : static_cast<int32_t>((t % 2 + k) % E));
      weights.push_back(static_cast<float>(t % 5) / 8.0F);
    }
  for (const double factor : {0.0, 0.3, 0.5, 1.0, 2.0})
    for (const int64_t tokens : {0, 8})
      for (const auto policy : {DropPolicy::probs, DropPolicy::position}) {
        const Ids given = tokens > 0 ? ids : Ids(ids.size(), -1);
        const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(tokens * K) / E * factor));
        kernels::Capacity capacity{T, policy, factor, K, rank.tensor<int64_t>({1}, {tokens})};
        const Assignments all{rank.tensor<int32_t>({T, K}, given), rank.tensor<int64_t>({E}, histogram(given, E))};
        const Assignments kept{rank.tensor<int32_t>({T, K}, given), rank.stream.empty({E}, DType::i64)};
        kernels::limit_to_capacity(rank.stream, kept, rank.stream.empty({T * K}, DType::i64), all,
                                   rank.tensor<float>({T, K}, weights), capacity);
        EXPECT_EQ((Kept{kept.ids.to_vector<int32_t>(), kept.counts.to_vector<int64_t>()}),
                  reference(given, E, weights, {std::min(share, tokens), policy}))
            << factor << " of " << tokens;
      }
}

}  // namespace
}  // namespace witan
