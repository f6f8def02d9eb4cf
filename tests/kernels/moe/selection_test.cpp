// Compares choices by keys with plain loops, and tests the keys of arrivals. tests/moe/routers/selection_test.cpp tests
// configurations.
#include "witan/kernels/moe/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "support/dropout.h"
#include "support/rank.h"
#include "support/routing.h"

namespace witan {
namespace {

using kernels::arrival_key;
using kernels::log2_whole;
using kernels::Scores;
using kernels::Selection;
using testing::close;
using testing::Rank;
using testing::values;

kernels::RouterOutputs routed(Rank& rank, const Tensor& logits, int64_t K, const kernels::Scoring& scoring) {
  const int64_t T = logits.size(0), E = logits.size(1);
  kernels::RouterOutputs out = testing::poisoned_outputs(rank, T, E, K, logits.dtype());
  kernels::router_forward(rank.stream, out, logits, scoring);
  return out;
}

double score(Scores scores, const std::vector<double>& row, size_t e) {
  if (scores == Scores::sigmoid) return 1 / (1 + std::exp(-row[e]));
  if (scores == Scores::sqrtsoftplus) return std::sqrt(std::log(1 + std::exp(row[e])));
  if (scores == Scores::softmax_of_chosen) return row[e];
  double sum = 0;
  for (const double logit : row) sum += std::exp(logit);
  return std::exp(row[e]) / sum;
}

// The `count` largest of `keys`, best first.
std::vector<int32_t> largest(const std::vector<double>& keys, int64_t count) {
  std::vector<int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t i) { return keys[static_cast<size_t>(i)]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<int32_t> expected_of(const Selection& how, const std::vector<double>& row, int64_t K) {
  std::vector<double> keys, sums;
  for (size_t e = 0; e < row.size(); ++e)
    keys.push_back(score(how.keys, row, e) + (how.bias.defined() ? double(how.bias.data<float>()[e]) : 0));
  const auto size = row.size() / static_cast<size_t>(how.groups);
  for (size_t g = 0; g < static_cast<size_t>(how.groups); ++g) {
    std::vector<double> group(keys.begin() + static_cast<int64_t>(g * size),
                              keys.begin() + static_cast<int64_t>((g + 1) * size));
    std::ranges::sort(group, std::greater<>());
    sums.push_back(std::accumulate(group.begin(), group.begin() + how.group_score_topk, 0.0));
  }
  const std::vector<int32_t> groups = largest(sums, how.group_topk);
  for (size_t e = 0; e < keys.size(); ++e)
    if (std::ranges::find(groups, static_cast<int32_t>(e / size)) == groups.end()) keys[e] = -1e300;
  return largest(keys, K);
}

TEST(SelectExperts, TakesTheLargestKeysOfTheBestGroups) {
  Rank rank;
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid, Scores::sqrtsoftplus})
    for (const auto& [T, E, K, groups, group_topk, best] : std::vector<std::array<int64_t, 6>>{
             {0, 4, 2, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, {33, 12, 3, 4, 2, 1}, {33, 12, 3, 4, 2, 3}, {9, 64, 8, 8, 4, 2}}) {
      SCOPED_TRACE(cat(static_cast<int>(scores), " T=", T, " E=", E));
      const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2);
      const Selection selection{.keys = scores,
                                .bias = rank.normal({E}, DType::f32, "bias", 0.2),
                                .groups = groups,
                                .group_topk = group_topk,
                                .group_score_topk = best};
      const auto out = routed(rank, logits, K, scores);
      kernels::select_experts(rank.stream, out, logits, scores, selection);
      std::vector<int32_t> expected;
      for (int64_t t = 0; t < T; ++t) {
        const double* row = logits.data<double>() + t * E;
        const auto ids = expected_of(selection, {row, row + E}, K);
        expected.insert(expected.end(), ids.begin(), ids.end());
      }
      EXPECT_EQ(out.ids.to_vector<int32_t>(), expected);
    }
}

TEST(SelectExperts, RandomChoicesDoNotDependOnThreadsOrDtype) {
  const auto ids_of = [](int threads, DType dtype) {
    Rank rank(threads);
    const Tensor logits = rank.normal({3000, 24}, dtype, "logits");
    const auto out = routed(rank, logits, 3, Scores::softmax);
    const Selection selection{.random = {.where = testing::dropout_of(rank, 0), .skew = 0.25}};
    kernels::select_experts(rank.stream, out, logits, Scores::softmax, selection);
    return out.ids.to_vector<int32_t>();
  };
  EXPECT_EQ(ids_of(1, DType::f32), ids_of(3, DType::f32));
  EXPECT_EQ(ids_of(1, DType::f32), ids_of(1, DType::f64));
}

// Rows of u c v sum to 1 / T and columns to 1 / E once the factors have converged.
TEST(Sinkhorn, EvensOutRowsAndColumns) {
  const auto bias_of = [](int threads, DType dtype, int64_t T, int64_t E, double shift) {
    Rank rank(threads);
    Tensor logits = rank.normal({T, E}, DType::f32, "logits", 1.5);
    for (float& logit : logits.span<float>()) logit += static_cast<float>(shift);
    if (dtype == DType::f64) logits = rank.tensor<double>({T, E}, values(logits));
    const Tensor bias = rank.poisoned({E}, dtype);
    kernels::sinkhorn_bias(rank.stream, bias, logits, 1000, 1e-13);
    if (dtype == DType::f64 && T > 0) {
      std::vector<double> columns(static_cast<size_t>(E));
      for (int64_t t = 0; t < T; ++t) {
        double row = 0;
        for (int64_t e = 0; e < E; ++e)
          row += std::exp(logits.data<double>()[t * E + e] - shift + bias.data<double>()[e]);
        for (int64_t e = 0; e < E; ++e)
          columns[static_cast<size_t>(e)] +=
              std::exp(logits.data<double>()[t * E + e] - shift + bias.data<double>()[e]) / row / double(T);
      }
      EXPECT_TRUE(close(columns, std::vector<double>(static_cast<size_t>(E), 1 / double(E)), 1e-6, 1e-6));
    }
    return values(bias);
  };
  const auto whole = bias_of(1, DType::f64, 501, 7, 0);
  EXPECT_EQ(bias_of(3, DType::f64, 501, 7, 0), whole);
  EXPECT_TRUE(close(bias_of(1, DType::f32, 501, 7, 0), whole, 1e-3, 0));
  EXPECT_TRUE(close(bias_of(1, DType::f64, 501, 7, 900), whole, 1e-3, 0)) << "large logits do not overflow";
  EXPECT_EQ(bias_of(1, DType::f64, 0, 3, 0), (std::vector<double>{0, 0, 0}));
}

TEST(Sinkhorn, IgnoresPadding) {
  Rank rank;
  const int64_t T = 30, E = 6;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 1.5), found = rank.poisoned({E}, DType::f64),
               expected = rank.poisoned({E}, DType::f64);
  std::vector<int32_t> sequence_ids;
  std::vector<double> alone;
  for (int64_t t = 0; t < T; ++t) {
    sequence_ids.push_back(t % 3 == 2 ? -1 : 4);
    const auto row = values(logits.narrow(0, t, 1));
    if (t % 3 != 2) alone.insert(alone.end(), row.begin(), row.end());
  }
  const Tensor of_tokens = rank.tensor<double>({T - T / 3, E}, alone);
  for (const int64_t iterations : {1, 100}) {
    kernels::sinkhorn_bias(rank.stream, expected, of_tokens, iterations, 1e-13);
    kernels::sinkhorn_bias(rank.stream, found, logits, iterations, 1e-13, rank.tensor<int32_t>({T}, sequence_ids));
    EXPECT_TRUE(close(found, expected, 1e-13, 1e-13));
  }
  kernels::sinkhorn_bias(rank.stream, found, logits, 10, 0, rank.tensor<int32_t>({T}, std::vector<int32_t>(30, -1)));
  EXPECT_EQ(values(found), std::vector<double>(6)) << "of no tokens";
}

