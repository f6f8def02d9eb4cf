#include "cli/cli_support.h"
#include "witan/base/text.h"

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

TEST_F(DataCommandTest, CreatesShardsWithTheirOwnTokenizer) {
  const std::vector<std::string> command = {"data", at("text"), "--output", at("out/my"), "--vocab-size", "300"};
  const Said said = witan(command);
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "documents     20\n")) << said.out;
  EXPECT_TRUE(contains(said.out, "validation  ")) << said.out;
  EXPECT_TRUE(contains(said.err, "witan train --data-path " + at("out/my"))) << said.err;
  for (const char* name : {"out/my.bin", "out/my.idx", "out/my.json", "out/my.tokenizer.json"})
    EXPECT_TRUE(std::filesystem::exists(at(name))) << name;
  const std::string tokenizer = read_text(at("out/my.tokenizer.json"));
  const auto written = std::filesystem::last_write_time(at("out/my.tokenizer.json"));
  const Said again = witan(command);
  EXPECT_TRUE(contains(again.out, "(reused)"));
  EXPECT_TRUE(contains(again.err, "my.tokenizer.json (trained before)")) << again.err;
  EXPECT_EQ(std::filesystem::last_write_time(at("out/my.tokenizer.json")), written);
  write_text(at("text/0.txt"), some_text(300));
  const Said changed = witan(command);
  EXPECT_FALSE(contains(changed.out, "(reused)"));
  EXPECT_TRUE(contains(changed.err, "trained anew")) << changed.err;
  EXPECT_NE(read_text(at("out/my.tokenizer.json")), tokenizer);
}

