#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "witan/base/file.h"
#include "witan/base/hmac.h"

namespace witan::test {
namespace {

using Words = std::vector<std::string>;

std::string source(const std::string& path) {
  return std::string(WITAN_SOURCE_DIR) + "/tests/golden/" + path;
}

std::string digest_of(const std::string& path) {
  const std::string bytes = read_file(path);
  std::string hex;
  for (const uint8_t byte : hmac_sha256("", {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})) {
    static constexpr char kDigits[] = "0123456789abcdef";
    hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return hex;
}

class PrepareCommandTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_ / name; }
  Words command(const Words& more) const {
    Words words = {"data", "prepare", "--output-prefix", at("out")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words hub(const std::string& tokenizer) const {
    return {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
            source("tokenizer/" + tokenizer + ".json")};
  }

  TempFolder folder_;
};

// golden.json: what megatron-core's tokenizers and IndexedDatasetBuilder write (tests/golden/data/prepare).
TEST_F(PrepareCommandTest, WritesMegatronsBytes) {
  const auto golden = nlohmann::json::parse(read_file(source("data/prepare/golden.json")));
  for (const std::string tokenizer : {"gpt2", "llama3", "qwen2"})
    for (const bool eod : {false, true}) {
      Words words = command(hub(tokenizer));
      words.insert(words.end(), {"--input", source("data/prepare/rows.jsonl"), "--workers", eod ? "1" : "3",
                                 "--json-keys", "text", "title"});
      if (eod) words.push_back("--append-eod");
      const Said said = witan(words);
      ASSERT_EQ(said.code, 0) << said.err;
      for (const std::string key : {"text", "title"})
        for (const std::string end : {"bin", "idx"}) {
          const auto& wanted = golden.at(tokenizer + " " + key + (eod ? " eod" : "")).at("files").at(end);
          EXPECT_EQ(digest_of(at("out_" + key + "_document." + end)), wanted) << tokenizer << key << end << eod;
        }
    }
}

TEST_F(PrepareCommandTest, TellsWhatItDidAndDoesItOnce) {
  write_text(at("rows.jsonl"), "{\"text\": \"one two\"}\n{\"text\": \"\"}\nbroken\n{\"text\": \"three\"}\n");
  Words words = command(hub("gpt2"));
  words.insert(words.end(), {"--input", at("rows.jsonl"), "--append-eod", "--bad-row-share", "0.5"});
  const Said said = witan(words);
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "documents     3, 1 of them empty\n")) << said.out;
  EXPECT_TRUE(contains(said.out, "unusable rows 1 of 4: see " + at("out_text_document.quarantine.jsonl"))) << said.out;
  EXPECT_TRUE(contains(said.err, "train --data-path " + at("out_text_document"))) << said.err;
  const Said again = witan(words);
  EXPECT_TRUE(contains(again.out, "(complete before)")) << again.out;
}

// A row without one of the keys is left out of all, so that documents of the same number belong together.
TEST_F(PrepareCommandTest, KeysStayTogether) {
  write_text(at("rows.jsonl"), "{\"a\": \"x\", \"b\": \"y\"}\n{\"a\": \"x\"}\n{\"a\": \"x\", \"b\": \"y\"}\n");
  Words words = command(hub("gpt2"));
  words.insert(words.end(), {"--input", at("rows.jsonl"), "--json-keys", "a", "b", "--bad-row-share", "0.5"});
  const Said said = witan(words);
  ASSERT_EQ(said.code, 0) << said.err;
  for (const char* key : {"a", "b"})
    EXPECT_TRUE(
        contains(witan({"data", "--inspect", at(std::string("out_") + key + "_document")}).out, "documents     2\n"));
  EXPECT_TRUE(contains(said.err, "no token stands between documents: --append-eod")) << said.err;
}

TEST_F(PrepareCommandTest, RefusesByNameWithReasonAndWayOut) {
  write_text(at("rows.jsonl"), "{\"text\": \"one two\"}\n");
  const auto refused = [&](const Words& more, const std::vector<std::string>& pieces) {
    Words words = command({"--input", at("rows.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    expect_refusal(words, 2, pieces);
  };
  refused({"--split-sentences"}, {"--split-sentences is not supported", "leave it out"});
  refused({"--find-optimal-num-workers"}, {"--find-optimal-num-workers is not supported", "all cores are used"});
  refused({"--tiktoken-pattern", "v2"}, {"--tiktoken-pattern is not supported", "--tokenizer FILE#PATTERN"});
  refused({}, {"either --tokenizer FILE, or --tokenizer-type"});
  refused({"--tokenizer", source("tokenizer/gpt2.json"), "--partitions", "4"},
          {"--partitions 4 deals rows out", "--keep-sequential-samples"});
  Words unknown = command({"--input", at("rows.jsonl"), "--tokenizer-type", "NullTokenizer"});
  expect_refusal(unknown, 3, {"--tokenizer-type NullTokenizer is not supported", "--tokenizer FILE"});
}

}  // namespace
}  // namespace witan::test
