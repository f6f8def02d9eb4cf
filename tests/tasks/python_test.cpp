#include "witan/tasks/python.h"

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

// Parsing the output of str() gives the value again.
TEST(PythonLiteral, ReadsWhatTemplatesPrint) {
  for (const char* text : {"['a', 'b']", "[\"it's\", 'say \"so\"']", "[]", "['é', '東京', '\\n\\t\\\\']",
                           "[1, -2, 2.5]", "[True, False, None]", "[['a'], ('b', 'c')]", "('a',)", "'x'"})
    EXPECT_EQ(again(text), text);
}

TEST(PythonLiteral, ReadsOtherSpellingsOfTheSame) {
  EXPECT_EQ(again(" [ 'a' 'b' ,\n\"c\", ] "), "['ab', 'c']");
  EXPECT_EQ(again("'\\x41\\u00e9\\U0001F600\\q\\''"), "\"Aé😀\\\\q'\"");
}

TEST(PythonLiteral, RefusesOtherText) {
  EXPECT_EQ(refusal_of_literal("[a]"),
            "doc_to_choice gives [a], which is not a list of choices: byte 1: a string must stand in quotes");
  EXPECT_THAT(refusal_of_literal("['a'"), HasSubstr("byte 4: expected a comma or the list's end"));
  EXPECT_THAT(refusal_of_literal("['a"), HasSubstr("a string is not closed"));
  EXPECT_THAT(refusal_of_literal("['a'] b"), HasSubstr("text follows the value"));
  EXPECT_THAT(refusal_of_literal("'\\u12'"), HasSubstr("an escape is cut short"));
  EXPECT_THAT(refusal_of_literal("'\\ud800'"), HasSubstr("an escape is not a valid character"));
  EXPECT_THAT(refusal_of_literal(std::string(100, '[')), HasSubstr("lists are nested too deeply"));
  EXPECT_THAT(refusal_of_literal(""), HasSubstr("a string must stand in quotes"));
}

using Numbers = std::vector<size_t>;

// Printed by Python 3.11: random.Random(SEED).sample(range(SIZE), COUNT), one call after the other.
TEST(PythonRandom, SamplesAsPython) {
  PythonRandom one(1234);
  EXPECT_EQ(one.sample(12, 3), (Numbers{7, 1, 0}));
  EXPECT_EQ(one.sample(12, 3), (Numbers{1, 9, 0}));
  EXPECT_EQ(one.sample(1000, 4), (Numbers{687, 709, 85, 100}));
  EXPECT_EQ(one.sample(50, 7), (Numbers{49, 22, 15, 1, 46, 45, 48}));
  EXPECT_EQ(one.sample(5, 5), (Numbers{4, 3, 2, 1, 0}));
  EXPECT_EQ(one.sample(5, 0), Numbers());
  EXPECT_EQ(PythonRandom(0).sample(100000, 3), (Numbers{50494, 99346, 55125}));
}

TEST(PythonRandom, RefillsItsState) {
  PythonRandom seven(7);
  Numbers last;
  for (int i = 0; i < 300; ++i) last = seven.sample(30, 5);
  EXPECT_EQ(last, (Numbers{11, 10, 4, 1, 6}));
}

}  // namespace
}  // namespace witan
