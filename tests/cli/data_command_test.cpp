#include "cli_support.h"

namespace witan::test {
namespace {

class DataCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i) write_text(folder_ / ("text/" + std::to_string(i) + ".txt"), some_text(20 + i));
  }
  std::string at(const std::string& name) const { return folder_ / name; }

  TempFolder folder_;
};

TEST_F(DataCommandTest, MakesShardsWithATokenizerOfTheirOwn) {
  const std::vector<std::string> command = {"data", at("text"), "--output", at("out/my"), "--vocab-size", "300"};
  const Said said = witan(command);
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "documents     20\n")) << said.out;
  EXPECT_TRUE(contains(said.out, "held out  ")) << said.out;
  EXPECT_TRUE(contains(said.err, "witan train --data-path " + at("out/my"))) << said.err;
  for (const char* name : {"out/my.bin", "out/my.idx", "out/my.json", "out/my.tokenizer.json"})
    EXPECT_TRUE(std::filesystem::exists(at(name))) << name;
  EXPECT_TRUE(contains(witan(command).out, "(made before)"));
}

TEST_F(DataCommandTest, ShowsShards) {
  ASSERT_EQ(witan({"data", at("text"), "--output", at("my"), "--vocab-size", "300"}).code, 0);
  for (const char* name : {"my", "my.bin", "my.idx"}) {
    const Said said = witan({"data", "--inspect", at(name)});
    EXPECT_EQ(said.code, 0) << said.err;
    for (const char* piece :
         {"format        Megatron-LM, uint16\n", "documents     20\n", "first tokens  ", "first text    "})
      EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  }
}

TEST_F(DataCommandTest, UsesAGivenTokenizer) {
  ASSERT_EQ(witan({"tokenizer", "train", at("text"), "--output", at("tok.json"), "--vocab-size", "280"}).code, 0);
  const Said said = witan({"data", at("text"), "--output", at("my"), "--tokenizer", at("tok.json")});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "of a vocabulary of 280")) << said.out;
  EXPECT_FALSE(std::filesystem::exists(at("my.tokenizer.json")));
  EXPECT_FALSE(contains(witan({"data", "--inspect", at("my")}).out, "first text"));
  EXPECT_TRUE(contains(witan({"data", "--inspect", at("my"), "--tokenizer", at("tok.json")}).out, "first text"));
}

TEST_F(DataCommandTest, CountsBrokenRows) {
  std::string rows;
  for (int i = 0; i < 60; ++i) rows += "{\"content\": \"the king and the ships of corn\"}\n";
  write_text(at("rows.jsonl"), rows + "{\"content\": 3}\n");
  const Said said =
      witan({"data", at("rows.jsonl"), "--json-key", "content", "--output", at("rows"), "--vocab-size", "280"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "broken rows   1 of 61")) << said.out;
  expect_refusal({"data", at("rows.jsonl"), "--output", at("other"), "--vocab-size", "280"}, 4, {"rows.jsonl"});
}

TEST_F(DataCommandTest, RefusesWhatItCannotUse) {
  expect_refusal({"data"}, 2, {"give files of text to tokenize, or --inspect PREFIX"});
  expect_refusal({"data", at("text"), "--inspect", at("my")}, 2, {"--inspect"});
  expect_refusal({"data", at("text")}, 2, {"--output PREFIX"});
  expect_refusal({"data", at("none"), "--output", at("x")}, 4, {"none"});
  expect_refusal({"data", at("text"), "--output", at("x"), "--vocab-size", "5"}, 3, {"vocab_size"});
  expect_refusal({"data", at("text"), "--output", at("x"), "--tokenizer", "t", "--vocab-size", "500"}, 2,
                 {"--tokenizer"});
  expect_refusal({"data", "--inspect", at("none")}, 4, {"none"});
  write_text(at("bad.idx"), "not an index");
  write_text(at("bad.bin"), "");
  expect_refusal({"data", "--inspect", at("bad")}, 4, {"bad.idx"});
}

}  // namespace
}  // namespace witan::test
