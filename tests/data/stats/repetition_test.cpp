#include "witan/data/stats/repetition.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/data/dedup/words.h"
#include "witan/data/stats/dataset_statistics.h"

namespace witan {
namespace {

RepetitionShares shares_of(const std::string& text) {
  return measure_repetition(text, measure_text(text).characters, HashedWords(text));
}

void expect_shares(const RepetitionShares& shares, const Json& expected, const std::string& text) {
  for (size_t rule = 0; rule < shares.size(); ++rule)
    EXPECT_NEAR(shares[rule], expected.at(rule).get<double>(), 1e-12) << kRepetitionRules[rule].name << " of " << text;
}

TEST(Repetition, MatchesDatatrove) {
  const Json golden_shares = parse_json(read_file(golden("stats/repetition.json")), "repetition.json");
  for (const Json& one : golden_shares["texts"])
    expect_shares(shares_of(one["text"].get<std::string>()), one["shares"], one["text"].get<std::string>());
  std::istringstream rows(read_file(golden("stats/rows.jsonl")));
  size_t number = 0;
  for (std::string row; std::getline(rows, row); ++number) {
    const auto text = parse_json(row, "row")["text"].get<std::string>();
    expect_shares(shares_of(text), golden_shares["rows"].at(number), text);
  }
  EXPECT_EQ(number, golden_shares["rows"].size());
}

TEST(Repetition, OfEmptyTextIsZero) {
  for (const char* text : {"", "\n", "\n\n\n", "word"})
    for (const double share : shares_of(text)) EXPECT_EQ(share, 0) << text;
}

// Leftovers of a long text do not affect the next one.
TEST(Repetition, IsIndependentOfEarlierTexts) {
  const std::string text = "a b c a b c a b c a b c\na b c\na b c\n";
  const RepetitionShares alone = shares_of(text);
  std::string longer;
  for (int i = 0; i < 5000; ++i) longer += cat("a b c ", i, "\n");
  shares_of(longer);
  EXPECT_EQ(shares_of(text), alone);
}

TEST(HashedWords, HaveWordsAndTheirPositions) {
  const std::string text = "  The cat -- the CAT, \xC3\x84pfel 天地!";
  const HashedWords words(text);
  std::vector<std::u32string> expected;
  for_words(text, [&](std::u32string_view word) { expected.emplace_back(word); });
  ASSERT_EQ(words.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(words.characters(i, 1), static_cast<int64_t>(expected[i].size())) << i;
  EXPECT_EQ(words.text(0, 4), "The cat -- the CAT");
  EXPECT_EQ(words.text(4, 2), "\xC3\x84pfel 天");
  EXPECT_EQ(words.characters(0, 7), 12 + 5 + 2);
  EXPECT_EQ(words.hash(0, 2), words.hash(2, 2)) << "case and separators do not matter";
  EXPECT_EQ(HashedWords(" .\n").size(), 0u);
}

// Runs have the same hash if and only if they consist of the same words.
TEST(HashedWords, DistinguishRuns) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += cat("w", i * 7919 % 13, i % 3 == 0 ? " " : ", ");
  const HashedWords words(text);
  std::vector<std::string> plain;
  for_words(text, [&](std::u32string_view word) { plain.emplace_back(word.begin(), word.end()); });
  for (const size_t n : {1, 2, 5, 16}) {
    std::map<std::string, uint64_t> hashes;
    std::set<uint64_t> different;
    for (size_t i = 0; i + n <= plain.size(); ++i) {
      std::string run;
      for (size_t k = i; k < i + n; ++k) run += plain[k] + " ";
      const uint64_t hash = words.hash(i, n);
      EXPECT_EQ(hashes.emplace(run, hash).first->second, hash) << run;
      different.insert(hash);
    }
    EXPECT_EQ(different.size(), hashes.size()) << n;
  }
  EXPECT_NE(HashedWords("ab c").hash(0, 2), HashedWords("a bc").hash(0, 2));
  EXPECT_NE(HashedWords("a b").hash(0, 2), HashedWords("b a").hash(0, 2));
}

}  // namespace
}  // namespace witan
