#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/tokenizer/text/regex_splitter.h"

namespace witan {
namespace {

std::string refusal(std::string_view regex) {
  return test::message_of<DataError>([&] { with_own_unicode(regex); });
}

void expect_refusal(std::string_view regex, std::string_view construct, std::string_view way_out) {
  const std::string got = refusal(regex);
  EXPECT_NE(got.find(construct), std::string::npos) << regex << ": " << got;
  EXPECT_NE(got.find(way_out), std::string::npos) << regex << ": " << got;
}

TEST(RegexTranslation, CopiesPartsIndependentOfUnicodeTables) {
  for (const char* regex :
       {"", "a+|b{1,3}+", "'s|\\.\\\\[a-z\\]]", "(?i:'s|'T)|(?<n>x)\\k<n>", "[^\\r\\n[0-9]&&[^5]]",
        "(?=x)(?!y)(?<=z)(?>a)", "(?#not [a bracket)x", "[-a]|[a-]", "\\h\\N\\O\\K\\G", "日[一-龥]"})
    EXPECT_EQ(with_own_unicode(regex), regex);
}

TEST(RegexTranslation, ExpandsProperties) {
  EXPECT_EQ(with_own_unicode("\\p{Zl}"), "[\\x{2028}]");
  EXPECT_EQ(with_own_unicode("\\P{Zl}"), "[^\\x{2028}]");
  EXPECT_EQ(with_own_unicode("\\p{^ line_Separator }+"), "[^\\x{2028}]+");
  EXPECT_EQ(with_own_unicode("[a\\p{Zl}&&[^\\P{Zp}]]"), "[a[\\x{2028}]&&[^[^\\x{2029}]]]");
  EXPECT_EQ(with_own_unicode("[[:^blank:]-]").substr(0, 6), "[[^\\x{");
  EXPECT_EQ(with_own_unicode("(?i:\\p{Zl})(?i)\\p{Zl}"), "(?i:(?-i:[\\x{2028}]))(?i)(?-i:[\\x{2028}])");
  EXPECT_EQ(with_own_unicode("(a(?i)b)\\p{Zl}"), "(a(?i)b)[\\x{2028}]");  // the option ends with its group
  EXPECT_EQ(with_own_unicode("\\\\p{L}"), "\\\\p{L}");                    // a backslash, not a property
  EXPECT_EQ(with_own_unicode("\\s").substr(0, 15), "[\\x{9}-\\x{D}\\x{");
}

TEST(RegexTranslation, ErrorsNameTheConstructAndSuggestAFix) {
  expect_refusal("a|\\p{Age=6.0}", "the property \"Age=6.0\" at byte 2", "general categories");
  expect_refusal("\\p{L", "\\p{ without }", "write the }");
  expect_refusal("\\X", "\\X (grapheme clusters)", "write the characters meant");
  expect_refusal("\\n*\\R", "\\R (any line break)", "write (?:\\r\\n|");
  expect_refusal("\\b+", "a repeated word boundary", "remove the repetition");
  expect_refusal("(?x: a )", "the option x", "remove it");
  expect_refusal("(?W:\\w)", "the option W", "remove it");
  expect_refusal("(*FAIL)", "a callout", "remove it");
  expect_refusal("(?{x})", "a callout", "remove it");
  expect_refusal("[]a]", "a bracket that starts with ]", "write \\]");
  expect_refusal("[[:letter:]]", "[: that begins no POSIX bracket", "write \\[ or \\:");
  expect_refusal("[a-\\w]", "a range that starts or ends with a class", "write \\-");
  expect_refusal("[\\w-z]", "a range that starts or ends with a class", "write \\-");
  expect_refusal("(?i:[\\p{Lu}])", "upper- or lower-case letters in a case-insensitive group", "outside of (?i)");
  expect_refusal("(?i)é", "non-ASCII characters in a case-insensitive group", "without (?i)");
  expect_refusal("\\ca", "control and meta characters", "write \\x{");
  expect_refusal("\xFF", "invalid UTF-8", "write it as UTF-8");
  expect_refusal(std::string(70 << 10, 'a'), "more than 64 KiB", "shorter");
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "\\p{L}";
  expect_refusal(many, "expands to more than 8 MiB", "shorter");
  expect_refusal(std::string(300, '['), "200 deep", "flatter");
  EXPECT_NE(refusal("\\X").find("in the tokenizer.json"), std::string::npos);
}

TEST(RegexTranslation, AcceptsSimilarText) {
  for (const char* regex : {"[\\w\\-z]", "[-\\w]", "[\\w-]", "[^-\\w]", "[\\]a]", "(?i-m:a)", "(?-i)é", "(?i:a)é",
                            "[a&&-\\w]", "\\p{Hani}", "[\\b]+", "(?i:[\\p{L}\\w])"})
    EXPECT_NO_THROW(RegexSplitter{regex}) << regex;
}

}  // namespace
}  // namespace witan
