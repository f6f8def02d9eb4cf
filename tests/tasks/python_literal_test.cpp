#include "witan/tasks/python_literal.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

std::string again(const std::string& text) {
  return repr(parse_python_literal(text, "t"));
}
std::string refusal_of_literal(const std::string& text) {
  return test::message_of<DataError>([&] { parse_python_literal(text, "doc_to_choice"); });
}

// What str() of a value writes is read as that value.
TEST(PythonLiteral, ReadsWhatTemplatesPrint) {
  for (const char* text : {"['a', 'b']", "[\"it's\", 'say \"so\"']", "[]", "['é', '東京', '\\n\\t\\\\']",
                           "[1, -2, 2.5]", "[True, False, None]", "[['a'], ('b', 'c')]", "('a',)", "'x'"})
    EXPECT_EQ(again(text), text);
}

TEST(PythonLiteral, ReadsOtherSpellingsOfTheSame) {
  EXPECT_EQ(again(" [ 'a' 'b' ,\n\"c\", ] "), "['ab', 'c']");
  EXPECT_EQ(again("'\\x41\\u00e9\\U0001F600\\q\\''"), "\"Aé😀\\\\q'\"");
}

TEST(PythonLiteral, RefusesAllElse) {
  EXPECT_EQ(refusal_of_literal("[a]"),
            "doc_to_choice gives [a], which is not a list of choices: byte 1: a string must stand in quotes");
  EXPECT_THAT(refusal_of_literal("['a'"), HasSubstr("byte 4: expected a comma or the list's end"));
  EXPECT_THAT(refusal_of_literal("['a"), HasSubstr("a string is not closed"));
  EXPECT_THAT(refusal_of_literal("['a'] b"), HasSubstr("text follows the value"));
  EXPECT_THAT(refusal_of_literal("'\\u12'"), HasSubstr("an escape is cut short"));
  EXPECT_THAT(refusal_of_literal("'\\ud800'"), HasSubstr("an escape is no character"));
  EXPECT_THAT(refusal_of_literal(std::string(100, '[')), HasSubstr("lists are nested too deeply"));
  EXPECT_THAT(refusal_of_literal(""), HasSubstr("a string must stand in quotes"));
}

}  // namespace
}  // namespace witan
