#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli_support.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::test {
namespace {

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

// Unusable rows must not destroy earlier shards or prevent corrected ones.
TEST_F(PrepareCommandTest, ARefusedUpdateKeepsOldShards) {
  const auto made = [&](const std::string& rows) {
    write_text(at("rows.jsonl"), rows);
    Words words = command(hub("gpt2"));
    words.insert(words.end(), {"--input", at("rows.jsonl")});
    return witan(words).code;
  };
  const auto files = [&] {
    std::string all;
    for (const char* end : {".bin", ".idx", ".json"}) all += read_file(at("out_text_document" + std::string(end)));
    return all;
  };
  ASSERT_EQ(made("{\"text\": \"hello\"}\n{\"text\": \"the\"}\n"), 0);
  const std::string before = files();
  EXPECT_EQ(made("{\"text\": \"hello\"}\n{\"tex\": \"the\"}\n"), 4);
  EXPECT_EQ(files(), before);
  EXPECT_EQ(made("{\"text\": \"hello\"}\n{\"text\": \"a\"}\n"), 0);
  EXPECT_NE(files(), before);
}

// golden.json holds the output of megatron-core's tokenizers and IndexedDatasetBuilder (tests/golden/data/prepare).
TEST_F(PrepareCommandTest, WritesMegatronsBytes) {
  const auto golden = nlohmann::json::parse(read_file(source("data/prepare/golden.json")));
  for (const std::string tokenizer : {"gpt2", "llama3", "qwen2"})
    for (const bool eod : {false, true}) {
      Words words = command(hub(tokenizer));
      words.insert(words.end(), {"--input", source("data/prepare/rows.jsonl"), "--workers", eod ? "1" : "3",
                                 "--json-keys", "text", "title"});
      if (eod) words.push_back("--append-eod");
      words.push_back("--no-special-tokens");
      const Said said = witan(words);
      ASSERT_EQ(said.code, 0) << said.err;
      for (const std::string key : {"text", "title"})
        for (const std::string end : {"bin", "idx"}) {
          const std::string wanted = golden.at(tokenizer + " " + key + (eod ? " eod" : "")).at("files").at(end);
          EXPECT_EQ(digest_of(at("out_" + key + "_document." + end)), wanted) << tokenizer << key << end << eod;
        }
    }
}

// Flags of other programs' scripts, which spell them with underscores, and GPT-2's tokenizer as two files.
TEST_F(PrepareCommandTest, ReadsAFolderWithGpt2sTwoFiles) {
  const auto model = nlohmann::json::parse(read_file(source("tokenizer/gpt2.json"))).at("model");
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : model.at("merges"))
    merges += merge.is_string() ? merge.get<std::string>() + "\n"
                                : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>() + "\n";
  write_text(at("words.json"), model.at("vocab").dump());
  write_text(at("pairs.txt"), merges);
  write_text(at("rows/a.jsonl"), "{\"text\": \"hello there\"}\n{\"text\": \"the king\"}\n");
  Words words = command(hub("gpt2"));
  words.insert(words.end(), {"--input", at("rows/a.jsonl")});
  ASSERT_EQ(witan(words).code, 0);
  const std::string expected = digest_of(at("out_text_document.bin"));
  const Said said =
      witan({"data", "prepare", "--input_dir", at("rows"), "--output_prefix=" + at("two"), "--tokenizer_type",
             "GPT2BPETokenizer", "--vocab_file", at("words.json"), "--merge_file", at("pairs.txt")});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(digest_of(at("two_text_document.bin")), expected);
  const std::string pair = at("words.json") + "," + at("pairs.txt");
  EXPECT_TRUE(contains(said.err, "--tokenizer " + pair)) << said.err;
  EXPECT_EQ(Tokenizer::load(pair).encode("the king"),
            Tokenizer::load(source("tokenizer/gpt2.json")).encode("the king"));
  expect_refusal({"data", "prepare", "--imput_dir", at("rows")}, 2, {"--imput_dir (did you mean --input-dir?)"});
}

