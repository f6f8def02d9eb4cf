#include "witan/data/stats/frequent_ngrams.h"

#include <algorithm>
#include <map>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

TEST(FrequentNgrams, AreExactIfCountersSuffice) {
  FrequentNgrams ngrams(8);
  for (uint64_t number = 1; number <= 8; ++number)
    for (uint64_t times = 0; times < number; ++times) ngrams.add(number, cat("n", number, "-", times));
  EXPECT_EQ(ngrams.added(), 36);
  EXPECT_EQ(ngrams.error(), 0);
  EXPECT_EQ(ngrams.most_frequent(2), (std::vector<FrequentNgram>{{"n8-1", 8}, {"n7-1", 7}}));
  EXPECT_EQ(ngrams.most_frequent(100).size(), 7u) << "a single occurrence is not a repetition";
}

TEST(FrequentNgrams, AreOrderedByTextAtEqualCounts) {
  FrequentNgrams ngrams(8);
  for (const char* text : {"b", "a", "c", "c", "a", "b"}) ngrams.add(static_cast<uint64_t>(text[0]), text);
  EXPECT_EQ(ngrams.most_frequent(3), (std::vector<FrequentNgram>{{"a", 2}, {"b", 2}, {"c", 2}}));
}

// 100,000 Zipf-distributed numbers with thousands of distinct values, counted by 256 counters.
TEST(FrequentNgrams, StayWithinTheirBounds) {
  constexpr size_t kCounters = 256;
  FrequentNgrams ngrams(kCounters);
  std::map<std::string, int64_t> exact;
  const Philox random(3, 1);
  for (uint64_t i = 0; i < 100'000; ++i) {
    const auto number = static_cast<uint64_t>(1 / std::max(random.uniform(i), 1e-4));
    const std::string text = std::to_string(number);
    ngrams.add(number * 0x9E3779B97F4A7C15, text);
    ++exact[text];
  }
  EXPECT_GT(ngrams.error(), 0);
  EXPECT_LE(ngrams.error(), 2 * ngrams.added() / static_cast<int64_t>(kCounters));
  std::map<std::string, int64_t> found;
  for (const FrequentNgram& ngram : ngrams.most_frequent(kCounters)) found[ngram.text] = ngram.count;
  for (const auto& [text, count] : found) {
    EXPECT_LE(count, exact[text]) << text;
    EXPECT_GE(count + ngrams.error(), exact[text]) << text;
  }
  for (const auto& [text, count] : exact)
    if (count > ngrams.error() + 1) {
      EXPECT_TRUE(found.contains(text)) << text << ", " << count << " times";
    }
}

}  // namespace
}  // namespace witan
