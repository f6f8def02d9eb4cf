// witan data shuffle, merge and split.
#include "cli/cli_support.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class RowsCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string rows;
    for (int i = 0; i < 100; ++i) rows += "{\"n\": " + std::to_string(i) + "}\n";
    write_text(folder_ / "rows.jsonl", rows);
  }
  std::string at(const std::string& name) const { return folder_ / name; }

  TempFolder folder_;
};

TEST_F(RowsCommandTest, Shuffles) {
  const std::vector<std::string> command = {"data",   "shuffle", at("rows.jsonl"), "--output", at("out/mixed.jsonl"),
                                            "--seed", "3",       "--memory",       "1MB",      "--workers",
                                            "2"};
  const Said said = witan(command);
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "rows          100 in 1 file")) << said.out;
  EXPECT_TRUE(contains(said.err, "disk: about ")) << said.err;
  const std::string mixed = read_text(at("out/mixed.jsonl"));
  EXPECT_EQ(mixed.size(), fs::file_size(at("rows.jsonl")));
  EXPECT_NE(mixed, read_text(at("rows.jsonl")));
  EXPECT_TRUE(contains(witan(command).out, "(made before)"));
  std::vector<std::string> other = command;
  other[6] = "4";
  expect_refusal(other, 3, {"mixed.jsonl exists already", "another --output"});
}

TEST_F(RowsCommandTest, PatternsSelectFilesOfAFolder) {
  write_text(at("in/a.jsonl"), "{\"a\": 1}\n");
  write_text(at("in/sub/b.jsonl"), "{\"b\": 1}\n");
  for (const char* command : {"shuffle", "split"}) {
    std::vector<std::string> words = {"data", command, at("in"), "--output", at(command), "--exclude", "sub/"};
    if (std::string(command) == "split") words.insert(words.end(), {"--chunks", "1"});
    const Said said = witan(words);
    ASSERT_EQ(said.code, 0) << said.err;
    EXPECT_TRUE(contains(said.out, "rows          1 in 1 file")) << said.out;
    words[6] = "none/";
    expect_refusal(words, 4, {"--exclude none/ matches no file in " + at("in")});
  }
}

TEST_F(RowsCommandTest, ShufflesIntoChunks) {
  const Said said =
      witan({"data", "shuffle", at("rows.jsonl"), "--output", at("out/c"), "--chunks", "8", "--valid", "2"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "rows          100 in 9 files")) << said.out;
  EXPECT_TRUE(contains(said.out, at("out/c.val.jsonl") + ", 16 rows")) << said.out;
  for (int chunk = 0; chunk < 8; ++chunk)
    EXPECT_TRUE(fs::exists(at("out/c.chunk.0" + std::to_string(chunk) + ".jsonl")));
}

TEST_F(RowsCommandTest, SplitsAndMergesBack) {
  ASSERT_EQ(witan({"data", "split", at("rows.jsonl"), "--output", at("part"), "--fractions", "0.9,0.1"}).code, 0);
  EXPECT_GT(fs::file_size(at("part.train.jsonl")), 4 * fs::file_size(at("part.val.jsonl")));
  const Said said =
      witan({"data", "merge", at("part.val.jsonl"), at("part.train.jsonl"), "--output", at("both.jsonl")});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(read_text(at("both.jsonl")), read_text(at("part.val.jsonl")) + read_text(at("part.train.jsonl")))
      << "in the order of the arguments";
}

TEST_F(RowsCommandTest, CountsUnusableRows) {
  write_text(at("bad.jsonl"), read_text(at("rows.jsonl")) + "[]\n");
  const Said said = witan({"data", "shuffle", at("bad.jsonl"), "--output", at("mixed")});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "unusable rows 1 of 101: see " + at("mixed.quarantine.jsonl"))) << said.out;
  expect_refusal({"data", "merge", at("rows.jsonl"), "--output", at("other"), "--json-key", "text"}, 4,
                 {"100 of 100 rows are unusable", "the text is read from the key text", "no key \"text\""});
}

