#include "witan/cli/args/response_file.h"

#include <random>

#include "cli/cli_support.h"
#include "support/message_of.h"

namespace witan::test {
namespace {

using cli::expand_response_files;
using cli::split_arguments;

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  for (const cli::Argument& word : split_arguments(text, "x.args")) out.push_back(word.text);
  return out;
}

std::string refused(const std::string& text) {
  return message_of<UsageError>([&] { split_arguments(text, "x.args"); });
}

TEST(ResponseFile, SplitsLikeAShell) {
  EXPECT_EQ(words(""), Words{});
  EXPECT_EQ(words("--a 1\n--b\r\n\n\t--c  2 3"), (Words{"--a", "1", "--b", "--c", "2", "3"}));
  EXPECT_EQ(words("--a 'two words' \"and 'more'\" mi'x'\"ed\""), (Words{"--a", "two words", "and 'more'", "mixed"}));
  EXPECT_EQ(words("'' \"\" x"), (Words{"", "", "x"}));
  EXPECT_EQ(words("a\\ b \\# \\' \"q\\\"q\" \"k\\eep\" 'r\\aw'"), (Words{"a b", "#", "'", "q\"q", "k\\eep", "r\\aw"}));
}

TEST(ResponseFile, SupportsContinuationsAndComments) {
  EXPECT_EQ(words("--a 1 \\\n--b \\\r\n2\n"), (Words{"--a", "1", "--b", "2"}));
  EXPECT_EQ(words("# all\n--a 1 # one\n--b '#no' x#y\n#end"), (Words{"--a", "1", "--b", "#no", "x#y"}));
}

TEST(ResponseFile, WordsHaveTheirLine) {
  const auto cut = split_arguments("--a\n\n'b\nc' \\\nd", "x.args");
  ASSERT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut[0].origin, "x.args:1");
  EXPECT_EQ(cut[1].origin, "x.args:3");
  EXPECT_EQ(cut[2].origin, "x.args:5");
}

TEST(ResponseFile, RefusesShellSyntax) {
  EXPECT_TRUE(contains(refused("--a\n--data-path $DATA"), "x.args:2: a shell would expand $DATA"));
  EXPECT_TRUE(contains(refused("--a \"$(pwd)/x\""), "x.args:1: a shell would expand $(pwd)"));
  EXPECT_TRUE(contains(refused("`date`"), "write the value itself"));
  EXPECT_EQ(words("'$DATA' \\$x \"\\$y\""), (Words{"$DATA", "$x", "$y"}));
}

TEST(ResponseFile, RefusesInvalidBytes) {
  EXPECT_TRUE(contains(refused("--a 'open\n\n"), "x.args:3: a quote (') opened in line 1 is never closed"));
  EXPECT_TRUE(contains(refused(std::string("--a\n\0", 5)), "x.args:2: byte 0 is not text"));
  EXPECT_TRUE(contains(refused("--a \x1b[0m"), "byte 27 is not text"));
  EXPECT_TRUE(contains(refused("--a \xff"), "x.args: byte 4 is not valid UTF-8"));
  std::string many;
  for (int i = 0; i < 65537; ++i) many += "a ";
  EXPECT_TRUE(contains(refused(many), "more than 65536 arguments"));
  EXPECT_EQ(words(many.substr(2)).size(), 65536u);
}

TEST(ResponseFile, SplitsOrRefusesRandomText) {
  const std::string letters = "ab'\"\\#$ \n\r\t-=@\xc3\xa9";
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) text += letters[random() % letters.size()];
    try {
      split_arguments(text, "x.args");
    } catch (const UsageError& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("x.args")) << e.what();
    }
  }
}

class ResponseFileTest : public ::testing::Test {
 protected:
  std::string list(const std::string& name, const std::string& text) {
    write_text(folder_ / name, text);
    return "@" + (folder_ / name).string();
  }
  static std::string expansion_refused(const Words& words) {
    std::vector<std::string> lists;
    return message_of<UsageError>([&] { expand_response_files(words, lists); });
  }
  TempFolder folder_;
};

TEST_F(ResponseFileTest, ListsReplaceTheirName) {
  std::vector<std::string> lists;
  const auto out = expand_response_files({"--x", list("a.args", "--a 1"), "--y", list("b.args", "--b")}, lists);
  Words texts;
  for (const auto& word : out) texts.push_back(word.text);
  EXPECT_EQ(texts, (Words{"--x", "--a", "1", "--y", "--b"}));
  EXPECT_EQ(out[0].origin, "command line");
  EXPECT_TRUE(out[4].origin.ends_with("b.args:1"));
  EXPECT_EQ(lists.size(), 2u);
}

TEST_F(ResponseFileTest, RefusesUnreadableFiles) {
  EXPECT_TRUE(contains(expansion_refused({"@"}), "@ without a file name"));
  EXPECT_TRUE(contains(expansion_refused({"@" + (folder_ / "no.args").string()}), "no.args"));
  EXPECT_TRUE(contains(expansion_refused({"@" + folder_.path().string()}), "@/"));
  EXPECT_TRUE(contains(expansion_refused({list("c.args", "--a\n@other.args")}),
                       ":2: @other.args: a list of flags cannot include"));
  EXPECT_TRUE(contains(expansion_refused({list("big.args", std::string((1 << 20) + 1, 'a'))}), "limit"));
}

}  // namespace
}  // namespace witan::test
