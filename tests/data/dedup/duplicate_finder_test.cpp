#include "witan/data/dedup/duplicate_finder.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "witan/base/json.h"

// Compares with datasketch and datatrove on the same texts: tests/golden/data/dedup/make_dedup.py.
namespace witan {
namespace {

constexpr int64_t kMostChanged = 7;

const Json& golden_pairs() {
  static const Json pairs = parse_json(read_file(golden("dedup/pairs.json")), "pairs.json");
  return pairs;
}

std::string word_of(int64_t number) {
  std::string letters;
  for (int i = 0; i < 5; ++i, number /= 26) letters += static_cast<char>('a' + number % 26);
  return letters;
}

// The second text of a pair, or the first if `changed` is 0.
std::string text_of_pair(int64_t pair, int64_t changed) {
  std::string text;
  for (int64_t i = 0; i < golden_pairs()["words"].get<int64_t>(); ++i) {
    const bool replaced = i % 5 == 4 && i / 5 < changed;
    text += word_of(2000 * pair + (replaced ? 1000 + i / 5 : i)) + " ";
  }
  return text;
}

std::vector<uint64_t> set_of(std::string_view text, const ShingleOptions& options) {
  DuplicateOptions duplicates;
  duplicates.shingles = options;
  return DuplicateFinder(duplicates).shingle_set(text);
}

// How many of the pairs with 1, 2 ... changed words are found. Texts of different pairs must not be found.
std::vector<int64_t> found_pairs(const DuplicateOptions& options) {
  const auto pairs = golden_pairs()["pairs"].get<int64_t>();
  std::vector<std::string> texts;
  for (int64_t pair = 0; pair < kMostChanged * pairs; ++pair) {
    texts.push_back(text_of_pair(pair, 0));
    texts.push_back(text_of_pair(pair, 1 + pair / pairs));
  }
  DuplicateFinder finder(options);
  for (const std::string& text : texts) finder.add(finder.keys_of(text));
  finder.group();
  if (options.least_similarity)
    finder.verify([&](int64_t document) { return finder.shingle_set(texts[static_cast<size_t>(document)]); });
  std::vector<int64_t> found(kMostChanged);
  for (Removal removal; finder.next(removal);) {
    EXPECT_EQ(removal.document, removal.kept + 1);
    EXPECT_EQ(removal.kept % 2, 0);
    EXPECT_FALSE(removal.exact);
    ++found[static_cast<size_t>(removal.kept / 2 / pairs)];
  }
  return found;
}

TEST(DuplicateFinder, JaccardSimilaritiesMatchPythonSets) {
  constexpr int64_t kLengths[] = {1, 2, 3, 5};
  for (const Json& row : golden_pairs()["short_texts"])
    for (size_t i = 0; i < std::size(kLengths); ++i) {
      const auto first = row["texts"][0].get<std::string>(), second = row["texts"][1].get<std::string>();
      const ShingleOptions words{ShingleUnit::words, kLengths[i]}, characters{ShingleUnit::characters, kLengths[i]};
      EXPECT_EQ(jaccard(set_of(first, words), set_of(second, words)), row["words"][i].get<double>()) << first << second;
      EXPECT_EQ(jaccard(set_of(first, characters), set_of(second, characters)), row["characters"][i].get<double>())
          << first << second;
    }
}

// Both average estimates with equal variance, from different hash functions.
TEST(DuplicateFinder, EstimatesSimilaritiesLikeDatasketch) {
  const auto pairs = golden_pairs()["pairs"].get<int64_t>();
  const MinHash minhash({});
  for (const Json& row : golden_pairs()["by_changed"]) {
    const auto changed = row["changed"].get<int64_t>();
    double equal = 0, rows = 0;
    for (int64_t pair = (changed - 1) * pairs; pair < changed * pairs; ++pair) {
      const auto a = set_of(text_of_pair(pair, 0), {}), b = set_of(text_of_pair(pair, changed), {});
      ASSERT_EQ(jaccard(a, b), row["jaccard"].get<double>());
      const auto x = minhash.signature(a), y = minhash.signature(b);
      for (size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i] ? 1 : 0;
      rows += static_cast<double>(x.size());
    }
    const double s = row["jaccard"].get<double>();
    EXPECT_NEAR(equal / rows, row["datasketch_estimate"].get<double>(), 5 * std::sqrt(2 * s * (1 - s) / rows)) << s;
  }
}

// Each finds a pair with the probability of the formula, using different hash functions: their counts are binomial.
TEST(DuplicateFinder, FindsPairsAsOftenAsDatasketchAndDatatrove) {
  const DuplicateOptions fineweb;  // 14 bands of 8 rows, as in both golden runs
  const std::vector<int64_t> found = found_pairs(fineweb);
  const auto pairs = golden_pairs()["pairs"].get<double>();
  for (const Json& row : golden_pairs()["by_changed"]) {
    const double p = candidate_probability(row["jaccard"].get<double>(), fineweb.bands);
    const double deviation = std::sqrt(pairs * p * (1 - p));
    const auto own = static_cast<double>(found[row["changed"].get<size_t>() - 1]);
    EXPECT_NEAR(own, pairs * p, 5 * deviation) << row;
    EXPECT_NEAR(own, row["datasketch_found"].get<double>(), 5 * std::sqrt(2) * deviation) << row;
    EXPECT_NEAR(own, row["datatrove_found"].get<double>(), 5 * std::sqrt(2) * deviation) << row;
  }
}

// With bands that miss no such pair, and exact similarities, the pairs are equal.
TEST(DuplicateFinder, FindsTheVerifiedPairsOfDatasketch) {
  DuplicateOptions options;
  options.bands = {40, 4, 1};
  options.least_similarity = 0.7;
  const std::vector<int64_t> found = found_pairs(options);
  for (const Json& row : golden_pairs()["by_changed"])
    EXPECT_EQ(found[row["changed"].get<size_t>() - 1], row["datasketch_verified"].get<int64_t>()) << row;
}

TEST(DuplicateFinder, ShinglesFormASet) {
  DuplicateOptions options;
  options.shingles.length = 1;
  const DuplicateFinder finder(options);
  EXPECT_EQ(finder.shingle_set("on and on and on").size(), 2u);
}

TEST(DuplicateFinder, TextsWithoutWordsAreNotSimilar) {
  const DuplicateFinder finder(DuplicateOptions{});
  EXPECT_TRUE(finder.keys_of("!!!").bands.empty());
  EXPECT_FALSE(finder.keys_of("a word").bands.empty());
}

}  // namespace
}  // namespace witan