TEST_F(RowsCommandTest, MergesTokenShards) {
  for (const char* name : {"one", "two"}) {
    write_text(folder_ / name / "a.txt", some_text(30));
    ASSERT_EQ(witan({"data", at(name), "--output", at(std::string("pairs/") + name), "--vocab-size", "300"}).code, 0);
  }
  const Said said =
      witan({"data", "merge", at("pairs/two.bin"), at("pairs/two.idx"), at("pairs/one"), "--output", at("merged")});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "documents     2\n")) << said.out;
  EXPECT_EQ(read_text(at("merged.bin")), read_text(at("pairs/two.bin")) + read_text(at("pairs/one.bin")));
  EXPECT_EQ(witan({"data", "--inspect", at("merged")}).code, 0);
  ASSERT_EQ(witan({"data", "merge", at("pairs"), "--output", at("folder.bin")}).code, 0);
  EXPECT_EQ(read_text(at("folder.bin")), read_text(at("pairs/one.bin")) + read_text(at("pairs/two.bin")));
  ASSERT_EQ(witan({"data", "merge", at("pairs/one"), at("pairs/one"), "--output", at("twice")}).code, 0);
  EXPECT_EQ(fs::file_size(at("twice.bin")), 2 * fs::file_size(at("pairs/one.bin")));
  expect_refusal({"data", "merge", at("pairs"), "--output", at("folder")}, 3, {"folder.bin exists already"});
  expect_refusal({"data", "merge", at("pairs/one"), at("rows.jsonl"), "--output", at("x")}, 2,
                 {"is token shards", "rows.jsonl is not"});
}

TEST_F(RowsCommandTest, DetectsAnotherEncodingBeforeAnyWork) {
  write_text(at("latin.txt"), some_text(3) + "caf\xe9");
  expect_refusal({"data", "shuffle", at("rows.jsonl"), at("latin.txt"), "--output", at("out/x")}, 4,
                 {"latin.txt: byte ", "is not UTF-8", "--replace-invalid-utf8"});
  EXPECT_FALSE(fs::exists(at("out")));
  const Said said =
      witan({"data", "shuffle", at("rows.jsonl"), at("latin.txt"), "--output", at("out/x"), "--replace-invalid-utf8"});
  EXPECT_EQ(said.code, 0) << said.err;
}

TEST_F(RowsCommandTest, ErrorsNameMissingOptions) {
  expect_refusal({"data", "shuffle"}, 2, {"witan data shuffle: give files or folders"});
  expect_refusal({"data", "shuffle", at("rows.jsonl")}, 2, {"witan data shuffle: give the file to write: --output"});
  expect_refusal({"data", "split", at("rows.jsonl"), "--output", at("x")}, 2, {"say how: --chunks N"});
  expect_refusal({"data", "split"}, 2, {"witan data split: give files or folders"});
  expect_refusal({"data", "split", at("rows.jsonl")}, 2, {"witan data split: give the file to write: --output"});
  expect_refusal({"data", "split", at("rows.jsonl"), "--output", at("x"), "--fractions", "0.5,half"}, 2,
                 {"half is not a number"});
  expect_refusal({"data", "shuffle", at("rows.jsonl"), "--output", at("x"), "--memory", "some"}, 3, {"some"});
  expect_refusal({"data", "merge", at("none.jsonl"), "--output", at("x")}, 4, {"there is no file or folder"});
  EXPECT_TRUE(contains(witan({"data", "shuffle", "--help"}).out, "witan data shuffle"));
}

TEST_F(RowsCommandTest, CommonOptionsHaveCommonRules) {
  for (const std::string command : {"shuffle", "dedup", "stats"}) {
    std::vector<std::string> words = {"data", command, at("rows.jsonl"), "--json-key", "n"};
    if (command != "stats") words.insert(words.end(), {"--output", at("x")});
    const auto refuse = [&](const std::vector<std::string>& more, const std::vector<std::string>& pieces) {
      std::vector<std::string> all = words;
      all.insert(all.end(), more.begin(), more.end());
      expect_refusal(all, 2, pieces);
    };
    refuse({"--workers", "0"}, {"--workers", "1"});
    refuse({"--memory", "0"}, {"witan data " + command + ": --memory 0 is too little: give 1MB or more"});
    refuse({"--temporary", at("rows.jsonl")}, {"rows.jsonl is no folder"});
    if (command != "stats") refuse({"--seed", "-1"}, {"--seed", "-1", "1000000000000000000"});
    if (command != "stats") refuse({"--seed", "99999999999999999999"}, {"--seed"});
    const std::string help = witan({"data", command, "--help"}).out;
    for (const char* piece : {"Parquet", "MDS", "1 to 4096", "1MB or more"})
      EXPECT_TRUE(contains(help, piece)) << command << ": " << piece;
  }
  for (const char* command : {"split", "merge", "inspect"})
    EXPECT_TRUE(contains(witan({"data", command, "--help"}).out, "Parquet")) << command;
  EXPECT_TRUE(contains(witan({"data", "split", "--help"}).out, "256"));
}