// Llama 3 adds a token at the beginning of each text; an empty one also gets an end.
TEST_F(PrepareCommandTest, DocumentsBeginWithTheTokenizersSpecialTokens) {
  write_text(at("rows.jsonl"), "{\"text\": \"hello\"}\n{\"text\": \"\"}\n");
  const std::string tokenizer = source("tokenizer/llama3.json");
  const std::string whole =
      witan({"tokenizer", "encode", "hello", "--add-special-tokens", "--tokenizer", tokenizer}).out;
  const std::string bare = witan({"tokenizer", "encode", "hello", "--tokenizer", tokenizer}).out;
  ASSERT_TRUE(whole.ends_with(" " + bare)) << whole;
  const std::string begin = whole.substr(0, whole.size() - bare.size());
  const std::string end = witan({"tokenizer", "encode", "<|endoftext|>", "--special", "--tokenizer", tokenizer}).out;
  const auto shown = [&](const Words& more) {
    Words words = command(hub("llama3"));
    words.insert(words.end(), {"--input", at("rows.jsonl"), "--append-eod"});
    words.insert(words.end(), more.begin(), more.end());
    const Said said = witan(words);
    EXPECT_EQ(said.code, 0) << said.err;
    return witan({"data", "inspect", at("out_text_document"), "--tokens", "--documents", "0-1"}).out;
  };
  EXPECT_EQ(shown({}), whole.substr(0, whole.size() - 1) + " " + end + begin + end);
  EXPECT_EQ(shown({"--tokenizer-hf-include-special-tokens"}), shown({}));
  EXPECT_EQ(shown({"--no-special-tokens"}), bare.substr(0, bare.size() - 1) + " " + end + "\n");
}

// The shards name their tokenizer.
TEST_F(PrepareCommandTest, InspectFindsTheTokenizerOfShards) {
  write_text(at("rows.jsonl"), "{\"text\": \"hello\"}\n");
  Words words = command(hub("gpt2"));
  words.insert(words.end(), {"--input", at("rows.jsonl")});
  ASSERT_EQ(witan(words).code, 0);
  EXPECT_EQ(witan({"data", "inspect", at("out_text_document"), "--document", "0"}).out, "hello\n");
}

TEST_F(PrepareCommandTest, ReportsItsWorkAndDoesItOnce) {
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

// A row without one of the keys is skipped for all keys, so documents with the same number belong together.
TEST_F(PrepareCommandTest, KeysStayTogether) {
  write_text(at("rows.jsonl"), "{\"a\": \"x\", \"b\": \"y\"}\n{\"a\": \"x\"}\n{\"a\": \"x\", \"b\": \"y\"}\n");
  Words words = command(hub("gpt2"));
  words.insert(words.end(), {"--input", at("rows.jsonl"), "--json-keys", "a", "b", "--bad-row-share", "0.5"});
  const Said said = witan(words);
  ASSERT_EQ(said.code, 0) << said.err;
  for (const char* key : {"a", "b"})
    EXPECT_TRUE(
        contains(witan({"data", "--inspect", at(std::string("out_") + key + "_document")}).out, "documents     2\n"));
  EXPECT_TRUE(contains(said.err, "there is no token between documents: --append-eod")) << said.err;
}

// The keys of a table are columns and give the bytes of the same rows in JSON Lines, which are Megatron-LM's.
TEST_F(PrepareCommandTest, KeysSelectColumnsOfTables) {
  std::istringstream lines(read_file(source("data/tables/expected.jsonl")));
  std::string rows;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line).at("row");
    nlohmann::json kept = {{"id", row.at("id")}};
    if (row.contains("text")) kept["text"] = row["text"];
    if (row.contains("meta") && row["meta"].contains("title")) kept["meta.title"] = row["meta"]["title"];
    rows += kept.dump() + "\n";
  }
  write_text(at("rows.jsonl"), rows);
  const auto prepare = [&](const std::string& input, const std::string& to, const Words& more) {
    Words words = {"data", "prepare",      "--input",         input, "--output-prefix",
                   at(to), "--append-eod", "--bad-row-share", "0.9", "--json-keys"};
    words.insert(words.end(), more.begin(), more.end());
    const Words tokenizer = hub("gpt2");
    words.insert(words.end(), tokenizer.begin(), tokenizer.end());
    const Said said = witan(words);
    EXPECT_EQ(said.code, 0) << said.err;
    std::vector<std::string> digests;
    for (const char* file :
         {"_text_document.bin", "_text_document.idx", "_meta.title_document.bin", "_meta.title_document.idx"})
      digests.push_back(digest_of(at(to + file)));
    return digests;
  };
  const auto expected = prepare(at("rows.jsonl"), "rows", {"text", "meta.title"});
  EXPECT_GT(std::filesystem::file_size(at("rows_meta.title_document.bin")), 20u);
  const Words tables = {"encodings/zstd_plain_v1.parquet", "pages.parquet", "stream_lz4.arrow"};
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string table = source("data/tables/" + tables[i]), to = "t" + std::to_string(i);
    EXPECT_EQ(prepare(table, to, {"text,meta.title", "--workers", "1"}), expected) << tables[i];
    EXPECT_EQ(prepare(table, to + "many", {"text", "meta.title", "--workers", "3"}), expected) << tables[i];
  }
  expect_refusal({"data", "prepare", "--input", source("data/tables/pages.parquet"), "--output-prefix", at("x"),
                  "--tokenizer", source("tokenizer/gpt2.json"), "--json-keys", "text", "titel"},
                 4, {"pages.parquet: there is no column titel", "name one with --json-keys"});
  write_text(at("plain.txt"), "one two");
  expect_refusal({"data", "prepare", "--input", at("plain.txt"), "--output-prefix", at("x"), "--tokenizer",
                  source("tokenizer/gpt2.json"), "--json-keys", "text", "title"},
                 4, {"plain text has no keys", "one key for this file"});
}

