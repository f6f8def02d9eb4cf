// witan data dedup, stats and inspect.
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "witan/cli/data/shards.h"

namespace witan::test {
namespace {

using nlohmann::json;

class CorpusCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string rows;
    for (int i = 0; i < 10; ++i) rows += json{{"text", some_text(20 + i)}, {"id", i}}.dump() + "\n";
    rows += json{{"text", some_text(23)}, {"id", 10}}.dump() + "\n";
    rows += json{{"text", "  " + some_text(23)}, {"id", 11}}.dump() + "\n";
    std::string near = some_text(29);
    near.replace(near.find("king"), 4, "queen");
    rows += json{{"text", near}, {"id", 12}}.dump() + "\n";
    write_text(at("rows.jsonl"), rows);
    write_text(at("my.txt"), "a text of its own\n");
  }
  std::string at(const std::string& name) const { return folder_ / name; }
  std::string ids(const std::string& file) const {
    std::string ids;
    std::istringstream rows(read_text(at(file)));
    for (std::string row; std::getline(rows, row);) ids += std::to_string(json::parse(row)["id"].get<int>()) + " ";
    return ids;
  }

  TempFolder folder_;
};

TEST_F(CorpusCommandsTest, DedupKeepsTheFirstAndListsTheOthers) {
  const Said said = witan({"data", "dedup", at("rows.jsonl"), "--method", "exact", "--output", at("new/clean.jsonl")});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(ids("new/clean.jsonl"), "0 1 2 3 4 5 6 7 8 9 12 ");
  for (const std::string piece : {"read          13 documents", "exact copies  2 documents (15.38 %)",
                                  "clusters      1\n", "kept          11 documents", "new/clean.removed.jsonl\n"})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  EXPECT_TRUE(contains(read_text(at("new/clean.removed.jsonl")), "\"duplicate\":\"exact\",\"kept\":{\"document\":3,"));
  EXPECT_FALSE(std::filesystem::exists(at("new/clean.jsonl.quarantine.jsonl")));
}

TEST_F(CorpusCommandsTest, DedupFindsNearDuplicatesAndReportsTheirProbability) {
  const Said said = witan({"data", "dedup", at("rows.jsonl"), "--output", at("clean.jsonl"), "--verify", "0.9"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "14 bands of 8 rows: 50 % of pairs with a Jaccard similarity of 0.68 are found\n"))
      << said.out;
  EXPECT_TRUE(contains(said.out, "92.4 % at 0.8")) << said.out;
  EXPECT_TRUE(contains(said.out, "verified      ")) << said.out;
  EXPECT_TRUE(contains(read_text(at("clean.removed.jsonl")), "\"duplicate\":\"near\"")) << said.out;
}

TEST_F(CorpusCommandsTest, DedupCanCountOnly) {
  const Said said = witan({"data", "dedup", at("rows.jsonl"), at("my.txt"), "--dry-run", "--json", "--workers", "2"});
  ASSERT_EQ(said.code, 0) << said.err;
  const json counts = json::parse(said.out);
  EXPECT_EQ(counts["documents"], 14);
  EXPECT_EQ(counts["exact"], 2);
  EXPECT_EQ(counts["output"], nullptr);
  EXPECT_EQ(counts["kept"], 14 - 2 - counts["near"].get<int>());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2) << "no output is written";
}

