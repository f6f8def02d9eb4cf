#include "witan/data/dedup/minhash.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/dedup/words.h"

namespace witan {
namespace {

std::vector<std::u32string> words(std::string_view text) {
  std::vector<std::u32string> out;
  for_words(text, [&](std::u32string_view word) { out.emplace_back(word); });
  return out;
}

std::vector<uint64_t> shingles(std::string_view text, ShingleUnit unit, int64_t length) {
  std::vector<uint64_t> out;
  shingle_hashes(text, {unit, length}, out);
  return out;
}

TEST(Words, AreRunsOfLettersInAnyScript) {
  using W = std::vector<std::u32string>;
  EXPECT_EQ(words("Don't stop_me: 3.14 now!"), (W{U"don", U"t", U"stop_me", U"3", U"14", U"now"}));
  EXPECT_EQ(words("\xC3\x9C"
                  "BER Stra\xC3\x9F"
                  "e"),
            (W{U"über", U"straße"}));
  EXPECT_EQ(words("e\xCC\x81t\xC3\xA9"), (W{U"e\u0301té"})) << "a combining mark is part of its word";
  EXPECT_EQ(words("日本の text"), (W{U"日", U"本", U"の", U"text"}));
  EXPECT_EQ(words("한국어 문장"), (W{U"한국어", U"문장"})) << "Korean uses spaces";
  EXPECT_EQ(words("\xF0\x9F\x98\x80 \xF0\xA0\x80\x80"), (W{U"\U00020000"})) << "rare Han characters, but no emoji";
  EXPECT_EQ(words(" ... \n"), W{});
}

TEST(TextKey, IgnoresWhatNormalizationRemoves) {
  const auto same = [](std::string_view a, std::string_view b, Normalization n) {
    return text_key(a, n) == text_key(b, n);
  };
  const std::string_view a = "The King,\n\tasked.", b = "  The King, asked.\xC2\xA0\n", c = "the king asked";
  EXPECT_FALSE(same(a, b, Normalization::none));
  EXPECT_TRUE(same(a, a, Normalization::none));
  EXPECT_TRUE(same(a, b, Normalization::space)) << "U+00A0 is also white space";
  EXPECT_FALSE(same(a, c, Normalization::space));
  EXPECT_TRUE(same(a, c, Normalization::words));
  EXPECT_FALSE(same("the kingasked", c, Normalization::words));
}

TEST(Shingles, AreRunsOfWordsOrCharacters) {
  EXPECT_EQ(shingles("a b c d e f", ShingleUnit::words, 5).size(), 2u);
  EXPECT_EQ(shingles("a b c d", ShingleUnit::words, 5).size(), 1u) << "a short text is one shingle";
  EXPECT_EQ(shingles("", ShingleUnit::words, 5).size(), 0u);
  EXPECT_EQ(shingles("?!", ShingleUnit::words, 5).size(), 0u);
  EXPECT_EQ(shingles("ab, cd", ShingleUnit::characters, 3).size(), 3u) << "\"ab \", \"b c\", \" cd\"";
  const auto one = shingles("x a b c y", ShingleUnit::words, 3), two = shingles("z A, b C w", ShingleUnit::words, 3);
  EXPECT_EQ(one[1], two[1]) << "a b c";
  EXPECT_EQ(std::set<uint64_t>(one.begin(), one.end()).size(), 3u);
  EXPECT_NE(shingles("ab c", ShingleUnit::words, 2), shingles("a bc", ShingleUnit::words, 2));
}

TEST(Jaccard, IsTheShareOfCommonElements) {
  EXPECT_EQ(jaccard({1, 2, 3}, {2, 3, 4, 5}), 2.0 / 5);
  EXPECT_EQ(jaccard({1, 2}, {1, 2}), 1);
  EXPECT_EQ(jaccard({1}, {2}), 0);
  EXPECT_EQ(jaccard({}, {2}), 0);
  EXPECT_EQ(jaccard({}, {}), 1);
}

// Two sets of `size` values each with `common` values in both; the values depend on the seed.
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
TEST(MinHash, HasFineWebsCurve) {
  const BandOptions fineweb;
  EXPECT_NEAR(candidate_probability(0.70, fineweb), 0.565, 0.001);
  EXPECT_NEAR(candidate_probability(0.75, fineweb), 0.772, 0.001);
  EXPECT_NEAR(candidate_probability(0.80, fineweb), 0.924, 0.001);
  EXPECT_NEAR(candidate_probability(0.85, fineweb), 0.988, 0.001);
  EXPECT_EQ(candidate_probability(0, fineweb), 0);
  EXPECT_EQ(candidate_probability(1, fineweb), 1);
  EXPECT_NEAR(candidate_probability(similarity_of_even_chance(fineweb), fineweb), 0.5, 1e-12);
}

// The share of equal rows is an unbiased estimate of the similarity, so the mean over many sets must be close to it.
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
    // Rows of a pair and pairs are independent; the bound is five standard deviations.
    EXPECT_NEAR(equal / rows, similarity, 5 * std::sqrt(similarity * (1 - similarity) / rows) + 1e-12) << common;
  }
}

// Pairs of a known similarity become candidates with the probability of the curve.
TEST(MinHash, FindsCandidatesAsOftenAsTheCurvePredicts) {
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

TEST(MinHash, DependsOnlyOnTheSetAndTheSeed) {
  const MinHash one({3, 5, 1}), same({3, 5, 1}), other({3, 5, 2});
  auto shingles = sets_with(40, 0, 1).first;
  const auto signature = one.signature(shingles);
  EXPECT_EQ(signature.size(), 15u);
  EXPECT_EQ(same.signature(shingles), signature);
  EXPECT_NE(other.signature(shingles), signature);
  std::reverse(shingles.begin(), shingles.end());
  shingles.push_back(shingles.front());
  EXPECT_EQ(one.signature(shingles), signature) << "order and repetitions do not matter";
  const auto keys = one.band_keys(std::vector<uint32_t>(15, 7));
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(std::set<DocumentKey>(keys.begin(), keys.end()).size(), 3u) << "equal rows of different bands differ";
}

TEST(MinHash, RefusesMeaninglessOptions) {
  for (const BandOptions& bad : {BandOptions{0, 8, 1}, BandOptions{14, 0, 1}, BandOptions{1000, 5, 1}})
    EXPECT_THAT(message_of<ConfigError>([&] { MinHash{bad}; }), ::testing::HasSubstr("--bands"));
}

}  // namespace
}  // namespace witan
