#include "witan/tokenizer/models/word_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace witan {
namespace {

using Key = WordKey<4>;

TEST(WordCache, KeysConsistOfWordAndLength) {
  const std::string text = "one word of thirty-one bytes!!! and what is behind it, which does not count";
  for (size_t size = 0; size <= Key::kLongest; ++size)
    EXPECT_EQ(Key::of(std::string_view(text).substr(0, size), text.size()), Key::of(text.substr(0, size), size));
  const std::string zeros(4, '\0');
  EXPECT_FALSE(Key::of(std::string_view(zeros).substr(0, 1), 4) == Key::of(zeros, 4));
}

TEST(WordCache, EntriesBelongToOneWordAndOwner) {
  WordTable<4, 1> table;  // two entries
  const Key word = Key::of("word", 4), other = Key::of("other", 5), third = Key::of("third", 5);
  const auto found = [&](const Key& key, uint32_t owner) {
    const auto* entry = table.find(table.place(key), key, owner);
    return entry ? std::vector<int32_t>(entry->tokens().begin(), entry->tokens().end()) : std::vector<int32_t>();
  };
  const uint32_t owner = WordCache::new_owner(), second = WordCache::new_owner();
  EXPECT_NE(owner, second);
  EXPECT_EQ(found(word, owner), std::vector<int32_t>());
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7}, one = {8};
  table.put(table.place(word), word, owner, ids);
  EXPECT_EQ(found(word, owner), ids);
  EXPECT_EQ(found(word, second), std::vector<int32_t>());
  EXPECT_EQ(found(other, owner), std::vector<int32_t>());
  table.put(table.place(other), other, second, one);
  EXPECT_EQ(found(word, owner), ids);
  EXPECT_EQ(found(other, second), one);
  table.put(table.place(third), third, owner, one);  // replaces the older entry
  EXPECT_EQ(found(word, owner), std::vector<int32_t>());
  EXPECT_EQ(found(third, owner), one);
}

TEST(WordCache, FindsShortTokensByTheirBytes) {
  std::vector<std::string> tokens = {"a", "b", "", std::string(1, '\0'), "fifteen letters", "sixteen letters!", "a"};
  std::vector<int32_t> ids = {0, 3, 4, 5, 6};
  for (int i = 0; i < 100; ++i) {
    ids.push_back(static_cast<int32_t>(tokens.size()));
    tokens.push_back("token " + std::to_string(i));
  }
  const ShortTokens found(tokens, ids);
  const auto id = [&](std::string_view text) { return found.find(WordKey<2>::of(text, text.size())); };
  EXPECT_EQ(id("a"), 0);
  EXPECT_EQ(id("b"), -1);
  EXPECT_EQ(id(""), -1);
  EXPECT_EQ(id(std::string_view("\0", 1)), 3);
  EXPECT_EQ(id("fifteen letters"), 4);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(id("token " + std::to_string(i)), 7 + i);
  EXPECT_EQ(id("token 100"), -1);
}

}  // namespace
}  // namespace witan
