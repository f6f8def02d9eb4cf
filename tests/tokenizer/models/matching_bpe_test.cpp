#include "witan/tokenizer/models/matching_bpe.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "witan/tokenizer/models/pair_ranks.h"
#include "witan/tokenizer/models/token_trie.h"

namespace witan {
namespace {

// A vocabulary of bytes and random tokens of three letters. With `by_token`, as in rank files, each pair of tokens that
// forms a token merges, with the rank of that token.
TokenizerSpec random_spec(std::mt19937& random, bool by_token) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  std::set<std::string> known(spec.tokens.begin(), spec.tokens.end());
  const auto any = [&] {
    const size_t pick = random() % (3 + spec.tokens.size() - 256);
    return static_cast<int32_t>(pick < 3 ? 'a' + pick : 256 + pick - 3);
  };
  while (spec.tokens.size() < 256 + 60) {
    const int32_t left = any(), right = any();
    std::string text = spec.tokens[static_cast<size_t>(left)] + spec.tokens[static_cast<size_t>(right)];
    if (text.size() > 12 || !known.insert(text).second) continue;
    if (!by_token) spec.merges.push_back({left, right, static_cast<int32_t>(spec.tokens.size())});
    spec.tokens.push_back(std::move(text));
  }
  if (!by_token) return spec;
  const auto size = static_cast<int32_t>(spec.tokens.size());
  for (int32_t result = 256; result < size; ++result)
    for (int32_t left = 0; left < size; ++left)
      for (int32_t right = 0; right < size; ++right)
        if (spec.tokens[static_cast<size_t>(left)] + spec.tokens[static_cast<size_t>(right)] ==
            spec.tokens[static_cast<size_t>(result)]) {
          spec.merges.push_back({left, right, result});
          spec.merge_ranks.push_back(static_cast<uint32_t>(result));
        }
  return spec;
}

std::array<int32_t, 256> bytes() {
  std::array<int32_t, 256> ids;
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// The definition: merge the leftmost pair of the lowest rank until none is left.
std::vector<int32_t> encode_by_definition(const MergeTable& merges, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char byte : word) ids.push_back(static_cast<uint8_t>(byte));
  for (;;) {
    size_t best = 0;
    uint32_t rank = MergeTable::kNone;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (merges.find(ids[i], ids[i + 1]).rank < rank) rank = merges.find(ids[best = i], ids[i + 1]).rank;
    if (rank == MergeTable::kNone) return ids;
    ids[best] = merges.find(ids[best], ids[best + 1]).result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// The tokens of each word; empty for words that must be merged.
std::vector<std::optional<std::vector<int32_t>>> encode(const MatchingBpe& bpe, const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> room;
  std::vector<NewWord> words;
  for (const std::string& text : texts) {
    room.emplace_back(text.size());
    words.push_back({text, room.back().data()});
  }
  bpe.encode(words);
  std::vector<std::optional<std::vector<int32_t>>> all;
  for (const NewWord& word : words) {
    all.emplace_back();
    if (word.is_encoded) all.back().emplace(word.tokens, word.tokens + word.count);
  }
  return all;
}

// Encodes random words in a batch; returns how many of them had to be merged.
int compare(const TokenizerSpec& spec, std::mt19937& random) {
  const MergeTable merges(spec.merges, spec.merge_ranks);
  const auto bpe = MatchingBpe::make(spec, merges, bytes());
  EXPECT_TRUE(bpe);
  for (int32_t id = 0; id < static_cast<int32_t>(spec.tokens.size()); ++id)
    if (bpe->is_encoding_of_its_text(id)) {
      EXPECT_EQ(encode_by_definition(merges, spec.tokens[static_cast<size_t>(id)]), std::vector<int32_t>{id});
    }
  std::vector<std::string> words;
  for (size_t length = 0; length < 120; ++length) {
    words.emplace_back();
    while (words.back().size() < length) words.back() += static_cast<char>('a' + random() % 3);
  }
  const auto encoded = encode(*bpe, words);
  int merged = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (encoded[i]) {
      EXPECT_EQ(*encoded[i], encode_by_definition(merges, words[i])) << words[i];
    } else {
      ++merged;
    }
  }
  return merged;
}

TEST(MatchingBpe, FollowsTheDefinition) {
  std::mt19937 random(11);
  int merged = 0;
  for (int model = 0; model < 60; ++model) merged += compare(random_spec(random, model % 2 == 1), random);
  EXPECT_LT(merged, 60 * 120 / 4);
}

// Merges in random order, so that many precede those of their parts.
TEST(MatchingBpe, FollowsTheDefinitionForEarlyMerges) {
  std::mt19937 random(12);
  int merged = 0;
  for (int model = 0; model < 60; ++model) {
    TokenizerSpec spec = random_spec(random, false);
    for (int swaps = 1 + model / 4; swaps > 0; --swaps)
      std::swap(spec.merges[random() % spec.merges.size()], spec.merges[random() % spec.merges.size()]);
    merged += compare(spec, random);
  }
  EXPECT_GT(merged, 0);
  EXPECT_LT(merged, 60 * 120);
}

// abc has a part made by a later merge: by rank alone it would never be found.
TEST(MatchingBpe, LeavesEarlyMergesToMerging) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"bc", "abc", "bcd"}) spec.tokens.emplace_back(token);
  spec.merges = {{'a', 256, 257}, {'b', 'c', 256}, {256, 'd', 258}};
  const MergeTable merges(spec.merges, {});
  const auto bpe = MatchingBpe::make(spec, merges, bytes());
  ASSERT_TRUE(bpe);
  EXPECT_FALSE(bpe->is_encoding_of_its_text(257));
  const auto encoded = encode(*bpe, {"abc", "xabcd", "bcd", "bca"});
  EXPECT_FALSE(encoded[0]);
  EXPECT_FALSE(encoded[1]);
  EXPECT_EQ(encoded[2], std::vector<int32_t>{258});
  EXPECT_EQ(encoded[3], (std::vector<int32_t>{256, 'a'}));
}

