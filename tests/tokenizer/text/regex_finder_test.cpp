#include "witan/tokenizer/text/regex_finder.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

TEST(RegexFinder, FindsTheLastMatchOrItsFirstGroup) {
  EXPECT_EQ(RegexFinder("[0-9]+", "x").last("1 22 333."), "333");
  EXPECT_EQ(RegexFinder("a(b*)c", "x").last("abbc ac"), "");
  EXPECT_EQ(RegexFinder("a(b)?c", "x").last("abc ac"), "ac") << "the group took no part";
  EXPECT_EQ(RegexFinder("[0-9]*", "x").last("12é"), "") << "an empty match at the end";
  EXPECT_EQ(RegexFinder("z", "x").last("abc"), std::nullopt);
  EXPECT_EQ(RegexFinder("a", "x").last(""), std::nullopt);
  EXPECT_EQ(RegexFinder("\\w+$", "x").last("\xff\xfe word"), "word") << "bytes that are not UTF-8";
}

TEST(RegexFinder, MatchesWholeTexts) {
  const RegexFinder finder("a|ab", "x");
  EXPECT_TRUE(finder.matches("ab"));
  EXPECT_FALSE(finder.matches("abc"));
  EXPECT_FALSE(finder.matches("cab"));
  EXPECT_FALSE(finder.matches("ab\n"));
  EXPECT_TRUE(RegexFinder("", "x").matches(""));
}

TEST(RegexFinder, IsNamedInMessages) {
  const std::string message = message_of<DataError>([] { RegexFinder("(", "reward_regex ="); });
  EXPECT_NE(message.find("reward_regex = \"(\" does not compile"), std::string::npos) << message;
}

}  // namespace
}  // namespace witan
