#include "witan/kernels/vocabulary/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/rank.h"
#include "witan/base/numbers/rng.h"
#include "witan/kernels/vocabulary/sampling_rules.h"

namespace witan {
namespace {

using kernels::Choice;
using kernels::sampling_row;
using kernels::SamplingFilters;
using kernels::SamplingRow;
using testing::Rank;

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t drawn(const SamplingFilters& filters, const std::vector<float>& logits, double share) {
  const auto draw = static_cast<uint32_t>(share * 0x1p32);
  return kernels::cpu::sample_token(logits, kernels::sampling_row(filters, std::ssize(logits), draw));
}

struct Share {
  int32_t id;
  double probability;
};

// Returns the kept tokens in the order of the draw: all are sorted, then each filter is applied, in float64.
std::vector<Share> kept_by(const SamplingFilters& filters, const std::vector<float>& logits) {
  const double top = *std::ranges::max_element(logits);
  std::vector<Share> all;
  for (size_t id = 0; id < logits.size(); ++id)
    all.push_back({static_cast<int32_t>(id), std::exp((logits[id] - top) / filters.temperature)});
  const auto sum = [&] {
    return std::accumulate(all.begin(), all.end(), 0.0, [](double s, const Share& one) { return s + one.probability; });
  };
  if (filters.top_k > 0 || filters.top_p < 1)
    std::ranges::stable_sort(all, std::ranges::greater(),
                             [&](const Share& one) { return logits[static_cast<size_t>(one.id)]; });
  if (filters.top_k > 0) all.resize(std::min(all.size(), static_cast<size_t>(filters.top_k)));
  if (filters.top_p < 1) {
    const double wanted = filters.top_p * sum();
    double through = 0;
    size_t count = 0;
    while (through < wanted) through += all[count++].probability;
    all.resize(count);
  }
  std::erase_if(all, [&](const Share& one) { return one.probability < filters.min_p; });
  const double total = sum();
  for (Share& one : all) one.probability /= total;
  return all;
}

// Tokens are drawn in their intervals of [0, 1), up to 1e-6 at the ends, which is a float32 exponential's error. Some
// 30 of them are tried, the first and the last included.
void expect_intervals(const SamplingFilters& filters, const std::vector<float>& logits) {
  SCOPED_TRACE(cat("temperature ", filters.temperature, ", top_k ", filters.top_k, ", top_p ", filters.top_p,
                   ", min_p ", filters.min_p));
  constexpr double kError = 1e-6;
  const std::vector<Share> kept = kept_by(filters, logits);
  const size_t apart = kept.size() / 30 + 1;
  double begin = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const double end = begin + kept[i].probability;
    if ((i % apart == 0 || i + 1 == kept.size()) && kept[i].probability > 3 * kError) {
      for (const double share : {begin + kError, (begin + end) / 2, end - kError})
        ASSERT_EQ(drawn(filters, logits, share), kept[i].id)
            << "at " << share << " of [" << begin << ", " << end << ")";
    }
    begin = end;
  }
  EXPECT_NEAR(begin, 1, 1e-9);
}

std::vector<float> normal_logits(int64_t count, double deviation) {
  std::vector<float> logits;
  const Philox rng(7, 1);
  for (int64_t v = 0; v < count; ++v)
    logits.push_back(static_cast<float>(deviation * rng.normal(static_cast<uint64_t>(v))));
  return logits;
}

TEST(SampleTokens, HaveTheirProbabilities) {
  for (const auto& [count, deviation] : {std::pair<int64_t, double>{5, 1}, {300, 3}, {5000, 0.5}, {5000, 4}}) {
    SCOPED_TRACE(cat(count, " logits, deviation ", deviation));
    const auto logits = normal_logits(count, deviation);
    for (const double temperature : {0.3, 1.0, 1.7})
      for (const SamplingFilters& filters : {SamplingFilters{},
                                             {.min_p = 0.01},
                                             {.top_k = 1},
                                             {.top_k = 40},
                                             {.top_k = 100000},
                                             {.top_p = 0.5},
                                             {.top_p = 0.95},
                                             {.top_k = 700, .top_p = 0.9},
                                             {.top_k = 50, .top_p = 0.9, .min_p = 0.05}}) {
        SamplingFilters with = filters;
        with.temperature = temperature;
        expect_intervals(with, logits);
      }
  }
}

// Logits in steps of a quarter, of which many are equal.
TEST(SampleTokens, RankEqualLogitsById) {
  auto logits = normal_logits(3000, 2);
  for (float& logit : logits) logit = std::round(4 * logit) / 4;
  for (const SamplingFilters& filters : {SamplingFilters{.top_k = 11}, {.top_k = 500}, {.top_p = 0.3}, {.top_p = 0.8}})
    expect_intervals(filters, logits);
  expect_intervals({.top_k = 3}, {0, -0.0F, 0, -0.0F, 0});  // zeros are equal
}

TEST(SampleTokens, FiltersMayKeepAllOrOne) {
  const auto logits = normal_logits(100, 1);
  const auto likeliest = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  for (const double share : {0.0, 0.5, 0.9999999}) {
    for (const SamplingFilters& one : {SamplingFilters{.top_k = 1},
                                       {.top_p = 1e-300},
                                       {.min_p = 1},
                                       {.temperature = 0},
                                       {.temperature = 1e-300},
                                       {.temperature = 1e-38, .top_p = 0.5}})
      EXPECT_EQ(drawn(one, logits, share), likeliest);
    EXPECT_EQ(drawn({.top_k = 100}, logits, share), drawn({.top_k = int64_t{1} << 40}, logits, share));
    EXPECT_EQ(drawn({.top_k = 100}, logits, share), drawn({.top_p = std::nextafter(1.0, 0.0)}, logits, share));
    // Equal probabilities, in the order of ids.
    EXPECT_EQ(drawn({.temperature = 1e300}, logits, share), static_cast<int32_t>(share * 100));
  }
}

TEST(SampleTokens, AreNeverImpossibleOnes) {
  const std::vector<float> logits = {-kInf, 0, -27, -kInf, 0, -26};  // 2^-38 is exp(-26.3)
  for (const SamplingFilters& filters : {SamplingFilters{}, {.top_k = 6}, {.top_p = 0.9999999}}) {
    EXPECT_EQ(drawn(filters, logits, 0), 1);
    EXPECT_EQ(drawn(filters, logits, 0.9999999), 4);
  }
  EXPECT_EQ(drawn({.temperature = 1e300}, {-1e38F, -kInf, 1e38F}, 0.4), 0);
  EXPECT_EQ(drawn({.temperature = 1e300}, {-1e38F, -kInf, 1e38F}, 0.6), 2);
}

TEST(SampleTokens, AreNoneIfLogitsAreBad) {
  for (const SamplingFilters& filters : {SamplingFilters{}, {.temperature = 0}, {.top_k = 2}, {.top_p = 0.5}})
    for (const auto& logits : {std::vector<float>{0, std::nanf(""), 1}, {0, 1, kInf}, {-kInf, -kInf}})
      EXPECT_EQ(drawn(filters, logits, 0.5), -1);
}

// Rows of one tensor, each with filters and a number of words of its own, in every dtype, on one thread and on three.
TEST(SampleTokens, DependOnTheirRowsAlone) {
  constexpr int64_t kRows = 9, V = 77;
  const std::vector<SamplingFilters> filters = {{},
                                                {.temperature = 0},
                                                {.temperature = 0.7, .top_k = 5},
                                                {.top_p = 0.6},
                                                {.min_p = 0.2},
                                                {.temperature = 2, .top_k = 30, .top_p = 0.8, .min_p = 0.1}};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const int threads : {1, 3}) {
      Rank rank(threads);
      const Tensor logits = rank.normal({kRows, V}, dtype, "logits", 2);
      std::vector<SamplingRow> rows;
      std::vector<int32_t> expected;
      for (int64_t t = 0; t < kRows; ++t) {
        const int64_t words = V - 3 * t;
        std::vector<float> row;
        dispatch_floating(dtype, [&]<class T>() {
          for (int64_t v = 0; v < words; ++v) row.push_back(static_cast<float>(logits.data<T>()[t * V + v]));
          for (int64_t v = words; v < V; ++v) logits.data<T>()[t * V + v] = T(std::nanf(""));
        });
        rows.push_back(
            sampling_row(filters[static_cast<size_t>(t) % filters.size()], words, 0x37ab0000u * uint32_t(t + 1)));
        expected.push_back(kernels::cpu::sample_token(row, rows.back()));
        EXPECT_GE(expected.back(), 0);
      }
      const Tensor on_device = rank.stream.empty({kRows, kernels::kSamplingRowWords}, DType::i32);
      rank.stream.write(on_device, rows.data());
      const Tensor ids = rank.tensor({kRows}, std::vector<int32_t>(kRows, -7));
      kernels::sample_tokens(rank.stream, ids, logits, on_device, Choice::by_rank);
      EXPECT_EQ(std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + kRows), expected) << dtype;
    }
}

