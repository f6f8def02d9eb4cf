#include "witan/data/rows/shuffle_rows.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "data/data_support.h"
#include "data/rows/row_support.h"
#include "data/tables/golden_tables.h"
#include "witan/base/error.h"
#include "witan/data/rows/row_job.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ShuffleRowsTest : public ::testing::Test {
 protected:
  // 3,000 rows in five files of different sizes, one of them compressed.
  void write_corpus() {
    int first = 0;
    for (const int count : {1, 700, 1299, 40, 960}) {
      const std::string rows = numbered_rows(first, count);
      if (count == 40)
        put(folder_ / cat("in/", first, ".jsonl.gz"), gzip(rows));
      else
        put(folder_ / cat("in/", first, ".jsonl"), rows);
      first += count;
    }
  }
  std::vector<Source> sources() const { return find_sources({folder_ / "in"}).files; }
  MadeRows shuffle(const std::string& name) { return shuffle_rows(sources(), folder_ / name, options_, report_); }

  // Runs in a process that is killed at the `kill`-th call of the progress callback, or never (0). Returns whether it
  // finished.
  bool shuffle_apart(const std::string& name, int kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      report_ = [&](const RowProgress&) {
        if (++calls == kill) ::kill(::getpid(), SIGKILL);
      };
      try {
        shuffle(name);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFEXITED(status);
  }

  std::vector<std::string> hidden_in(const fs::path& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename().string().starts_with('.')) names.push_back(entry.path().filename());
    return names;
  }

  TempFolder folder_;
  ShuffleOptions options_;
  ReportRowProgress report_;
};

TEST_F(ShuffleRowsTest, IsAPermutationOfWholeRows) {
  write_corpus();
  const MadeRows made = shuffle("out/mixed.jsonl");
  EXPECT_EQ(made.rows, 3000);
  EXPECT_EQ(made.files.at(0).bytes, fs::file_size(folder_ / "out/mixed.jsonl"));
  std::vector<std::string> rows = lines_in(folder_ / "out/mixed.jsonl"), all;
  std::ranges::sort(rows);
  std::istringstream text(numbered_rows(0, 3000));
  for (std::string line; std::getline(text, line);) all.push_back(line);
  std::ranges::sort(all);
  EXPECT_EQ(rows, all);
  EXPECT_THAT(hidden_in(folder_ / "out"), ::testing::ElementsAre(".mixed.made.json"));
}

TEST_F(ShuffleRowsTest, DependsOnlyOnTheSeed) {
  write_corpus();
  shuffle("one.jsonl");
  const std::string expected = read_file(folder_ / "one.jsonl");
  for (const int workers : {1, 2, 7})
    for (const uint64_t memory : {uint64_t{1} << 16, uint64_t{200000}, uint64_t{1} << 30}) {
      options_.workers = workers;
      options_.memory = memory;
      const std::string name = cat("w", workers, "m", memory, ".jsonl");
      shuffle(name);
      EXPECT_TRUE(read_file(folder_ / name) == expected) << workers << " workers, " << memory << " bytes";
    }
  options_.seed = 2;
  shuffle("two.jsonl");
  EXPECT_FALSE(read_file(folder_ / "two.jsonl") == expected);
}

// An error explains how to proceed with a journal that cannot be continued; it is never taken for a finished one.
TEST_F(ShuffleRowsTest, RefusesADamagedJournal) {
  write_corpus();
  const std::string bad = R"("bad": {"count": 0, "rows": []})";
  const std::pair<std::string, std::string> journals[] = {
      {"[1]\n", "line 1"},
      {"{\"read\": true}\n{\"read\": tru\n", "line 2"},
      {"{\"run\": 0}\n", "parts"},
      {cat(R"({"run": -2, "parts": [], )", bad, "}\n"), "-2 is there"},
      {cat(R"({"run": -1, "parts": [{"source": 5, "position": 0, "rows": 0, "complete": true}], )", bad, "}\n"),
       "5 is there, not 0 to 4"},
      {cat(R"({"run": -1, "parts": [{"source": 0, "position": 0, "rows": 1e30, "complete": true}], )", bad, "}\n"),
       "1e+30 is there"},
      {R"({"run": -1, "parts": [], "bad": {"count": 1, "rows": [{"source": 7, "line": 1, "reason": "", "row": ""}]}})"
       "\n",
       "7 is there, not 0 to 4"},
      {"{\"sorted\": 65537, \"files\": {}}\n", "65537 is there"},
      {"{\"written\": {\"sizes\": [], \"rows\": []}}\n", "array index 0"},
  };
  report_ = [&](const RowProgress&) {
    if (!fs::exists(folder_ / "begun")) fs::copy(folder_ / ".a.unfinished", folder_ / "begun");
  };
  shuffle("a.jsonl");
  report_ = {};
  fs::remove(folder_ / "a.jsonl");
  for (const auto& [journal, why] : journals) {
    fs::remove_all(folder_ / ".a.unfinished");
    fs::copy(folder_ / "begun", folder_ / ".a.unfinished");
    put(folder_ / ".a.unfinished/journal.jsonl", journal);
    EXPECT_THAT(message_of<CorruptionError>([&] { shuffle("a.jsonl"); }),
                ::testing::AllOf(HasSubstr(why), HasSubstr(".a.unfinished to begin anew")))
        << journal;
  }
}

