#include "witan/data/dedup/shingles.h"

#include <set>

#include "data/data_support.h"
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
  EXPECT_EQ(words("한국어 문장"), (W{U"한국어", U"문장"})) << "Korean has blanks";
  EXPECT_EQ(words("\xF0\x9F\x98\x80 \xF0\xA0\x80\x80"), (W{U"\U00020000"})) << "no emoji, but rare Han";
  EXPECT_EQ(words(" ... \n"), W{});
}

TEST(TextKey, SeesWhatTheNormalizationLeaves) {
  const auto same = [](std::string_view a, std::string_view b, Normalization n) {
    return text_key(a, n) == text_key(b, n);
  };
  const std::string_view a = "The King,\n\tasked.", b = "  The King, asked.\xC2\xA0\n", c = "the king asked";
  EXPECT_FALSE(same(a, b, Normalization::none));
  EXPECT_TRUE(same(a, a, Normalization::none));
  EXPECT_TRUE(same(a, b, Normalization::space)) << "U+00A0 is white space, too";
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

}  // namespace
}  // namespace witan
