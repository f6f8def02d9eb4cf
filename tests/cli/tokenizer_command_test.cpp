#include "cli/cli_support.h"
#include "witan/base/files/file.h"

namespace witan::test {
namespace {

class TokenizerCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "text.txt", some_text(300));
    const Said said = witan({"tokenizer", "train", folder_ / "text.txt", "--output", json(), "--vocab-size", "300"});
    ASSERT_EQ(said.code, 0) << said.err;
    EXPECT_EQ(said.out, json() + "\n");
  }
  std::string json() const { return folder_ / "tok.json"; }

  TempFolder folder_;
};

TEST_F(TokenizerCommandTest, EncodesAndDecodes) {
  const Said encoded = witan({"tokenizer", "encode", "the king", "--tokenizer", json()});
  EXPECT_EQ(encoded.code, 0);
  EXPECT_EQ(encoded.out.find_first_not_of("0123456789 \n"), std::string::npos) << encoded.out;
  EXPECT_EQ(witan({"tokenizer", "decode", "--tokenizer", json()}, encoded.out).out, "the king");
  EXPECT_EQ(witan({"tokenizer", "encode", "--tokenizer", json()}, "the king").out, encoded.out);
  EXPECT_EQ(witan({"tokenizer", "encode", "", "--tokenizer", json()}).out, "\n");
}

TEST_F(TokenizerCommandTest, KeepsEveryByteOfALongInput) {
  const std::string text = some_text(5000) + std::string("\0\xff\xfe end\n", 8);
  const Said encoded = witan({"tokenizer", "encode", "--tokenizer", json()}, text);
  EXPECT_EQ(witan({"tokenizer", "decode", "--tokenizer", json()}, encoded.out).out, text);
}

TEST_F(TokenizerCommandTest, EncodesAndDecodesTextsInJsonLines) {
  const std::string texts = "\"the king\"\n\"\"\n\"a\\n\\u00e9\"\n";
  const Said encoded = witan({"tokenizer", "encode", "--jsonl", "--tokenizer", json()}, texts);
  EXPECT_EQ(encoded.code, 0) << encoded.err;
  EXPECT_EQ(encoded.out.substr(0, encoded.out.find('\n') + 1),
            witan({"tokenizer", "encode", "the king", "--tokenizer", json()}).out);
  const Said decoded = witan({"tokenizer", "decode", "--jsonl", "--tokenizer", json()}, encoded.out);
  EXPECT_EQ(decoded.out, "\"the king\"\n\"\"\n\"a\\n\u00e9\"\n");
  EXPECT_EQ(witan({"tokenizer", "encode", "--jsonl", "--special", "--tokenizer", json()}, "\"<|endoftext|>\"").out,
            "299\n");
  const Said number = witan({"tokenizer", "encode", "--jsonl", "--tokenizer", json()}, "\"a\"\n12\n");
  EXPECT_EQ(number.code, 4);
  EXPECT_TRUE(contains(number.err, "standard input, line 2: not a text in JSON")) << number.err;
  expect_refusal({"tokenizer", "encode", "x", "--jsonl", "--tokenizer", json()}, 2, {"--jsonl reads standard input"});
}

TEST_F(TokenizerCommandTest, TextAfterADoubleDashMayBeginWithADash) {
  const Said said = witan({"tokenizer", "encode", "--tokenizer", json(), "--", "-x"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(witan({"tokenizer", "decode", "--tokenizer", json()}, said.out).out, "-x");
  expect_refusal({"tokenizer", "encode", "a", "b", "--tokenizer", json()}, 2, {"unexpected argument b", "quotes"});
}

TEST_F(TokenizerCommandTest, ExplainsASmallerVocabulary) {
  const Said said =
      witan({"tokenizer", "train", folder_ / "text.txt", "--output", folder_ / "t.json", "--vocab-size", "9000"});
  EXPECT_EQ(said.code, 0);
  EXPECT_TRUE(contains(said.err, "entries, not the 9000 that were asked for: no other pair occurs 2 times"))
      << said.err;
}

TEST_F(TokenizerCommandTest, AddsTheTokenizersSpecialTokens) {
  std::string file = read_file(json());
  const std::string none = "\"post_processor\": null";
  const size_t at = file.find(none);
  ASSERT_NE(at, file.npos);
  file.replace(at, none.size(),
               R"("post_processor": {"type": "BertProcessing", "cls": ["H", 39], "sep": ["<|endoftext|>", 299]})");
  write_text(folder_ / "around.json", file);
  const auto encoded = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"tokenizer", "encode", "e", "--tokenizer", folder_ / "around.json"};
    words.insert(words.end(), more.begin(), more.end());
    return witan(words).out;
  };
  EXPECT_EQ(encoded({}), "68\n");
  EXPECT_EQ(encoded({"--add-special-tokens"}), "39 68 299\n");
  EXPECT_TRUE(contains(witan({"tokenizer", "inspect", folder_ / "around.json"}).out, "around texts  39 299\n"));
}

TEST_F(TokenizerCommandTest, SpecialTokensInTextArePlainByDefault) {
  const Said plain = witan({"tokenizer", "encode", "<|endoftext|>", "--tokenizer", json()});
  EXPECT_TRUE(contains(plain.out, " "));
  EXPECT_EQ(witan({"tokenizer", "encode", "<|endoftext|>", "--special", "--tokenizer", json()}).out, "299\n");
}

TEST_F(TokenizerCommandTest, DecodesIdsFromArguments) {
  EXPECT_EQ(witan({"tokenizer", "decode", "39", "68", "--tokenizer", json()}).out, "He");
  expect_refusal({"tokenizer", "decode", "39", "x", "--tokenizer", json()}, 2, {"x is not a token id"});
  expect_refusal({"tokenizer", "decode", "99999999999", "--tokenizer", json()}, 2, {"99999999999"});
  expect_refusal({"tokenizer", "decode", "300", "--tokenizer", json()}, 4, {"300"});
}

TEST_F(TokenizerCommandTest, Inspects) {
  const Said said = witan({"tokenizer", "inspect", json(), "--text", folder_ / "text.txt"});
  EXPECT_EQ(said.code, 0);
  for (const char* piece : {"vocabulary    300\n", "299 <|endoftext|>", "pattern  ", "hash  ", "bytes/token"})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
}

TEST_F(TokenizerCommandTest, RefusesInvalidInput) {
  expect_refusal({"tokenizer", "train", folder_ / "none.txt", "--output", json()}, 4, {"none.txt"});
  expect_refusal({"tokenizer", "train", folder_ / "text.txt", "--output", json(), "--vocab-size", "3"}, 3,
                 {"vocab_size"});
  expect_refusal({"tokenizer", "train", folder_ / "text.txt", "--output", json(), "--pattern", "gpt"}, 3, {"gpt"});
  expect_refusal({"tokenizer", "encode", "x", "--tokenizer", folder_ / "none.json"}, 4, {"none.json"});
  expect_refusal({"tokenizer", "encode", "x", "--runs-folder", folder_ / "runs"}, 2, {"train one first"});
  write_text(folder_ / "broken.json", "{\"model\": ");
  expect_refusal({"tokenizer", "inspect", folder_ / "broken.json"}, 4, {"broken.json"});
}

}  // namespace
}  // namespace witan::test