TEST_F(PrepareCommandTest, NeverOverwritesOtherFiles) {
  write_text(at("rows.jsonl"), "{\"text\": \"one two\", \"title\": \"three\"}\n");
  write_text(at("other.jsonl"), "{\"text\": \"four\", \"title\": \"five\"}\n");
  const auto keys = [&](const std::string& input) {
    return command(
        {"--input", at(input), "--tokenizer", source("tokenizer/gpt2.json"), "--json-keys", "text", "title"});
  };
  write_text(at("out_title_document.idx"), "foreign");
  expect_refusal(keys("rows.jsonl"), 3,
                 {"out_title_document.idx exists already", "remove it, or give another --output-prefix"});
  EXPECT_FALSE(std::filesystem::exists(at("out_text_document.bin"))) << "before any work";
  std::filesystem::remove(at("out_title_document.idx"));
  EXPECT_EQ(witan(keys("rows.jsonl")).code, 0);
  expect_refusal(keys("other.jsonl"), 3, {"out_text_document.bin has the tokens of other text", "rows.jsonl"});
  write_text(at("rows.jsonl"), "{\"text\": \"one two three\", \"title\": \"three\"}\n");
  EXPECT_EQ(witan(keys("rows.jsonl")).code, 0) << "the file has changed";
}

