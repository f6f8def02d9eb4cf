#include <limits>
#include <numeric>

#include "support/rank.h"
#include "support/routing.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/selection.h"

namespace witan {
namespace {

using testing::close;
using testing::Rank;
using testing::values;

constexpr double kUnit = kernels::kQuantileUnit;

// The definitions in kernels/moe/selection.h, computed by sorting whole rows and columns.
struct Reference {
  std::vector<int32_t> ids;
  std::vector<double> margins;  // [E, T]
  std::vector<int64_t> sums;

  Reference(const std::vector<double>& logits, const std::vector<double>& bias, size_t K)
      : margins(logits.size()), sums(bias.size() + 1) {
    const size_t E = bias.size(), T = logits.size() / E;
    for (size_t t = 0; t < T; ++t) {
      std::vector<int32_t> order(E);
      std::iota(order.begin(), order.end(), 0);
      const auto biased = [&](int32_t e) {
        return logits[t * E + static_cast<size_t>(e)] + bias[static_cast<size_t>(e)];
      };
      std::ranges::stable_sort(order, std::greater<>(), biased);
      ids.insert(ids.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(K));
      for (size_t e = 0; e < E; ++e) margins[e * T + t] = logits[t * E + e] - biased(order[K]);
    }
    for (size_t e = 0; e < E; ++e) {
      std::vector<double> column(margins.begin() + static_cast<std::ptrdiff_t>(e * T),
                                 margins.begin() + static_cast<std::ptrdiff_t>((e + 1) * T));
      std::ranges::sort(column, std::greater<>());
      sums[e] = std::llrint(column[T * K / E] * kUnit);
    }
    sums[E] = 1;
  }
};

TEST(Quantiles, FollowTheirDefinitions) {
  Rank rank;
  for (const auto& [T, E, K] : std::vector<std::array<int64_t, 3>>{{1, 2, 1}, {7, 3, 2}, {64, 8, 2}, {301, 33, 6}}) {
    const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2), bias = rank.normal({E}, DType::f32, "bias"),
                 ids = rank.stream.empty({T, K}, DType::i32), margins = rank.poisoned({1, E, T}, DType::f64),
                 sums = rank.stream.empty({E + 1}, DType::i64);
    const Reference expected(values(logits), values(bias), static_cast<size_t>(K));
    kernels::choose_by_quantiles(rank.stream, ids, margins, logits, bias);
    kernels::quantile_sums(rank.stream, sums, margins, K);
    EXPECT_EQ(ids.to_vector<int32_t>(), expected.ids);
    EXPECT_EQ(values(margins), expected.margins);
    EXPECT_EQ(sums.to_vector<int64_t>(), expected.sums);
    const Tensor again = rank.stream.empty({T, K}, DType::i32);
    kernels::choose_by_quantiles(rank.stream, again, Tensor(), logits, bias);
    EXPECT_EQ(again.to_vector<int32_t>(), expected.ids) << "without margins";
  }
}

// The sums over several ranks' parts, in any order, equal those over all tokens.
TEST(Quantiles, SumsOfPartsEqualThoseOfTheWhole) {
  Rank rank;
  const int64_t E = 5, T = 24, R = 3;
  const Tensor margins = rank.normal({1, E, T}, DType::f32, "margins"),
               parts = rank.poisoned({R, E, T / R}, DType::f32), whole = rank.stream.empty({E + 1}, DType::i64),
               joined = rank.stream.empty({E + 1}, DType::i64);
  for (int64_t e = 0; e < E; ++e)
    for (int64_t t = 0; t < T; ++t)
      parts.data<float>()[(t % R * E + e) * (T / R) + t / R] = margins.data<float>()[e * T + t];
  kernels::quantile_sums(rank.stream, whole, margins, 2);
  kernels::quantile_sums(rank.stream, joined, parts, 2);
  EXPECT_EQ(joined.to_vector<int64_t>(), whole.to_vector<int64_t>());
}

TEST(Quantiles, IgnorePadding) {
  Rank rank;
  const int64_t T = 24, E = 5, K = 2;
  const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2), bias = rank.normal({E}, DType::f32, "bias");
  std::vector<int32_t> sequence_ids;
  std::vector<double> alone;
  for (int64_t t = 0; t < T; ++t) {
    sequence_ids.push_back(t % 4 == 1 ? -1 : 0);
    const auto row = values(logits.narrow(0, t, 1));
    if (t % 4 != 1) alone.insert(alone.end(), row.begin(), row.end());
  }
  const int64_t n = static_cast<int64_t>(alone.size()) / E;
  const Reference expected(alone, values(bias), static_cast<size_t>(K));
  const Tensor ids = rank.stream.empty({T, K}, DType::i32), margins = rank.poisoned({1, E, T}, DType::f64),
               sums = rank.stream.empty({E + 1}, DType::i64);
  kernels::choose_by_quantiles(rank.stream, ids, margins, logits, bias, rank.tensor<int32_t>({T}, sequence_ids));
  kernels::quantile_sums(rank.stream, sums, margins, K, rank.tensor<int64_t>({1}, {n}));
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < T; ++t) {
    const auto of_token = ids.narrow(0, t, 1).to_vector<int32_t>();
    if (t % 4 == 1)
      EXPECT_EQ(of_token, std::vector<int32_t>(2, -1));
    else
      chosen.insert(chosen.end(), of_token.begin(), of_token.end());
  }
  EXPECT_EQ(chosen, expected.ids);
  EXPECT_EQ(sums.to_vector<int64_t>(), expected.sums);
  kernels::quantile_sums(rank.stream, sums, margins, K, rank.tensor<int64_t>({1}, {0}));
  EXPECT_EQ(sums.to_vector<int64_t>(), std::vector<int64_t>(E + 1)) << "of no tokens";
}

