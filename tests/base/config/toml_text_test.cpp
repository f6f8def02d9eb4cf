#include "witan/base/config/toml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string rewritten(std::string_view toml) {
  return ascii_toml(toml, "c.toml");
}
std::string refused(std::string_view toml) {
  return test::message_of<ConfigError>([&] { rewritten(toml); });
}

TEST(AsciiToml, LeavesAsciiAsItIs) {
  for (const char* text : {"", "a = 1 # one\n[t]\n\"b.c\" = [1, 2]\r\n", "a = \"x\\\"y\\\\\" # \"", "a = \"\"\nb = 1",
                           "a = \"\"\"\n# text\\\n  on \\\" \n\"\"\"\n", "a = \"unfinished\nb = \"", "a = \"\\"})
    EXPECT_EQ(rewritten(text), text);
}

TEST(AsciiToml, EscapesLettersOfStrings) {
  EXPECT_EQ(rewritten("a = \"\u00e9\"\n\"\u3042\" = '\U0001F600'"),
            "a = \"\\U000000E9\"\n\"\\U00003042\" = \"\\U0001F600\"");
  EXPECT_EQ(rewritten("a = \"\"\"\\\n \ufef7\"\"\""), "a = \"\"\"\\\n \\U0000FEF7\"\"\"");
}

TEST(AsciiToml, MakesLiteralStringsBasic) {
  EXPECT_EQ(rewritten(R"(a = 'C:\new "x" # no' # '\)"), R"(a = "C:\\new \"x\" # no" # '\)");
  EXPECT_EQ(rewritten("a = ''\nb = ''''it''s''''\nc = 1"), "a = \"\"\nb = \"\"\"'it''s'\"\"\"\nc = 1");
  EXPECT_EQ(rewritten("a = '''\n\\'''''"), "a = \"\"\"\n\\\\''\"\"\"");
}

TEST(AsciiToml, EndsMultiLineStringsAtTheirLastQuote) {
  EXPECT_EQ(rewritten(R"(a = """"b"""""
c = 'd')"),
            R"(a = """\"b\"\""""
c = "d")");
}

TEST(AsciiToml, ReplacesLettersInCommentsByQuestionMarks) {
  EXPECT_EQ(rewritten("# caf\u00e9 \"\u3042\na = 1 # 'b\n"), "# caf? \"?\na = 1 # 'b\n");
}

TEST(AsciiToml, DropsAByteOrderMark) {
  EXPECT_EQ(rewritten("\uFEFFa = 1"), "a = 1");
}

TEST(AsciiToml, RefusesLettersElsewhere) {
  EXPECT_EQ(refused("a = \"\"\"\n\u00e9\"\"\"\n\u00e9 = 1"),
            "c.toml:3: not valid TOML: \u00e9 stands outside of quotes and of comments");
  EXPECT_THAT(refused("a = \"\\\u00e9\""), StartsWith("c.toml:1: not valid TOML: unknown escape sequence"));
  EXPECT_EQ(refused("a = 1\nb = \"\xFF\""), "c.toml:2: not valid TOML: the text is not UTF-8");
}

TEST(AsciiToml, LimitsThePartsOfAKey) {
  std::string key = "k";
  for (int i = 0; i < 1000; ++i) key += ".k";
  EXPECT_THAT(refused("a = 1\n" + key + " = 1"), HasSubstr("c.toml:2: a key of more than 64 parts"));
}

}  // namespace
}  // namespace witan