TEST_F(PrepareCommandTest, ReportsWhichShardsAreReplaced) {
  const std::string bin = at("out_text_document.bin");
  write_text(at("rows.jsonl"), "{\"text\": \"one two\"}\n");
  const auto expect_anew = [&](const Words& more, const std::string& changes) {
    Words words = command({"--input", at("rows.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    const Said said = witan(words);
    EXPECT_EQ(said.code, 0) << said.err;
    const std::string why = changes.empty() ? "" : bin + " was made otherwise (" + changes + "): made anew";
    EXPECT_TRUE(contains(said.err, why)) << said.err;
    EXPECT_EQ(contains(said.err, "made anew"), !changes.empty()) << said.err;
  };
  const std::string gpt2 = source("tokenizer/gpt2.json"), qwen = source("tokenizer/qwen2.json");
  expect_anew({"--tokenizer", gpt2, "--append-eod"}, "");
  expect_anew({"--tokenizer", gpt2, "--append-eod"}, "");
  expect_anew({"--tokenizer", gpt2}, "append_eod");
  expect_anew({"--tokenizer", qwen, "--bad-row-share", "0.5"}, "tokenizer; bad_row_share");
  write_text(at("rows.jsonl"), "{\"text\": \"one two three\"}\n");
  expect_anew({"--tokenizer", qwen, "--bad-row-share", "0.5"}, at("rows.jsonl") + " has changed since");
  write_text(at("more.jsonl"), "{\"text\": \"four\"}\n");
  expect_anew({at("more.jsonl"), "--tokenizer", qwen, "--bad-row-share", "0.5"},
              at("more.jsonl") + " was not among its text");
  expect_anew({"--tokenizer", qwen, "--bad-row-share", "0.5"}, "it also had the text of " + at("more.jsonl"));
  std::string tokens = read_file(bin);
  tokens.back() ^= 1;
  write_text(bin, tokens);
  expect_anew({"--tokenizer", qwen, "--bad-row-share", "0.5"}, "its files have changed since");
}

TEST_F(PrepareCommandTest, PatternsSelectFilesAndAreRecorded) {
  for (const char* name : {"text/a.txt", "text/b.md", "text/drafts/c.txt"}) write_text(at(name), "one two");
  const auto prepare = [&](const Words& patterns) {
    Words words = command({"--input", at("text"), "--tokenizer", source("tokenizer/gpt2.json")});
    words.insert(words.end(), patterns.begin(), patterns.end());
    const Said said = witan(words);
    EXPECT_EQ(said.code, 0) << said.err;
    return said;
  };
  const Words some = {"--include", "*.txt", "--include", "*.md", "--exclude", "drafts/"};
  EXPECT_TRUE(contains(prepare(some).out, "documents     2\n"));
  const auto options = nlohmann::json::parse(read_file(at("out_text_document.json"))).at("key").at("options");
  EXPECT_EQ(options.at("include"), (Words{"*.txt", "*.md"}));
  EXPECT_EQ(options.at("exclude"), Words{"drafts/"});
  EXPECT_TRUE(contains(prepare(some).out, "(complete before)"));
  const Said other = prepare({"--include=*.txt"});
  EXPECT_TRUE(contains(other.out, "documents     2\n"));
  EXPECT_TRUE(contains(other.err, "was made otherwise (exclude; include; ")) << other.err;
  expect_refusal(command({"--input", at("text"), "--tokenizer", source("tokenizer/gpt2.json"), "--include", "*.rst"}),
                 4, {"--include *.rst matches no file in " + at("text"), "such as "});
}

// Messages name the flags that the user typed.
TEST_F(PrepareCommandTest, MessagesNameTheGivenFlags) {
  write_text(at("rows.jsonl"), "{\"text\": \"one two\"}\n");
  const auto refused = [&](const Words& more, int code, const std::vector<std::string>& pieces) {
    Words words = command({"--input", at("rows.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    expect_refusal(words, code, pieces);
  };
  const std::string gpt2 = source("tokenizer/gpt2.json");
  refused({"--tokenizer", at("none.json")}, 3, {"error: --tokenizer " + at("none.json") + ": there is no such file"});
  refused({"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", at("none.json")}, 3,
          {"error: --tokenizer-model " + at("none.json") + ": there is no such file"});
  refused({"--tokenizer", gpt2, "--json-keys", "content"}, 4, {"read from the key content, see --json-keys)"});
  refused({"--tokenizer", gpt2, "--json-keys", "text", "text"}, 2, {"--json-keys has text twice"});
  refused({"--tokenizer", gpt2, "--json-keys", "text,"}, 2, {"a key names files"});
  refused({"--tokenizer", gpt2, "--eod-token", "<|endoftext|>"}, 2,
          {"--eod-token <|endoftext|> says which token --append-eod adds", "add --append-eod"});
  refused({"--tokenizer", gpt2, "--tokenizer-model", gpt2}, 2,
          {"--tokenizer-model goes with --tokenizer-type", "leave one of them out"});
  refused({"--tokenizer", gpt2, "--merge-file", gpt2}, 2, {"--merge-file goes with --tokenizer-type"});
}

TEST_F(PrepareCommandTest, RefusalsNameFlagReasonAndFix) {
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
