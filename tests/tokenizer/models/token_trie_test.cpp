#include "witan/tokenizer/models/token_trie.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace witan {
namespace {

TEST(TokenTrie, FindsTheLongestBeginning) {
  std::mt19937 random(5);
  const auto text = [&](size_t most, unsigned letters) {
    std::string made;
    for (size_t left = 1 + random() % most; left > 0; --left) made += static_cast<char>(random() % letters * 85);
    return made;
  };
  std::set<std::string> all;
  while (all.size() < 600) all.insert(text(7, 4));
  for (int byte = 0; byte < 256; byte += 3) all.insert(std::string("\0x", 2) + static_cast<char>(byte));
  all.insert(std::string(70'000, 'l'));
  const std::vector<std::string> tokens(all.begin(), all.end());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (i % 5 != 0) ids.push_back(static_cast<int32_t>(i));
  TokenTrie trie;
  ASSERT_TRUE(trie.build(tokens, ids));
  for (int i = 0; i < 20'000; ++i) {
    const std::string given = i < static_cast<int>(tokens.size()) ? tokens[static_cast<size_t>(i)] : text(12, 5);
    int32_t longest = -1;
    for (const int32_t id : ids)
      if (const std::string& token = tokens[static_cast<size_t>(id)]; given.starts_with(token))
        if (longest < 0 || token.size() > tokens[static_cast<size_t>(longest)].size()) longest = id;
    ASSERT_EQ(trie.longest_prefix(given), longest) << i;
  }
  EXPECT_EQ(trie.longest_prefix(""), -1);
  EXPECT_EQ(TokenTrie().longest_prefix(std::string_view("\0", 1)), -1);
}

TEST(TokenTrie, RefusesTooManyNodes) {
  TokenTrie trie;
  EXPECT_FALSE(trie.build({std::string(1 << 24, 'a'), "b"}, {0, 1}));
  EXPECT_EQ(trie.longest_prefix("b"), -1);
}

}  // namespace
}  // namespace witan