TEST(MatchingBpe, RefusesTokensThatAreNoConcatenation) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.emplace_back(1, static_cast<char>(byte));
  spec.tokens.emplace_back("xy");
  spec.merges = {{'a', 'b', 256}};
  EXPECT_FALSE(MatchingBpe::make(spec, MergeTable(spec.merges, {}), bytes()));
  std::array<int32_t, 256> incomplete = bytes();
  incomplete[7] = -1;
  EXPECT_FALSE(MatchingBpe::make(spec, MergeTable({}, {}), incomplete));
}

TEST(PairRanks, KeepTheLastRankOfAPair) {
  std::mt19937 random(3);
  const int32_t tokens = 300;
  const auto token = [&] { return static_cast<int32_t>(random() % tokens); };
  std::map<std::pair<int32_t, int32_t>, uint64_t> expected;
  PairRanks ranks(2000, tokens);
  for (int i = 0; i < 2000; ++i) {
    const int32_t left = token(), right = token();
    const uint64_t rank = random() % 100'000;
    expected[{left, right}] = rank;
    ranks.put(left, right, rank);
  }
  for (int32_t left = 0; left < tokens; ++left)
    for (int32_t right = 0; right < tokens; ++right) {
      const auto found = expected.find({left, right});
      ASSERT_EQ(ranks.find(left, right), found == expected.end() ? PairRanks::kNone : found->second);
      if (found != expected.end()) {
        ASSERT_TRUE(ranks.may_have(left, right));
      }
    }
}

TEST(PairRanks, ReportPairsWithoutRoom) {
  const PairRanks ranks(10, (1 << 20) - 1);  // 24 bits remain
  EXPECT_TRUE(ranks.has_room_for((1 << 24) - 2));
  EXPECT_FALSE(ranks.has_room_for((1 << 24) - 1));
  EXPECT_EQ(PairRanks().find(1, 2), PairRanks::kNone);
}

TEST(TokenTrie, FindsTheLongestPrefix) {
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
