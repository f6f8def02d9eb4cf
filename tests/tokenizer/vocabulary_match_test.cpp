#include "witan/tokenizer/vocabulary_match.h"

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

TEST(VocabularyMatch, ComparesTheIdsThatBothUse) {
  EXPECT_TRUE(match_vocabularies(of({"a", "b"}), of({"a", "b"})).same());
  EXPECT_TRUE(match_vocabularies(of({"a", "b"}), of({"a", "b", "c"})).same());
  EXPECT_TRUE(match_vocabularies(of({"a", ""}), of({"a", "x"})).same());
  const VocabularyMatch match = match_vocabularies(of({"a", "b", "c", ""}), of({"a", "c", "b", "d", "e"}));
  EXPECT_EQ(match.common, 3);
  EXPECT_EQ(match.different, 2);
  EXPECT_EQ(match.first, 1);
}

TEST(VocabularyMatch, TellsAddedTokensFromOthers) {
  const VocabularyMatch named = match_vocabularies(of({"<r>", "a", "<s>"}, {0, 2}), of({"<im>", "a", "<s>"}, {0, 2}));
  EXPECT_EQ(named.different, 0);
  EXPECT_EQ(named.renamed, 1);
  EXPECT_EQ(named.first, 0);
  EXPECT_FALSE(named.same());
  // An ordinary token that another vocabulary has an added one for is another token, and the first that is named.
  const VocabularyMatch other = match_vocabularies(of({"<r>", "a"}, {0}), of({"<im>", "<s>"}, {0, 1}));
  EXPECT_EQ(other.different, 1);
  EXPECT_EQ(other.renamed, 1);
  EXPECT_EQ(other.first, 1);
}

}  // namespace
}  // namespace witan
