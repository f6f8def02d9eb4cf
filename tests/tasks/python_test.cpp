#include "witan/tasks/python.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "tasks/tasks_support.h"
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

// Parsing the output of str() gives the value back.
TEST(PythonLiteral, ReadsOutputOfTemplates) {
  for (const char* text : {"['a', 'b']", "[\"it's\", 'say \"so\"']", "[]", "['é', '東京', '\\n\\t\\\\']",
                           "[1, -2, 2.5]", "[True, False, None]", "[['a'], ('b', 'c')]", "('a',)", "'x'"})
    EXPECT_EQ(again(text), text);
}

TEST(PythonLiteral, ReadsEquivalentSpellings) {
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

// Expected values of Python 3.11: consecutive calls of random.Random(SEED).sample(range(SIZE), COUNT).
TEST(PythonRandom, SamplesLikePython) {
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

using ::testing::HasSubstr;
using testing::put;

class YamlFile : public ::testing::Test {
 protected:
  std::string read(const std::string& text) { return repr(read_yaml_file(put(folder_ / "a.yaml", text))); }
  std::string refusal(const std::string& text) {
    put(folder_ / "a.yaml", text);
    return test::message_of<DataError>([&] { read_yaml_file(folder_ / "a.yaml"); });
  }
  test::TempFolder folder_;
};

TEST_F(YamlFile, ScalarsHaveTypes) {
  EXPECT_EQ(read("a: 1\nb: 2.5\nc: true\nd: ~\ne:\nf: text\ng: '1'\nh: \"true\"\ni: no\nj: 1.0.0\nk: nan\n"),
            "{'a': 1, 'b': 2.5, 'c': True, 'd': None, 'e': None, 'f': 'text', 'g': '1', 'h': 'true', 'i': 'no', 'j': "
            "'1.0.0', 'k': 'nan'}");
  EXPECT_EQ(read("a: [x, 'y z']\nb: {c: [1]}\n"), "{'a': ['x', 'y z'], 'b': {'c': [1]}}");
  EXPECT_EQ(read("a: |\n  one\n  two\nb: \"\\n\\n\"\n"), "{'a': 'one\\ntwo\\n', 'b': '\\n\\n'}");
  EXPECT_EQ(read("a: 1\nb: 2\na: 3\n"), "{'a': 3, 'b': 2}") << "as Python's";
  EXPECT_EQ(read("a: !function utils.f\n"), "{'a': {'!function': 'utils.f'}}");
}

TEST_F(YamlFile, OwnKeysOverrideIncludedOnes) {
  put(folder_ / "_base.yaml", "a: 1\nb: 2\n");
  put(folder_ / "_more.yaml", "b: 3\nc: 4\n");
  EXPECT_EQ(read("include: _base.yaml\nb: 5\n"), "{'a': 1, 'b': 5}");
  EXPECT_EQ(read("c: 6\ninclude: [_base.yaml, _more.yaml]\n"), "{'a': 1, 'b': 3, 'c': 6}");
}

TEST_F(YamlFile, RefusalsNameFileAndLine) {
  EXPECT_THAT(refusal("a: 1\nb: [\n"), HasSubstr("a.yaml:3: not YAML: "));
  EXPECT_THAT(refusal("- a\n"), HasSubstr("a.yaml: a task is a mapping of keys, not a list"));
  EXPECT_THAT(refusal("a: \"\xff\"\n"), HasSubstr("a.yaml: text that is not UTF-8"));
  EXPECT_THAT(refusal("include: a.yaml\n"), HasSubstr("files include one another more than 8 deep"));
  EXPECT_THAT(refusal("? [a]\n: 1\n"), HasSubstr("a key that is a list or a mapping is not supported"));
  EXPECT_THROW(read_yaml_file(folder_ / "none.yaml"), Error);
}

TEST_F(YamlFile, AliasesEqualTheirAnchors) {
  EXPECT_EQ(read("a: &x [1, 2]\nb: *x\n"), "{'a': [1, 2], 'b': [1, 2]}");
  EXPECT_THAT(refusal("a: &x [*x, 1]\n"), HasSubstr("a.yaml: lists and mappings are nested more than 100 deep"));
  EXPECT_THAT(refusal("a: &x {b: *x}\n"), HasSubstr("does an alias (*NAME) occur within its own anchor"));
  std::string doubled = "x0: &x0 [1]\n";
  for (int i = 1; i < 64; ++i) doubled += cat("x", i, ": &x", i, " [*x", i - 1, ", *x", i - 1, "]\n");
  EXPECT_THAT(refusal(doubled), HasSubstr("more than 1048576 values, those of aliases (*NAME) included"));
}

}  // namespace
}  // namespace witan