TEST_F(CorpusCommandsTest, DedupRefusesInvalidOptions) {
  expect_refusal({"data", "dedup", at("rows.jsonl")}, 2, {"--output FILE.jsonl", "--dry-run"});
  expect_refusal({"data", "dedup", at("none"), "--dry-run"}, 4, {"none"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--output", at("rows.jsonl")}, 2, {"is one of the inputs"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--output", at("c.jsonl.zst")}, 2, {"without compression"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--method", "exact", "--verify", "0.8", "--dry-run"}, 2,
                 {"--verify compares candidates of --method minhash"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--output", at("c.jsonl"), "--removed", at("c.jsonl")}, 2,
                 {"are both", "name two files"});
  write_text(at("c.removed.jsonl"), "{\"text\": \"an input\"}\n");
  expect_refusal({"data", "dedup", at("c.removed.jsonl"), "--output", at("c.jsonl")}, 2, {"is one of the inputs"});
  write_text(at("shards.bin"), "");
  expect_refusal({"data", "dedup", at("shards"), "--dry-run"}, 2, {"shards is token shards"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--bands", "0"}, 3, {"--bands"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--ngram", "0"}, 3, {"--ngram"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--verify", "2"}, 2, {"--verify"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--memory", "much"}, 3, {"much"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--temporary", at("none")}, 4,
                 {"none", "--temporary"});
  expect_refusal({"data", "dedup", at("rows.jsonl"), "--dry-run", "--json-key", "content"}, 4,
                 {"no key \"content\"", "--json-key"});
}

TEST_F(CorpusCommandsTest, StatsCountsTextAndTokens) {
  ASSERT_EQ(witan({"tokenizer", "train", at("rows.jsonl"), "--output", at("tok.json"), "--vocab-size", "280"}).code, 0);
  const std::vector<std::string> command = {"data",       "stats",       at("rows.jsonl"),
                                            at("my.txt"), "--tokenizer", at("tok.json")};
  const Said said = witan(command);
  ASSERT_EQ(said.code, 0) << said.err;
  for (const std::string piece : {"documents     14\n", "files         2\n", "duplicates    2 documents (14.3 %)",
                                  "scripts       Latin 100.0 % of letters\n", "of 280 tokens occur\n", "per document ",
                                  "tokens of a document     documents\n"})
    EXPECT_TRUE(contains(said.out, piece)) << piece << " in\n" << said.out;
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const json counts = json::parse(witan(as_json).out);
  EXPECT_EQ(counts["documents"], 14);
  EXPECT_EQ(counts["files"][0]["documents"].get<int>() + counts["files"][1]["documents"].get<int>(), 14);
  EXPECT_EQ(counts["bytes"]["least"], 18);
  EXPECT_EQ(counts["repetition"]["rules"].size(), 13u);
  EXPECT_EQ(counts["repetition"]["ngram_counts_too_small_by"], 0);
  EXPECT_GT(counts["repetition"]["ngrams"], 0);
  int64_t documents = 0;
  for (const auto& bar : counts["tokens"]["histogram"]) documents += bar["documents"].get<int64_t>();
  EXPECT_EQ(documents, 14);
}

TEST_F(CorpusCommandsTest, PatternsSelectFilesOfAFolder) {
  write_text(at("in/a.txt"), "one");
  write_text(at("in/sub/b.txt"), "two");
  const std::vector<std::string> patterns = {"--include", "*.txt", "--exclude", "a.*"};
  std::vector<std::string> stats = {"data", "stats", at("in"), "--json"},
                           dedup = {"data", "dedup", at("in"), "--dry-run"};
  for (auto* words : {&stats, &dedup}) words->insert(words->end(), patterns.begin(), patterns.end());
  EXPECT_EQ(json::parse(witan(stats).out)["documents"], 1);
  const Said said = witan(dedup);
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "read          1 document")) << said.out;
  stats[2] = at("in/a.txt");
  expect_refusal(stats, 4, {"--include *.txt matches no file", "a file that is named itself is read"});
}

TEST_F(CorpusCommandsTest, StatsWritesAPage) {
  const Said said = witan({"data", "stats", at("rows.jsonl"), "--report", at("new/stats.html")});
  ASSERT_EQ(said.code, 0) << said.err;
  const std::string page = read_text(at("new/stats.html"));
  for (const std::string piece : {"Witan dataset report", "rows.jsonl", "<h2>Lengths</h2>", "<svg ", "<h2>Scripts</h2>",
                                  "<h2>Repetition</h2>", "duplicate lines &gt; 30 %"})
    EXPECT_TRUE(contains(page, piece)) << piece;
  EXPECT_FALSE(contains(page, "<h2>Tokens</h2>"));
}

TEST_F(CorpusCommandsTest, StatsOverwritesOnlyItsPages) {
  const std::string before = read_text(at("rows.jsonl"));
  expect_refusal({"data", "stats", at("rows.jsonl"), "--report", at("rows.jsonl")}, 2,
                 {"is no page", "name a new file"});
  expect_refusal({"data", "stats", at("rows.jsonl"), "--report", folder_.path().string()}, 2, {"is a folder"});
  EXPECT_EQ(read_text(at("rows.jsonl")), before);
}

TEST_F(CorpusCommandsTest, StatsAndInspectReadShards) {
  ASSERT_EQ(witan({"data", at("rows.jsonl"), "--output", at("my"), "--vocab-size", "280"}).code, 0);
  const Said stats = witan({"data", "stats", at("my")});
  ASSERT_EQ(stats.code, 0) << stats.err;
  EXPECT_TRUE(contains(stats.out, "documents     13\n")) << stats.out;
  EXPECT_TRUE(contains(stats.out, "duplicates    2 documents (15.4 %)")) << stats.out;
  EXPECT_TRUE(contains(stats.out, "of 280 tokens occur\n")) << stats.out;
  EXPECT_EQ(witan({"data", "inspect", at("my")}).out, witan({"data", "--inspect", at("my")}).out);
  const Said shown = witan({"data", "inspect", at("my.bin"), "--document", "3"});
  EXPECT_EQ(shown.out, some_text(23) + "<|endoftext|>\n") << shown.err;
  EXPECT_TRUE(contains(shown.err, "--- document 3, " + at("my.bin"))) << shown.err;
  const json both = json::parse(witan({"data", "inspect", at("my"), "--document", "0", "--json", "--tokens"}).out);
  EXPECT_EQ(both["text"], some_text(20) + "<|endoftext|>");
  EXPECT_GT(both["tokens"].size(), 10u);
  expect_refusal({"data", "inspect", at("my"), "--document", "2,13"}, 4, {"13 documents", "no document 13"});
  expect_refusal({"data", "stats", at("my"), at("rows.jsonl")}, 2, {"one prefix of token shards"});
  std::filesystem::remove(at("my.tokenizer.json"));
  const Said ids = witan({"data", "inspect", at("my"), "--document", "0"});
  EXPECT_TRUE(contains(ids.err, "--tokenizer FILE"));
  EXPECT_EQ(ids.out.find_first_not_of("0123456789 \n"), std::string::npos) << ids.out;
  EXPECT_TRUE(contains(witan({"data", "stats", at("my")}).err, "--tokenizer FILE"));
}

TEST_F(CorpusCommandsTest, InspectShowsTextByNumber) {
  const Said one = witan({"data", "inspect", at("rows.jsonl"), "--document", "3"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, some_text(23) + "\n");
  EXPECT_TRUE(contains(one.err, "rows.jsonl:4, ")) << one.err;
  EXPECT_EQ(witan({"data", "inspect", at("my.txt")}).out, "a text of its own\n");
  const Said several = witan({"data", "inspect", at("rows.jsonl"), "--documents", "11,2-3", "--json"});
  std::istringstream lines(several.out);
  std::vector<int> numbers;
  for (std::string line; std::getline(lines, line);) {
    numbers.push_back(json::parse(line)["document"]);
    EXPECT_EQ(json::parse(line)["row"], numbers.back() + 1);
  }
  EXPECT_EQ(numbers, (std::vector<int>{2, 3, 11}));
}

TEST_F(CorpusCommandsTest, InspectRefusesInvalidOptions) {
  expect_refusal({"data", "inspect", at("rows.jsonl"), "--document", "13"}, 4, {"13 documents", "no document 13"});
  for (const std::string bad : {"x", "-3", "5-", "5-2", "1,,2", "99999999999999999999"})
    expect_refusal({"data", "inspect", at("rows.jsonl"), "--document=" + bad}, 2, {"--document"});
  expect_refusal({"data", "inspect", at("none")}, 4, {"none"});
  expect_refusal({"data", "inspect", at("rows.jsonl"), "--tokens"}, 2, {"--tokenizer FILE"});
  expect_refusal({"data", "inspect"}, 2, {"path"});
}

TEST_F(CorpusCommandsTest, DedupNeverOverwritesFilesOfTheUser) {
  const std::vector<std::string> command = {"data", "dedup", at("rows.jsonl"), "--output", at("clean.jsonl")};
  for (const std::string name : {"clean.jsonl", "clean.removed.jsonl", "clean.quarantine.jsonl"}) {
    write_text(at(name), "mine");
    expect_refusal(command, 3, {name + " exists already", "another --output"});
    EXPECT_EQ(read_text(at(name)), "mine");
    std::filesystem::remove(at(name));
  }
  write_text(at("rows.jsonl"), read_text(at("rows.jsonl")) + "[]\n");
  const Said first = witan(command);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(std::filesystem::exists(at("clean.quarantine.jsonl")));
  const Said again = witan(command);
  EXPECT_EQ(again.code, 0);
  EXPECT_TRUE(contains(again.out, "clean.jsonl (made before)")) << again.out;
  std::vector<std::string> other = command;
  other.insert(other.end(), {"--method", "exact"});
  expect_refusal(other, 3, {"clean.jsonl exists already"});
  std::filesystem::remove(at("clean.jsonl"));
  EXPECT_EQ(witan(other).code, 0) << "its own lists are rewritten";
}

TEST_F(CorpusCommandsTest, DedupCanBeRepeatedAfterAFailure) {
  write_text(at("bad.jsonl"), "{\"text\": \"a\"}\n[]\n");
  std::vector<std::string> command = {"data", "dedup", at("bad.jsonl"), "--output", at("clean")};
  expect_refusal(command, 4, {"1 of 2 rows are unusable", "see " + at("clean.quarantine.jsonl")});
  EXPECT_FALSE(std::filesystem::exists(at("clean.jsonl")));
  command.insert(command.end(), {"--bad-row-share", "0.5"});
  EXPECT_EQ(witan(command).code, 0);
  EXPECT_EQ(read_text(at("clean.jsonl")), "{\"text\": \"a\"}\n") << "NAME means NAME.jsonl, as in the other commands";
}

TEST_F(CorpusCommandsTest, DistinguishesMissingTextFromEmptyText) {
  for (const char* name : {"empty.jsonl", "void/a.txt", "void/b.txt"}) write_text(at(name), "");
  write_text(at("blank.jsonl"), "{\"text\": \"\"}\n{\"text\": \"\"}\n");
  const std::string none = "found no document with text in ";
  expect_refusal({"data", "stats", at("empty.jsonl")}, 4, {none + at("empty.jsonl") + ": it is empty (0 bytes)"});
  expect_refusal({"data", "stats", at("void")}, 4,
                 {none + "2 files (" + at("void/a.txt") + ", " + at("void/b.txt") + "): all are empty (0 bytes)"});
  expect_refusal({"data", "stats", at("blank.jsonl")}, 4, {none + at("blank.jsonl") + " (2 empty)"});
}

// Texts are read first, and the damage is found while rows are written.
TEST_F(CorpusCommandsTest, DedupOfADamagedTableLeavesNoFiles) {
  std::string table =
      read_text(std::string(WITAN_SOURCE_DIR) + "/tests/golden/data/tables/encodings/zstd_plain_v1.parquet");
  for (size_t at = 2000; at < 2040; ++at) table[at] ^= 0x55;
  write_text(at("in/bad.parquet"), table);
  expect_refusal({"data", "dedup", at("in"), "--output", at("out/a"), "--bad-row-share", "0.5"}, 4,
                 {"bad.parquet: row group 0, column u8", "copy or download the file again"});
  EXPECT_TRUE(std::filesystem::is_empty(at("out")));
  write_text(at("empty.txt"), "");
  expect_refusal({"data", "dedup", at("empty.txt"), "--output", at("out/a")}, 4, {"found no document"});
  EXPECT_TRUE(std::filesystem::is_empty(at("out")));
}

TEST_F(CorpusCommandsTest, StatsRewritesItsOwnPage) {
  const std::vector<std::string> command = {"data", "stats", at("rows.jsonl"), "--report", at("stats.html")};
  ASSERT_EQ(witan(command).code, 0);
  EXPECT_EQ(witan(command).code, 0);
  write_text(at("stats.html"), "<html>a page of the user's</html>");
  expect_refusal(command, 2, {"is no page of this command"});
  expect_refusal({"data", "stats", at("rows.jsonl"), "--report", "/dev/full"}, 2, {"/dev/full is there already"});
  expect_refusal({"data", "stats", at("rows.jsonl"), "--report", at("my.txt") + "/stats.html"}, 4,
                 {"cannot create the folder "});
  expect_refusal({"data", "stats", at("rows.jsonl"), "--report", folder_.path().string()}, 2,
                 {"is a folder: name a file in it"});
}

// A text that is one of several in a list has no row of its own.
TEST_F(CorpusCommandsTest, DedupKeepsAllColumnsOfTables) {
  const std::string tables = std::string(WITAN_SOURCE_DIR) + "/tests/golden/data/tables/";
  const Said said = witan({"data", "dedup", tables + "encodings/zstd_plain_v1.parquet", "--output", at("clean"),
                           "--method", "exact", "--bad-row-share", "0.5"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "day, price, seen")) << said.err;
  std::istringstream lines(read_text(at("clean.jsonl"))), expected(read_text(tables + "whole.jsonl"));
  std::vector<json> rows, all;
  for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
  for (std::string line; std::getline(expected, line);)
    if (const json row = json::parse(line); row["text"].is_string() && row["text"] != "") all.push_back(row);
  EXPECT_GT(rows.size(), 15u);
  EXPECT_LT(rows.size(), all.size()) << "\"same\" twice";
  for (const json& row : rows) EXPECT_NE(std::find(all.begin(), all.end(), row), all.end()) << row;
  ASSERT_EQ(witan({"data", "dedup", tables + "pages.parquet", "--output", at("pages"), "--method", "exact",
                   "--json-key", "meta.pages.text"})
                .code,
            0);
  EXPECT_TRUE(contains(read_text(at("pages.jsonl")), "{\"meta\":{\"pages\":{\"text\":\""));
}

}  // namespace
}  // namespace witan::test
