// golden_test.cpp checks that the tables match Hugging Face's.
#include "witan/tokenizer/text/unicode.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

bool holds(const CharacterRanges& ranges, int32_t c) {
  for (const auto& [first, last] : ranges)
    if (first <= c && c <= last) return true;
  return false;
}

TEST(Unicode, FindsPropertiesByAnyOfTheirNames) {
  EXPECT_EQ(characters_with("Uppercase_Letter"), characters_with("lu"));
  EXPECT_EQ(characters_with(" han "), characters_with("Hani"));
  EXPECT_EQ(characters_with("White_Space"), std::nullopt);
  EXPECT_EQ(characters_with(""), std::nullopt);
  EXPECT_EQ(characters_with("Any"), (CharacterRanges{{0, kCodePoints - 1}}));
}

TEST(Unicode, CategoriesPartitionTheCharacters) {
  std::vector<int> times(kCodePoints);
  for (const char* name : {"L", "M", "N", "P", "S", "Z", "C"}) {
    const CharacterRanges ranges = characters_with(name).value();
    for (const auto& [first, last] : ranges)
      for (int32_t c = first; c <= last; ++c) ++times[static_cast<size_t>(c)];
  }
  EXPECT_EQ(times, std::vector<int>(kCodePoints, 1));
}

TEST(Unicode, HasTheStatedVersions) {
  const CharacterRanges letters = characters_with("L").value(), unassigned = characters_with("Cn").value();
  EXPECT_TRUE(holds(letters, 0x1C89));      // since 16.0
  EXPECT_TRUE(holds(letters, 0x2EBF0));     // since 15.1
  EXPECT_TRUE(holds(unassigned, 0x323B0));  // since 17.0
  EXPECT_TRUE(is_in_unicode_9(0x1E943));
  EXPECT_TRUE(is_in_unicode_9(0x1E94A));
  EXPECT_FALSE(is_in_unicode_9(0x1E94B));  // since 12.0
  EXPECT_FALSE(is_in_unicode_9(0x0D3B));   // since 10.0
  EXPECT_FALSE(is_in_unicode_9(0x1C89));
}

}  // namespace
}  // namespace witan