TEST(Quantiles, AreLimitedAndZeroWithoutTokens) {
  Rank rank;
  const auto infinity = std::numeric_limits<double>::infinity();
  const Tensor margins = rank.tensor<double>({1, 3, 2}, {infinity, infinity, -infinity, -1e30, NAN, NAN}),
               sums = rank.stream.empty({4}, DType::i64);
  kernels::quantile_sums(rank.stream, sums, margins, 1);
  const auto most = std::llrint(kernels::kMostQuantile * kUnit);
  EXPECT_EQ(sums.to_vector<int64_t>(), (std::vector<int64_t>{most, -most, -most, 1}));
  kernels::quantile_sums(rank.stream, sums, rank.stream.empty({1, 3, 0}, DType::f64), 1);
  EXPECT_EQ(sums.to_vector<int64_t>(), std::vector<int64_t>(4));
}

TEST(Quantiles, BiasIsTheMeanMinusEachQuantile) {
  Rank rank;
  const Tensor bias = rank.tensor<float>({4}, {1, 2, 3, 4}),
               step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  const auto unit = static_cast<int64_t>(kUnit);
  const Tensor sums = rank.tensor<int64_t>({5}, {2 * unit, -6 * unit, 0, 12 * unit, 2});  // over two micro-batches
  step.data<double>()[kernels::step_value::skip] = 1;
  kernels::update_quantile_bias(rank.stream, bias, sums, step);
  EXPECT_EQ(bias.to_vector<float>(), (std::vector<float>{1, 2, 3, 4})) << "a step that is skipped";
  step.data<double>()[kernels::step_value::skip] = 0;
  kernels::update_quantile_bias(rank.stream, bias, rank.tensor<int64_t>({5}, {0, 0, 0, 0, 0}), step);
  EXPECT_EQ(bias.to_vector<float>(), (std::vector<float>{1, 2, 3, 4})) << "a step without micro-batches";
  kernels::update_quantile_bias(rank.stream, bias, sums, step);
  EXPECT_EQ(bias.to_vector<float>(), (std::vector<float>{0, 4, 1, -5}));
}

// Logits that favour some experts are drawn anew each time; after a few updates every expert gets its share.
TEST(Quantiles, BalanceTheLoad) {
  Rank rank;
  const int64_t T = 4096, E = 8, K = 2;
  const Tensor bias = rank.tensor<float>({E}, std::vector<float>(E)), ids = rank.stream.empty({T, K}, DType::i32),
               margins = rank.poisoned({1, E, T}, DType::f64), sums = rank.stream.empty({E + 1}, DType::i64),
               step = rank.stream.zeros({kernels::kStepValues}, DType::f64);
  std::vector<double> uneven;
  for (int i = 0; i < 8; ++i) {
    const Tensor logits = rank.normal({T, E}, DType::f64, cat("logits", i));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t e = 0; e < E; ++e) logits.data<double>()[t * E + e] += e == 7 ? -10 : 0.3 * static_cast<double>(e);
    kernels::choose_by_quantiles(rank.stream, ids, margins, logits, bias);
    std::vector<double> counts(E);
    for (const int32_t id : ids.to_vector<int32_t>()) ++counts[static_cast<size_t>(id)];
    uneven.push_back(std::ranges::max(counts) * E / static_cast<double>(T * K));
    kernels::quantile_sums(rank.stream, sums, margins, K);
    kernels::update_quantile_bias(rank.stream, bias, sums, step);
  }
  EXPECT_GT(uneven.front(), 2);
  EXPECT_LT(uneven.back(), 1.15);
}

// A choice made elsewhere gets the weights of a router that makes the same choice.
TEST(WeighChosen, WeighsAsTheRouterDoes) {
  Rank rank;
  const int64_t T = 33, E = 7, K = 3;
  for (const kernels::Scores scores :
       {kernels::Scores::softmax, kernels::Scores::softmax_of_chosen, kernels::Scores::sigmoid}) {
    const auto out = testing::poisoned_outputs(rank, T, E, K, DType::f64);
    const Tensor logits = rank.normal({T, E}, DType::f64, "logits", 2);
    kernels::router_forward(rank.stream, out, logits, scores);
    const std::vector<double> expected = values(out.weights);
    std::ranges::fill(out.weights.span<double>(), NAN);
    kernels::weigh_chosen(rank.stream, out, logits, scores);
    EXPECT_EQ(values(out.weights), expected);
  }
}

}  // namespace
}  // namespace witan