// Kendall's tau of a random order of n rows has variance 2 (2n + 5) / (9 n (n - 1)), and the positions of the first
// tenth of the rows are uniform.
TEST_F(ShuffleRowsTest, MixesWell) {
  write_corpus();
  for (const uint64_t seed : {1, 2, 3}) {
    options_.seed = seed;
    const std::string name = cat(seed, ".jsonl");
    shuffle(name);
    const std::vector<int> order = numbers_in(folder_ / name);
    const auto n = static_cast<double>(order.size());
    double concordant = 0;
    for (size_t i = 0; i < order.size(); ++i)
      for (size_t j = i + 1; j < order.size(); ++j) concordant += order[i] < order[j] ? 1 : -1;
    const double tau = concordant / (n * (n - 1) / 2);
    EXPECT_LT(std::abs(tau), 5 * std::sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))) << "seed " << seed;
    std::vector<int> tenths(10);
    for (size_t i = 0; i < order.size(); ++i)
      if (order[i] < 300) ++tenths[i / 300];
    double chi2 = 0;
    for (const int count : tenths) chi2 += (count - 30.0) * (count - 30.0) / 30;
    EXPECT_LT(chi2, 33.7) << "seed " << seed
                          << ": chi-squared with 9 degrees of freedom, exceeded once in 10,000 times";
  }
}

TEST_F(ShuffleRowsTest, ChunksMatchALaterSplit) {
  write_corpus();
  shuffle("whole.jsonl");
  options_.parts = {.chunks = 4, .valid = 25};
  options_.workers = 2;
  options_.memory = 1 << 17;
  const MadeRows made = shuffle("chunked");
  ASSERT_EQ(made.files.size(), 5U);
  EXPECT_EQ(made.files[4].rows, 100);
  CopyOptions copy;
  copy.parts = options_.parts;
  copy_rows(find_sources({folder_ / "whole.jsonl"}).files, folder_ / "split", copy);
  for (const char* part : {"chunk.00", "chunk.01", "chunk.02", "chunk.03", "val"})
    EXPECT_EQ(read_file(folder_ / cat("chunked.", part, ".jsonl")), read_file(folder_ / cat("split.", part, ".jsonl")))
        << part;
}

TEST_F(ShuffleRowsTest, ContinuesAfterKillsWithTheSameBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "forks processes that start threads";
#endif
  write_corpus();
  put(folder_ / "in/zz.jsonl", "{\"n\": 3000}\nbroken\n");
  options_.parts = {.chunks = 3, .valid = 10};
  ASSERT_TRUE(shuffle_apart("whole", 0));
  const auto whole = [&](const std::string& name) {
    std::string all;
    for (const char* part : {"chunk.00", "chunk.01", "chunk.02", "val", "quarantine"})
      all += read_file(folder_ / cat(name, ".", part, ".jsonl"));
    return all;
  };
  const std::string expected = whole("whole");
  int kills = 0;
  for (int kill = 1; kill <= 13; ++kill) {  // later in each further process, so that it finishes
    const std::string name = cat("killed", kill);
    options_.memory = 1 << 16;
    for (int attempt = 0; !shuffle_apart(name, kill + attempt); ++attempt) {
      ++kills;
      options_.workers = attempt % 3 + 1;
      ASSERT_LT(attempt, 100);
    }
    EXPECT_TRUE(whole(name) == expected) << name;
    EXPECT_TRUE(shuffle(name).reused);
    EXPECT_FALSE(fs::exists(folder_ / cat(".", name, ".unfinished")));
  }
  EXPECT_GT(kills, 13);
}

TEST_F(ShuffleRowsTest, KeepsUnusableRowsInFileOrder) {
  write_corpus();
  for (const char* name : {"a", "b", "c"})
    put(folder_ / cat("in/", name, ".jsonl"), "{\"n\": 1}\n[]\n" + numbered_rows(5000, 100) + "{\n");
  options_.workers = 4;
  options_.memory = 1 << 16;
  const MadeRows made = shuffle("mixed.jsonl");
  EXPECT_EQ(made.bad_rows, 6);
  const std::vector<std::string> kept = lines_in(folder_ / "mixed.quarantine.jsonl");
  ASSERT_EQ(kept.size(), 6U);
  EXPECT_THAT(kept[0], HasSubstr("in/a.jsonl\",\"line\":2,\"reason\":\"the row is an array, not an object"));
  EXPECT_THAT(kept[1], HasSubstr("in/a.jsonl\",\"line\":103"));
  EXPECT_THAT(kept[5], HasSubstr("in/c.jsonl\",\"line\":103"));
}