TEST(SelectExperts, PaddingChoosesNoExpert) {
  Rank rank;
  const int64_t T = 5, E = 8, K = 2;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits");
  for (const Scores scores : {Scores::softmax_of_chosen, Scores::softmax, Scores::sigmoid}) {
    auto out = routed(rank, logits, K, scores);
    out.sequence_ids = rank.tensor<int32_t>({T}, {0, 1, -1, 2, -1});
    const Selection grouped{.groups = 4, .group_topk = 2, .group_score_topk = 1},
        drawn{.random = {.where = testing::dropout_of(rank, 0)}};
    const auto expect_none = [&] {
      for (int64_t t = 0; t < T; ++t) {
        const auto ids = out.ids.narrow(0, t, 1).to_vector<int32_t>();
        if (t == 2 || t == 4) {
          EXPECT_EQ(ids, std::vector<int32_t>(2, -1));
          EXPECT_EQ(values(out.weights.narrow(0, t, 1)), std::vector<double>(2));
        } else {
          EXPECT_GE(std::ranges::min(ids), 0);
        }
      }
    };
    for (const Selection& selection : {grouped, drawn}) {
      kernels::select_experts(rank.stream, out, logits, scores, selection);
      expect_none();
    }
    std::ranges::fill(out.ids.narrow(0, 2, 1).span<int32_t>(), 3);  // as in recorded routes
    kernels::weigh_chosen(rank.stream, out, logits, scores);
    expect_none();
  }
}

