#include "witan/tasks/yaml_file.h"

#include <gmock/gmock.h>

#include "tasks/tasks_support.h"

namespace witan {
namespace {

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

TEST_F(YamlFile, ScalarsHaveTheirTypes) {
  EXPECT_EQ(read("a: 1\nb: 2.5\nc: true\nd: ~\ne:\nf: text\ng: '1'\nh: \"true\"\ni: no\nj: 1.0.0\nk: nan\n"),
            "{'a': 1, 'b': 2.5, 'c': True, 'd': None, 'e': None, 'f': 'text', 'g': '1', 'h': 'true', 'i': 'no', 'j': "
            "'1.0.0', 'k': 'nan'}");
  EXPECT_EQ(read("a: [x, 'y z']\nb: {c: [1]}\n"), "{'a': ['x', 'y z'], 'b': {'c': [1]}}");
  EXPECT_EQ(read("a: |\n  one\n  two\nb: \"\\n\\n\"\n"), "{'a': 'one\\ntwo\\n', 'b': '\\n\\n'}");
  EXPECT_EQ(read("a: 1\nb: 2\na: 3\n"), "{'a': 3, 'b': 2}") << "as Python's";
  EXPECT_EQ(read("a: !function utils.f\n"), "{'a': {'!function': 'utils.f'}}");
}

TEST_F(YamlFile, OwnKeysCountMoreThanIncludedOnes) {
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

TEST_F(YamlFile, AliasesAreWhatTheyName) {
  EXPECT_EQ(read("a: &x [1, 2]\nb: *x\n"), "{'a': [1, 2], 'b': [1, 2]}");
  EXPECT_THAT(refusal("a: &x [*x, 1]\n"), HasSubstr("a.yaml: lists and mappings are nested more than 100 deep"));
  EXPECT_THAT(refusal("a: &x {b: *x}\n"), HasSubstr("does an alias (*NAME) occur within its own anchor"));
  std::string doubled = "x0: &x0 [1]\n";
  for (int i = 1; i < 64; ++i) doubled += cat("x", i, ": &x", i, " [*x", i - 1, ", *x", i - 1, "]\n");
  EXPECT_THAT(refusal(doubled), HasSubstr("more than 1048576 values, those of aliases (*NAME) included"));
}

}  // namespace
}  // namespace witan
