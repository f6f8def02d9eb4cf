#include "witan/data/dedup/minhash.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/dedup/shingles.h"

namespace witan {
namespace {

// Two sets of `size` values each, of which `common` are in both; what they hold depends on the seed.
std::pair<std::vector<uint64_t>, std::vector<uint64_t>> sets_with(int64_t size, int64_t common, uint64_t seed) {
  const Philox random(seed, 3);
  std::pair<std::vector<uint64_t>, std::vector<uint64_t>> sets;
  for (int64_t i = 0; i < 2 * size - common; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const uint64_t value = uint64_t{random.bits(2 * at)} << 32 | random.bits(2 * at + 1);
    if (i < size) sets.first.push_back(value);
    if (i >= size - common) sets.second.push_back(value);
  }
  return sets;
}

// The figures that FineWeb's authors give for their 14 bands of 8 rows (arXiv:2406.17557, appendix).
TEST(MinHash, HasTheCurveThatFineWebStates) {
  const BandOptions fineweb;
  EXPECT_NEAR(candidate_probability(0.70, fineweb), 0.565, 0.001);
  EXPECT_NEAR(candidate_probability(0.75, fineweb), 0.772, 0.001);
  EXPECT_NEAR(candidate_probability(0.80, fineweb), 0.924, 0.001);
  EXPECT_NEAR(candidate_probability(0.85, fineweb), 0.988, 0.001);
  EXPECT_EQ(candidate_probability(0, fineweb), 0);
  EXPECT_EQ(candidate_probability(1, fineweb), 1);
  EXPECT_NEAR(candidate_probability(similarity_of_even_chance(fineweb), fineweb), 0.5, 1e-12);
}

// The share of equal rows is an unbiased estimate of the similarity: over many sets its mean has to be near.
TEST(MinHash, EstimatesJaccard) {
  const MinHash minhash({16, 8, 5});
  for (const int64_t common : {0, 20, 60, 100}) {
    double equal = 0, rows = 0;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const auto [a, b] = sets_with(100, common, seed);
      const auto x = minhash.signature(a), y = minhash.signature(b);
      for (size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i] ? 1 : 0;
      rows += static_cast<double>(x.size());
    }
    const double similarity = static_cast<double>(common) / static_cast<double>(200 - common);
    // Rows of one pair are independent, and so are pairs: five standard deviations.
    EXPECT_NEAR(equal / rows, similarity, 5 * std::sqrt(similarity * (1 - similarity) / rows) + 1e-12) << common;
  }
}

// Pairs of a known similarity are candidates as often as the curve says.
TEST(MinHash, FindsCandidatesAsOftenAsTheCurveSays) {
  const BandOptions options{10, 4, 9};
  const MinHash minhash(options);
  for (const int64_t common : {50, 60, 70, 80}) {
    constexpr int kPairs = 800;
    int candidates = 0;
    for (uint64_t seed = 0; seed < kPairs; ++seed) {
      const auto [a, b] = sets_with(100, common, 1000 * static_cast<uint64_t>(common) + seed);
      const auto x = minhash.band_keys(minhash.signature(a)), y = minhash.band_keys(minhash.signature(b));
      bool found = false;
      for (size_t band = 0; band < x.size(); ++band) found |= x[band] == y[band];
      candidates += found ? 1 : 0;
    }
    const double p = candidate_probability(static_cast<double>(common) / static_cast<double>(200 - common), options);
    EXPECT_NEAR(candidates, kPairs * p, 5 * std::sqrt(kPairs * p * (1 - p))) << common;
  }
}

TEST(MinHash, IsAFunctionOfTheSetAndTheSeed) {
  const MinHash one({3, 5, 1}), same({3, 5, 1}), other({3, 5, 2});
  auto shingles = sets_with(40, 0, 1).first;
  const auto signature = one.signature(shingles);
  EXPECT_EQ(signature.size(), 15u);
  EXPECT_EQ(same.signature(shingles), signature);
  EXPECT_NE(other.signature(shingles), signature);
  std::reverse(shingles.begin(), shingles.end());
  shingles.push_back(shingles.front());
  EXPECT_EQ(one.signature(shingles), signature) << "neither order nor repetitions count";
  const auto keys = one.band_keys(std::vector<uint32_t>(15, 7));
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(std::set<DocumentKey>(keys.begin(), keys.end()).size(), 3u) << "equal rows of different bands differ";
}

TEST(MinHash, RefusesWhatMakesNoSense) {
  for (const BandOptions& bad : {BandOptions{0, 8, 1}, BandOptions{14, 0, 1}, BandOptions{1000, 5, 1}})
    EXPECT_THAT(message_of<ConfigError>([&] { MinHash{bad}; }), ::testing::HasSubstr("--bands"));
}

}  // namespace
}  // namespace witan