TEST_F(ShuffleRowsTest, ErrorsOfTooManyUnusableRowsNameTheLimit) {
  put(folder_ / "in/a.jsonl", "{\"n\": 1}\n[]\n");
  EXPECT_THAT(message_of<DataError>([&] { shuffle("mixed.jsonl"); }),
              HasSubstr("1 of 2 rows are unusable (limit 10 %, see --bad-row-share); the first is "));
  EXPECT_FALSE(fs::exists(folder_ / "mixed.jsonl"));
  options_.rows.bad_row_share = 0.5;
  EXPECT_TRUE(shuffle("mixed.jsonl").continued);
  EXPECT_EQ(read_file(folder_ / "mixed.jsonl"), "{\"n\": 1}\n");
}

TEST_F(ShuffleRowsTest, ReusesFinishedWorkAndNeverOverwrites) {
  write_corpus();
  EXPECT_FALSE(shuffle("mixed.jsonl").reused);
  options_.workers = 2;
  EXPECT_TRUE(shuffle("mixed.jsonl").reused);
  options_.seed = 9;
  EXPECT_THAT(message_of<ConfigError>([&] { shuffle("mixed.jsonl"); }),
              HasSubstr("mixed.jsonl exists already, and this command would make it"));
  fs::remove(folder_ / "mixed.jsonl");
  EXPECT_EQ(shuffle("mixed.jsonl").rows, 3000);
}

TEST_F(ShuffleRowsTest, KeepsRunsInTheGivenFolder) {
  write_corpus();
  fs::create_directory(folder_ / "scratch");
  options_.temp = folder_ / "scratch";
  int64_t files = 0;
  report_ = [&](const RowProgress& at) {
    if (std::string_view(at.phase) == "writing" && files == 0)
      for (const auto& run : fs::recursive_directory_iterator(folder_ / "scratch")) files += run.is_regular_file();
  };
  shuffle("mixed.jsonl");
  EXPECT_EQ(files, 1) << "everything fits into one run";
  EXPECT_TRUE(fs::is_empty(folder_ / "scratch"));
}

TEST_F(ShuffleRowsTest, ProgressReachesTheEndOfEachPhase) {
  write_corpus();
  std::vector<RowProgress> seen;
  report_ = [&](const RowProgress& at) { seen.push_back(at); };
  shuffle("mixed.jsonl");
  uint64_t bytes = 0;
  for (const Source& source : sources()) bytes += source.bytes;
  const auto writing = std::ranges::find_if(seen, [](const auto& at) { return std::string(at.phase) == "writing"; });
  ASSERT_NE(writing, seen.end());
  EXPECT_EQ((writing - 1)->done, bytes);
  EXPECT_EQ((writing - 1)->total, bytes);
  EXPECT_EQ(seen.back().done, seen.back().total);
}

TEST_F(ShuffleRowsTest, RefusesTooFewRowsForTheChunks) {
  put(folder_ / "in/a.jsonl", numbered_rows(0, 7));
  options_.parts = {.chunks = 4, .valid = 1};
  EXPECT_THAT(message_of<DataError>([&] { shuffle("mixed.jsonl"); }),
              HasSubstr("7 rows cannot fill 5 files: 8 are needed"));
}

TEST_F(ShuffleRowsTest, MixesTextWithRows) {
  put(folder_ / "in/a.jsonl", "{\"text\": \"a row\", \"id\": 1}\n");
  put(folder_ / "in/b.txt", "a document");
  put(folder_ / "in/c.txt", "");
  shuffle("mixed.jsonl");
  EXPECT_THAT(lines_in(folder_ / "mixed.jsonl"),
              ::testing::UnorderedElementsAre("{\"text\": \"a row\", \"id\": 1}", "{\"text\": \"a document\"}"));
}

TEST_F(ShuffleRowsTest, FailuresLeaveNoFiles) {
  write_corpus();
  put(folder_ / "in/zz.jsonl", "{\"text\": \"caf\xE9\"}\n");
  options_.temp = folder_ / "scratch";
  options_.memory = 1 << 16;
  EXPECT_THROW(shuffle("mixed.jsonl"), DataError);
  EXPECT_TRUE(hidden_in(folder_.path()).empty());
  EXPECT_TRUE(fs::is_empty(folder_ / "scratch"));
  put(folder_ / "file", "");
  options_.temp = folder_ / "file";
  EXPECT_THAT(message_of<IoError>([&] { shuffle("mixed.jsonl"); }), HasSubstr("cannot create the folder "));
  EXPECT_TRUE(hidden_in(folder_.path()).empty());
}

TEST_F(ShuffleRowsTest, KeepsAllColumnsOfTables) {
  fs::create_directory(folder_ / "in");
  fs::copy_file(golden_table("encodings/gzip_plain_v2.parquet"), folder_ / "in/a.parquet");
  EXPECT_EQ(shuffle("mixed.jsonl").rows, 40);
  Json rows = Json::array();
  for (const std::string& line : lines_in(folder_ / "mixed.jsonl")) rows.push_back(parse_json(line, "row"));
  Json expected = expected_whole();
  EXPECT_NE(rows, expected);
  EXPECT_TRUE(std::ranges::is_permutation(rows, expected));
}

}  // namespace
}  // namespace witan