TEST(SamplingWeights, AreExponentials) {
  for (const double temperature : {0.01, 0.7, 1.0, 30.0}) {
    const SamplingRow row = sampling_row({.temperature = temperature}, 1, 0);
    uint64_t before = kernels::kTopWeight;
    for (double x = 0; x < 26; x += 1e-3) {
      const auto below = static_cast<float>(x * temperature);
      const double exact = std::exp(-double(below) / temperature) * 0x1p39;
      const uint64_t weight = kernels::rules::weight_of(below, row);
      ASSERT_NEAR(static_cast<double>(weight), exact, 1 + 0x1p-22 * exact) << below;
      ASSERT_GE(weight, 1u);
      ASSERT_LE(weight, before);
      before = weight;
    }
    EXPECT_EQ(kernels::rules::weight_of(0, row), kernels::kTopWeight);
    EXPECT_EQ(kernels::rules::weight_of(static_cast<float>(27 * temperature), row), 0u);
    EXPECT_EQ(kernels::rules::weight_of(kInf, row), 0u);
  }
}

TEST(SamplingWeights, HaveExactShares) {
  using kernels::rules::drawn_of;
  using kernels::rules::share_of;
  EXPECT_EQ(share_of(uint64_t{4} << 39, 0.5), uint64_t{2} << 39);
  EXPECT_EQ(share_of(10, 1e-300), 1u);
  EXPECT_EQ(share_of(10, 0.11), 2u);
  EXPECT_EQ(share_of((uint64_t{1} << 57) + 1, std::nextafter(1.0, 0.0)), (uint64_t{1} << 57) - 16);
  EXPECT_EQ(drawn_of(uint64_t{3} << 57, 1u << 31), uint64_t{3} << 56);
  EXPECT_EQ(drawn_of((uint64_t{1} << 58) - 1, ~0u), (uint64_t{1} << 58) - (uint64_t{1} << 26) - 1);
}

}  // namespace
}  // namespace witan