TEST_F(RowsCommandTest, SharesSumToOne) {
  for (const std::string list : {"0.5,0.6", "0.5,0.4", "8,1,1"})
    expect_refusal({"data", "split", at("rows.jsonl"), "--output", at("x"), "--fractions", list}, 2,
                   {"--fractions " + list + ": the shares sum to ", "not to 1"});
  EXPECT_EQ(witan({"data", "split", at("rows.jsonl"), "--output", at("x"), "--fractions", "0.7,0.2,0.1"}).code, 0);
}

TEST_F(RowsCommandTest, OutputsMustBeFiles) {
  for (const std::string command : {"shuffle", "merge", "dedup"}) {
    const auto refuse = [&](const std::string& output, const std::string& piece) {
      expect_refusal({"data", command, at("rows.jsonl"), "--output", output, "--json-key", "n"}, 2,
                     {"witan data " + command + ": --output ", piece});
    };
    refuse("/dev/full", "is a device or a pipe");
    refuse(folder_.path().string(), "is a folder: name a file in it");
    refuse(at("new") + "/", "is a folder: name a file in it");
    refuse(at("x.jsonl.gz"), "without compression");
  }
  expect_refusal({"data", "shuffle", at("rows.jsonl"), "--output", at("rows.jsonl")}, 2, {"is one of the inputs"});
}

TEST_F(RowsCommandTest, ErrorsNameAMissingInputAmongShards) {
  write_text(at("one/a.txt"), some_text(30));
  ASSERT_EQ(witan({"data", at("one"), "--output", at("pair"), "--vocab-size", "300"}).code, 0);
  expect_refusal({"data", "merge", at("pair"), at("nope"), "--output", at("x")}, 4,
                 {"there is no file or folder " + at("nope"), "no pair "});
  expect_refusal({"data", "merge", at("pair"), at("pair"), "--output", folder_.path().string()}, 2, {"is a folder"});
}

TEST_F(RowsCommandTest, WritesAllColumnsAndNamesSkippedOnes) {
  const std::string table = std::string(WITAN_SOURCE_DIR) + "/tests/golden/data/tables/encodings/zstd_plain_v1.parquet";
  const Said said = witan({"data", "merge", table, "--output", at("all")});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.out, "rows          40 in 1 file")) << said.out;
  EXPECT_TRUE(contains(said.err, "warning: JSON has no type for these columns")) << said.err;
  EXPECT_TRUE(contains(said.err, "day, price, seen")) << said.err;
  EXPECT_TRUE(contains(read_text(at("all.jsonl")), "\"messages\":[{\"role\":"));
}

// The text of a dotted key is found in nested objects and written there.
TEST_F(RowsCommandTest, KeysMayBePaths) {
  write_text(at("nested.jsonl"), "{\"meta\": {\"title\": \"one text\"}}\n{\"meta\": {\"title\": \"another\"}}\n");
  write_text(at("plain.txt"), "a document");
  for (const std::string command : {"merge", "dedup"}) {
    const Said said = witan(
        {"data", command, at("nested.jsonl"), at("plain.txt"), "--json-key", "meta.title", "--output", at(command)});
    ASSERT_EQ(said.code, 0) << said.err;
    const std::string colon = command == "merge" ? ": " : ":";
    EXPECT_EQ(read_text(at(command + ".jsonl")),
              read_text(at("nested.jsonl")) + "{\"meta\"" + colon + "{\"title\"" + colon + "\"a document\"}}\n");
  }
  EXPECT_TRUE(
      contains(witan({"data", "stats", at("nested.jsonl"), "--json-key", "meta.title"}).out, "documents     2\n"));
  EXPECT_EQ(witan({"data", "inspect", at("nested.jsonl"), "--json-key", "meta.title", "--document", "1"}).out,
            "another\n");
}

}  // namespace
}  // namespace witan::test