// `data` reports what `train --data-path` holds out of these shards.
TEST_F(DataCommandTest, ReportsWhatARunHoldsOut) {
  write_text(at("text/large.txt"), some_text(4000));
  const Said shards = witan({"data", at("text"), "--output", at("my"), "--vocab-size", "300"});
  const auto held_out = [](const std::string& out) {
    const size_t begin = out.find("validation    ") + 14;
    return std::stod(out.substr(begin, out.find(' ', begin) - begin));
  };
  const double tokens = std::stod(shards.out.substr(shards.out.find("tokens        ") + 14));
  EXPECT_GT(held_out(shards.out), 0.009 * tokens);
  EXPECT_LT(held_out(shards.out), 0.021 * tokens) << "1 %, or 2 % for a whole document";
  const Said trained = witan({"train", "--runs-folder", at("runs"), "--data", at("text"), "--tokenizer",
                              at("my.tokenizer.json"), "--train-iters", "1", "--num-layers", "1", "--hidden-size", "16",
                              "--ffn-hidden-size", "16", "--num-experts", "2", "--sample-tokens", "0"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string told = format_count(held_out(shards.out)) + " for validation";
  EXPECT_TRUE(contains(trained.err, told)) << told << " in " << trained.err;
}

// Ids of one tokenizer have other meanings in another one.
TEST_F(DataCommandTest, RefusesShardsOfAnotherTokenizer) {
  ASSERT_EQ(witan({"data", at("text"), "--output", at("my"), "--vocab-size", "300"}).code, 0);
  std::string letters = some_text(100);
  for (char& c : letters)
    if (c >= 'a' && c <= 'z') c = static_cast<char>('a' + (c - 'a' + 7) % 26);
  write_text(at("other.txt"), letters);
  ASSERT_EQ(witan({"tokenizer", "train", at("other.txt"), "--vocab-size", "300", "--output", at("tok.json")}).code, 0);
  std::vector<std::string> command = {
      "train",        "--runs-folder",     at("runs"), "--data-path",   at("my"), "--tokenizer",
      at("tok.json"), "--train-iters",     "1",        "--num-layers",  "1",      "--hidden-size",
      "16",           "--ffn-hidden-size", "16",       "--num-experts", "2",      "--seq-length",
      "16",           "--sample-tokens",   "0"};
  const std::vector<std::string> parts = {"data_path: " + at("my"), at("my.tokenizer.json"), at("tok.json"),
                                          "Give the tokenizer of the shards"};
  expect_refusal(command, 3, parts);
  command.push_back("--dry-run");
  expect_refusal(command, 3, parts);
  command[4] = at("my") + "," + at("my");  // also within a mixture
  expect_refusal(command, 3, parts);
  EXPECT_FALSE(std::filesystem::exists(at("runs/default/tokenizer.json")));
  for (const std::string shows : {"inspect", "stats"}) {
    const Said other = witan({"data", shows, at("my"), "--tokenizer", at("tok.json")});
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_TRUE(contains(other.err, "warning: " + at("my") + " was tokenized with ")) << other.err;
    EXPECT_FALSE(contains(witan({"data", shows, at("my")}).err, "warning")) << shows;
  }
  std::filesystem::remove(at("my.json"));
  command[4] = at("my");
  const Said unknown = witan(command);
  EXPECT_FALSE(contains(unknown.err, "was tokenized with")) << "Megatron-LM's shards have no manifest: " << unknown.err;
}

TEST_F(DataCommandTest, UsesTheSingularForOne) {
  write_text(at("one.txt"), some_text(100));
  const Said said = witan({"data", at("one.txt"), "--output", at("my"), "--vocab-size", "300"});
  EXPECT_TRUE(contains(said.out, " tokens in 1 document\n")) << said.out;
  EXPECT_FALSE(contains(said.out, "1 documents")) << said.out;
}

TEST_F(DataCommandTest, AcceptsListsWithSpacesOrCommas) {
  const auto documents = [&](std::vector<std::string> inputs, const std::string& to) {
    inputs.insert(inputs.begin(), "data");
    inputs.insert(inputs.end(), {"--output", at(to), "--vocab-size", "300"});
    const Said said = witan(inputs);
    EXPECT_EQ(said.code, 0) << said.err;
    return said.out.substr(said.out.find("documents"), 20);
  };
  const std::string three = documents({at("text/0.txt"), at("text/1.txt"), at("text/2.txt")}, "a");
  EXPECT_EQ(documents({at("text/0.txt") + "," + at("text/1.txt"), at("text/2.txt")}, "b"), three);
}

// The same column of the same table gives the same shards in every file format.
TEST_F(DataCommandTest, ReadsColumnsOfTables) {
  const std::string tables = std::string(WITAN_SOURCE_DIR) + "/tests/golden/data/tables/";
  const auto shards = [&](const std::string& table, const std::string& to, const std::string& tokenizer) {
    std::vector<std::string> command = {"data", tables + table, "--output", at(to), "--json-key", "meta.pages.text"};
    if (tokenizer.empty())
      command.insert(command.end(), {"--vocab-size", "300"});
    else
      command.insert(command.end(), {"--tokenizer", tokenizer});
    const Said said = witan(command);
    EXPECT_EQ(said.code, 0) << said.err;
    return read_text(at(to + ".bin"));
  };
  const std::string expected = shards("encodings/zstd_plain_v1.parquet", "a", "");
  EXPECT_GT(expected.size(), 100u);
  for (const char* table : {"duckdb_snappy_V1.parquet", "stream_lz4.arrow"})
    EXPECT_EQ(shards(table, table, at("a.tokenizer.json")), expected) << table;
  expect_refusal({"data", tables + "pages.parquet", "--output", at("c"), "--json-key", "txt"}, 4,
                 {"pages.parquet: there is no column txt (did you mean text?)", "--json-key"});
  expect_refusal({"data", tables + "pages.parquet", "--output", at("c"), "--sft", "--messages-key", "massages"}, 4,
                 {"there is no column massages (did you mean messages?)", "name one with --messages-key"});
  expect_refusal({"data", tables + "refused_brotli.parquet", "--output", at("c")}, 4,
                 {"row group 0, column text: pages compressed with brotli"});
  EXPECT_FALSE(std::filesystem::exists(at("c.tokenizer.json"))) << "before any work";
}

TEST_F(DataCommandTest, RefusesAnotherEncodingBeforeAnyWork) {
  write_text(at("text/zz.txt"), some_text(20) + "caf\xe9");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"data", at("text"), "--output", at("my"), "--vocab-size", "300"},
        {"tokenizer", "train", at("text"), "--output", at("tok.json"), "--vocab-size", "300"}}) {
    expect_refusal(command, 4, {"zz.txt: byte ", "is not UTF-8", "iconv -f latin1", "--replace-invalid-utf8"});
    EXPECT_FALSE(std::filesystem::exists(at(command[0] == "data" ? "my.tokenizer.json" : "tok.json")));
    std::vector<std::string> replacing = command;
    replacing.push_back("--replace-invalid-utf8");
    EXPECT_EQ(witan(replacing).code, 0);
  }
  EXPECT_TRUE(
      contains(witan({"data", at("text"), "--output", at("my"), "--vocab-size", "300", "--replace-invalid-utf8"}).out,
               "invalid UTF-8 1 sequence replaced by U+FFFD"));
}

