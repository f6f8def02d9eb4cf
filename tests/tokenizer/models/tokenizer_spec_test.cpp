#include "witan/tokenizer/models/tokenizer_spec.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

TokenizerSpec of(std::vector<std::string> tokens, const std::vector<int32_t>& added = {}) {
  TokenizerSpec spec;
  spec.tokens = std::move(tokens);
  for (const int32_t id : added) {
    AddedToken token;
    token.id = id;
    token.text = spec.tokens[static_cast<size_t>(id)];
    spec.added.push_back(token);
  }
  return spec;
}

TEST(VocabularyMatch, ComparesCommonIds) {
  EXPECT_TRUE(match_vocabularies(of({"a", "b"}), of({"a", "b"})).same());
  EXPECT_TRUE(match_vocabularies(of({"a", "b"}), of({"a", "b", "c"})).same());
  EXPECT_TRUE(match_vocabularies(of({"a", ""}), of({"a", "x"})).same());
  const VocabularyMatch match = match_vocabularies(of({"a", "b", "c", ""}), of({"a", "c", "b", "d", "e"}));
  EXPECT_EQ(match.common, 3);
  EXPECT_EQ(match.different, 2);
  EXPECT_EQ(match.first, 1);
}

TEST(VocabularyMatch, DistinguishesAddedTokens) {
  const VocabularyMatch named = match_vocabularies(of({"<r>", "a", "<s>"}, {0, 2}), of({"<im>", "a", "<s>"}, {0, 2}));
  EXPECT_EQ(named.different, 0);
  EXPECT_EQ(named.renamed, 1);
  EXPECT_EQ(named.first, 0);
  EXPECT_FALSE(named.same());
  // An ordinary token that is an added one in another vocabulary counts as a different token, and is the first one
  // named.
  const VocabularyMatch other = match_vocabularies(of({"<r>", "a"}, {0}), of({"<im>", "<s>"}, {0, 1}));
  EXPECT_EQ(other.different, 1);
  EXPECT_EQ(other.renamed, 1);
  EXPECT_EQ(other.first, 1);
}

// Tokens "base 0", "base 1", ...
std::vector<std::string> tokens_of(size_t count, const std::string& base = "t") {
  std::vector<std::string> tokens;
  for (size_t id = 0; id < count; ++id) tokens.push_back(base + std::to_string(id));
  return tokens;
}

TEST(VocabularyDigest, DistinguishesOtherVocabulariesFromExtendedOnes) {
  const std::string digest = vocabulary_digest(of(tokens_of(1000)));
  EXPECT_EQ(digest.size(), 16u * 8);
  EXPECT_EQ(vocabulary_digest(of(tokens_of(1000))), digest);
  const DigestMatch extended = match_digest(digest, 1000, of(tokens_of(1100)));
  EXPECT_EQ(extended.common, 16);
  EXPECT_EQ(extended.different, 0);
  EXPECT_FALSE(extended.other());
  std::vector<std::string> renamed = tokens_of(1000);
  renamed[999] = "<tool>";
  EXPECT_EQ(match_digest(digest, 1000, of(renamed)).different, 1);
  EXPECT_FALSE(match_digest(digest, 1000, of(renamed)).other()) << "only reserved tokens were renamed";
  EXPECT_TRUE(match_digest(digest, 1000, of(tokens_of(1000, "u"))).other());
  const DigestMatch smaller = match_digest(digest, 1000, of(tokens_of(200)));
  EXPECT_EQ(smaller.common, 3) << "a block in which one side lacks ids is not compared";
  EXPECT_FALSE(smaller.other());
  EXPECT_EQ(match_digest("", 1000, of(tokens_of(1000))).common, 0);
  // In a small vocabulary, one block is a large part.
  std::vector<std::string> small = tokens_of(300);
  const std::string digest_of_small = vocabulary_digest(of(small));
  std::swap(small[290], small[291]);
  EXPECT_TRUE(match_digest(digest_of_small, 300, of(small)).other());
}

}  // namespace
}  // namespace witan
