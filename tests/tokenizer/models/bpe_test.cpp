#include "witan/tokenizer/models/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

// All bytes as tokens 0 … 255, then one token per merge.
TokenizerSpec spec_with_merges(const std::vector<std::pair<int32_t, int32_t>>& merges) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges) {
    spec.merges.push_back({left, right, static_cast<int32_t>(spec.tokens.size())});
    spec.tokens.push_back(spec.tokens[static_cast<size_t>(left)] + spec.tokens[static_cast<size_t>(right)]);
  }
  return spec;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  bpe.encode_word(word, ids);
  return ids;
}

// The definition: merge the leftmost pair of the lowest rank until none is left.
std::vector<int32_t> encode_by_definition(const TokenizerSpec& spec, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
  for (bool merged = true; merged;) {
    merged = false;
    for (const Merge& m : spec.merges) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i)
        if (ids[i] == m.left && ids[i + 1] == m.right) {
          ids[i] = m.result;
          ids.erase(ids.begin() + static_cast<ptrdiff_t>(i) + 1);
          merged = true;
        }
      if (merged) break;
    }
  }
  return ids;
}

TEST(Bpe, MergesByRankThenFromTheLeft) {
  const TokenizerSpec spec = spec_with_merges({{'b', 'c'}, {'a', 'b'}, {'a', 'a'}, {258, 258}});
  const Bpe bpe(spec);  // bc, ab, aa, aaaa
  EXPECT_EQ(encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(encode(bpe, "abab"), (std::vector<int32_t>{257, 257}));
  EXPECT_EQ(encode(bpe, "aaa"), (std::vector<int32_t>{258, 'a'}));
  EXPECT_EQ(encode(bpe, "aaaaa"), (std::vector<int32_t>{259, 'a'}));
  EXPECT_TRUE(encode(bpe, "").empty());
  EXPECT_EQ(encode(bpe, std::string_view("\xFF\0", 2)), (std::vector<int32_t>{255, 0}));
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  std::mt19937 random(3);
  for (int model = 0; model < 20; ++model) {
    std::vector<std::pair<int32_t, int32_t>> merges;
    for (int i = 0; i < 40; ++i) {
      const auto any = [&] {
        const auto pick = static_cast<int32_t>(random() % (3 + merges.size()));
        return pick < 3 ? 'a' + pick : 256 + pick - 3;
      };
      const std::pair<int32_t, int32_t> pair(any(), any());
      if (std::find(merges.begin(), merges.end(), pair) == merges.end()) merges.push_back(pair);
    }
    const TokenizerSpec spec = spec_with_merges(merges);
    const Bpe bpe(spec);
    for (const size_t length : {1, 2, 3, 7, 20, 47, 48, 49, 50, 100, 200}) {
      std::string word;
      while (word.size() < length) word += static_cast<char>('a' + random() % 3);
      ASSERT_EQ(encode(bpe, word), encode_by_definition(spec, word)) << "model " << model << ", word " << word;
    }
  }
}

TEST(Bpe, MergesLongRunsOfOneLetterInLinearTime) {
  const TokenizerSpec spec = spec_with_merges({{'a', 'a'}, {256, 256}, {257, 257}});
  const Bpe bpe(spec);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(bpe, std::string(512 * 1024, 'a')), std::vector<int32_t>(64 * 1024, 258));
  // Quadratic merging takes minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Bpe, IgnoreMergesKeepsWholeTokens) {
  TokenizerSpec spec = spec_with_merges({{'a', 'b'}});
  spec.tokens.emplace_back("abc");  // 257: no merge makes it
  EXPECT_EQ(encode(Bpe(spec), "abc"), (std::vector<int32_t>{256, 'c'}));
  spec.ignore_merges = true;
  EXPECT_EQ(encode(Bpe(spec), "abc"), (std::vector<int32_t>{257}));
  EXPECT_EQ(encode(Bpe(spec), "abcab"), (std::vector<int32_t>{256, 'c', 256}));
  spec.added.push_back({257, "abc"});  // special tokens are never made from plain text
  EXPECT_EQ(encode(Bpe(spec), "abc"), (std::vector<int32_t>{256, 'c'}));
}

TEST(Bpe, RefusesVocabulariesWithoutEveryByte) {
  TokenizerSpec spec = spec_with_merges({});
  spec.tokens[65].clear();
  const std::string message = test::message_of<DataError>([&] { const Bpe bpe(spec); });
  EXPECT_NE(message.find("no token for the byte 65"), std::string::npos) << message;
}

// Like Hugging Face's and llama.cpp's readers of vocabularies without them.
TEST(Bpe, OmitsBytesOfNoCharacterWithoutToken) {
  TokenizerSpec spec = spec_with_merges({{'a', 'b'}});
  for (const int byte : {0xC0, 0xC1, 0xF1, 0xF2, 0xFF}) spec.tokens[static_cast<size_t>(byte)].clear();
  const Bpe bpe(spec);
  EXPECT_EQ(encode(bpe,
                   "ab\xC0"
                   "ab\xFF\xF1"),
            (std::vector<int32_t>{256, 256}));
  EXPECT_EQ(encode(bpe,
                   "a\xC0"
                   "b"),
            (std::vector<int32_t>{'a', 'b'}));
  spec.tokens[0xF3].clear();  // of tag characters, which are part of flags
  EXPECT_THAT(test::message_of<DataError>([&] { const Bpe damaged(spec); }), ::testing::HasSubstr("the byte 243"));
}

}  // namespace
}  // namespace witan