TEST_F(DataCommandTest, ReportsFilesOfAFolderThatAreNotText) {
  write_text(at("text/picture.png"), std::string("\x89PNG\0\0", 6));
  std::filesystem::create_symlink("nowhere", at("text/link"));
  const Said said = witan({"data", at("text"), "--output", at("my"), "--vocab-size", "300"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "warning: skipped: 1 binary file (" + at("text/picture.png") + "), 1 broken link (" +
                                     at("text/link") + ")"))
      << said.err;
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
  EXPECT_TRUE(contains(said.out, "vocabulary of 280")) << said.out;
  EXPECT_FALSE(std::filesystem::exists(at("my.tokenizer.json")));
  EXPECT_TRUE(contains(witan({"data", "--inspect", at("my")}).out, "first text"))
      << "with the tokenizer that created them";
  EXPECT_TRUE(contains(witan({"data", "--inspect", at("my"), "--tokenizer", at("tok.json")}).out, "first text"));
}

TEST_F(DataCommandTest, CountsUnusableRows) {
  std::string rows;
  for (int i = 0; i < 60; ++i) rows += "{\"content\": \"the king and the ships of corn\"}\n";
  write_text(at("rows.jsonl"), rows + "{\"content\": 3}\n");
  const Said said =
      witan({"data", at("rows.jsonl"), "--json-key", "content", "--output", at("rows"), "--vocab-size", "280"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "unusable rows 1 of 61")) << said.out;
  expect_refusal({"data", at("rows.jsonl"), "--output", at("other"), "--vocab-size", "280"}, 4, {"rows.jsonl"});
}

TEST_F(DataCommandTest, NeverOverwritesOtherFiles) {
  const std::vector<std::string> command = {"data", at("text"), "--output", at("my"), "--vocab-size", "300"};
  for (const char* name : {"my.bin", "my.idx", "my.json", "my.tokenizer.json", "my.tokenizer.record.json"}) {
    write_text(at(name), "foreign");
    expect_refusal(command, 3, {std::string(name) + " exists already", "remove it, or give another --output"});
    EXPECT_EQ(read_text(at(name)), "foreign");
    std::filesystem::remove(at(name));
  }
  ASSERT_EQ(witan(command).code, 0);
  write_text(at("other.txt"), some_text(30));
  expect_refusal({"data", at("other.txt"), "--output", at("my"), "--tokenizer", at("my.tokenizer.json")}, 3,
                 {"my.bin has the tokens of other text", "give another --output"});
  // The tokenizer was edited after training.
  write_text(at("my.tokenizer.json"), read_text(at("my.tokenizer.json")) + " ");
  expect_refusal(command, 3, {"my.tokenizer.json exists already"});
}

TEST_F(DataCommandTest, OutputIsAPrefix) {
  write_text(at("rows.jsonl"), "{\"text\": \"" + some_text(40) + "\"}\n");
  for (const char* again : {"once", "twice"}) {
    SCOPED_TRACE(again);
    expect_refusal({"data", at("rows.jsonl"), "--output", at("rows.jsonl")}, 2,
                   {"--output " + at("rows.jsonl") + " is the text that is read", "such as " + at("rows") + " for"});
  }
  expect_refusal({"data", at("rows.jsonl"), "--output", at("out/")}, 2,
                 {"is a folder: give the beginning of the names", at("out/my")});
  write_text(at("rows.json"), "{\"text\": \"a row\"}\n");
  expect_refusal({"data", at("rows.json"), "--output", at("rows")}, 3, {"rows.json is read"});
  EXPECT_EQ(read_text(at("rows.json")), "{\"text\": \"a row\"}\n");
  const Said said = witan({"data", at("text"), "--output", at("one.bin"), "--vocab-size", "300"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(std::filesystem::exists(at("one.idx")));
  EXPECT_TRUE(contains(said.err, "--data-path " + at("one") + " --tokenizer " + at("one.tokenizer.json"))) << said.err;
}

TEST_F(DataCommandTest, AMistypedSubcommandIsNotText) {
  expect_refusal({"data", "shufle", at("text"), "--seed", "3"}, 2,
                 {"witan data: unknown command shufle (did you mean shuffle?)"});
  expect_refusal({"data", "prepair"}, 2, {"did you mean prepare?"});
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  write_text(at("shufle"), some_text(30));
  const Said said = witan({"data", "shufle", "--output", at("my"), "--vocab-size", "300"});
  std::filesystem::current_path(before);
  EXPECT_EQ(said.code, 0) << said.err;
}

TEST_F(DataCommandTest, RefusesInvalidOptions) {
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
