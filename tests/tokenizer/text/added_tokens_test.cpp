#include "witan/tokenizer/text/added_tokens.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

struct Found {
  size_t begin, length;
  bool operator==(const Found&) const = default;
};

std::optional<Found> find(const AddedToken& token, std::string_view text, size_t from = 0, bool allow_special = true) {
  AddedTokenMatcher matcher;
  matcher.add(token.text, token);
  const auto match = matcher.find(text, from, from, allow_special);
  return match ? std::optional(Found{match->begin, match->end - match->begin}) : std::nullopt;
}

TEST(AddedTokens, StripFlagsIncludeWhiteSpace) {
  EXPECT_EQ(find({.text = "<x>", .lstrip = true}, "a \u3000<x> b"), (Found{1, 7}));
  EXPECT_EQ(find({.text = "<x>", .lstrip = true}, "a  <x>", 2), (Found{2, 4}));  // nothing before `from`
  EXPECT_EQ(find({.text = "<x>", .rstrip = true}, "a <x> \n\u00A0b"), (Found{2, 7}));
  EXPECT_EQ(find({.text = "<x>"}, "a <x> b"), (Found{2, 3}));
  AddedTokenMatcher matcher;
  matcher.add("<l>", {.text = "<l>", .lstrip = true});
  EXPECT_EQ(matcher.find("<r>  <l>", 3, 5, true)->begin, 5u) << "the token before includes the spaces";
}

TEST(AddedTokens, SingleWordsMatchWholeWordsOnly) {
  const AddedToken word{.text = "ab", .single_word = true};
  EXPECT_EQ(find(word, "xab abx ab"), (Found{8, 2}));
  EXPECT_EQ(find(word, "\u00E9ab, (ab)"), (Found{7, 2}));
  EXPECT_EQ(find(word, "ab_"), std::nullopt);
  EXPECT_EQ(find({.text = "--", .single_word = true}, "a---"), std::nullopt)
      << "the search does not continue within it";
}

TEST(AddedTokens, DoesNotSearchWithinSkippedTokens) {
  AddedTokenMatcher matcher;
  matcher.add("<|end|>", {.id = 1, .text = "<|end|>"});
  matcher.add("end", {.id = 2, .text = "end", .special = false});
  EXPECT_EQ(matcher.find("<|end|> end", 0, 0, true)->id, 1);
  const auto match = matcher.find("<|end|> end", 0, 0, false);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->id, 2);
  EXPECT_EQ(match->begin, 8u);  // not inside the special token, as in the reference
}

}  // namespace
}  // namespace witan