TEST(Arrival, ApproximatesLogarithmsOfIntegers) {
  for (const uint32_t x : {1u, 2u, 3u, 5u, 6u, 7u, 1000u, 65535u, 65536u, 123456789u, 0xffffffffu})
    EXPECT_NEAR(static_cast<double>(log2_whole(x)) * 0x1p-24, std::log2(x), 0.009) << x;
  EXPECT_EQ(log2_whole(1), 0);
  for (uint32_t x = 1; x < 5000; ++x) ASSERT_LE(log2_whole(x), log2_whole(x + 1)) << x;
}

// log2 of -log2 u, divided by the rate (e + 1)^-s.
TEST(Arrival, KeysAreLogarithmsOfTimes) {
  for (const uint32_t word : {0u, 1u, 77777u, 1u << 20, 1u << 23, (1u << 24) - 2, (1u << 24) - 1})
    for (const int64_t e : {0, 1, 6, 1023})
      for (const double s : {0.0, 0.5, 16.0}) {
        const double u = (word + 0.5) * 0x1p-24;
        const double wanted = -(std::log2(-std::log2(u)) + s * std::log2(static_cast<double>(e + 1)));
        const auto key = static_cast<double>(arrival_key(word, e, static_cast<int64_t>(s * 0x1p16)));
        // The waits of the last words are a few ulps.
        const double tolerance = word < (1u << 24) - 2 ? 0.05 + 0.009 * s : 1;
        EXPECT_NEAR((key + 24 * 0x1p16) * 0x1p-16, wanted, tolerance) << word << " " << e << " " << s;
        EXPECT_LT(std::abs(key), 0x1p24) << "float holds it exactly";
        EXPECT_EQ(static_cast<double>(static_cast<float>(key)), key);
      }
}

TEST(Arrival, LargerWordsAndLikelierExpertsComeEarlier) {
  for (uint32_t word = 0; word + 1 < 1u << 24; word += 9973)
    ASSERT_LE(arrival_key(word, 3, 1 << 16), arrival_key(word + 1, 3, 1 << 16)) << word;
  for (int64_t e = 0; e < 1023; ++e) ASSERT_GE(arrival_key(5000, e, 1 << 14), arrival_key(5000, e + 1, 1 << 14)) << e;
}

}  // namespace
}  // namespace witan
