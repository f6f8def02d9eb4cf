#include "witan/data/rows/row_job.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "data/data_support.h"
#include "data/rows/row_support.h"
#include "data/tables/golden_tables.h"
#include "witan/base/error.h"
#include "witan/data/text/quarantine.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

TEST(UnusableRows, AreListedInOrderOfPlace) {
  const TempFolder folder;
  const std::vector<Source> sources = {{folder / "a.jsonl"}, {folder / "b.jsonl"}};
  const int64_t most = QuarantineLimits{}.rows;
  UnusableRows later, earlier, all;
  for (int64_t line = 1; line <= most; ++line) {
    later.add(1, {line, "bad", "later"});
    earlier.add(0, {line, "bad", "earlier"});
  }
  all.restore(later.take());
  all.restore(earlier.take());
  EXPECT_EQ(all.count(), 2 * most);
  RowOptions options;
  options.bad_row_share = 0.5;
  EXPECT_EQ(all.judge(folder / "list.jsonl", sources, 4 * most, options), folder / "list.jsonl");
  const std::vector<std::string> lines = lines_in(folder / "list.jsonl");
  ASSERT_EQ(static_cast<int64_t>(lines.size()), most) << "the first rows";
  EXPECT_THAT(lines.front(), HasSubstr("earlier"));
  EXPECT_THAT(lines.back(), HasSubstr("earlier"));
}

TEST(UnusableRows, AreCountedOnceInAJournal) {
  UnusableRows rows;
  rows.add(0, {1, "bad", "x"});
  EXPECT_EQ(rows.take().at("count"), 1);
  rows.add(0, {2, "bad", "y"});
  EXPECT_EQ(rows.take().at("count"), 1);
}

TEST(UnusableRows, MayNotBeEveryRow) {
  const TempFolder folder;
  UnusableRows rows;
  rows.add(0, {1, "bad", "x"});
  RowOptions options;
  options.bad_row_share = 1;
  EXPECT_THAT(message_of<DataError>([&] { rows.judge(folder / "list", {{folder / "a.jsonl"}}, 1, options); }),
              HasSubstr("1 of 1 rows are unusable"));
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CopyRowsTest : public ::testing::Test {
 protected:
  MadeRows copy(const std::vector<Source>& sources, const std::string& name) {
    return copy_rows(sources, folder_ / name, options_, report_);
  }
  std::vector<Source> find(const std::string& name) const { return find_sources({folder_ / name}).files; }

  TempFolder folder_;
  CopyOptions options_;
  ReportRowProgress report_;
};

TEST_F(CopyRowsTest, MergesInTheOrderOfTheSources) {
  put(folder_ / "b.jsonl", numbered_rows(0, 3));
  put(folder_ / "a.jsonl.zst", zstd(numbered_rows(3, 2)));
  std::vector<Source> sources = find("b.jsonl");
  sources.push_back(find("a.jsonl.zst")[0]);
  sources.push_back(sources[0]);
  EXPECT_EQ(copy(sources, "all.jsonl").rows, 8);
  EXPECT_THAT(numbers_in(folder_ / "all.jsonl"), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
  EXPECT_TRUE(copy(sources, "all.jsonl").reused);
  put(folder_ / "all.jsonl", read_file(folder_ / "all.jsonl") + "{}\n");
  EXPECT_THAT(message_of<ConfigError>([&] { copy(sources, "all.jsonl"); }), HasSubstr("exists already"))
      << "it was changed";
}

// The usual coreutils pipeline produces the same chunks: it distributes lines in turn and moves the first lines of each
// chunk to one file.
TEST_F(CopyRowsTest, ChunksMatchCoreutils) {
  put(folder_ / "rows.jsonl", numbered_rows(0, 501));
  const std::string shell = "cd '" + folder_.path().string() +
                            "' && split -n r/7 -d --suffix-length 2 --additional-suffix .jsonl rows.jsonl by.chunk. && "
                            "for c in by.chunk.*; do "
                            "head -n 5 $c >> by.val.jsonl; sed -i '1,5d' $c; done";
  ASSERT_EQ(std::system(shell.c_str()), 0);
  options_.parts = {.chunks = 7, .valid = 5};
  copy(find("rows.jsonl"), "ours");
  for (const char* part : {"chunk.00", "chunk.01", "chunk.02", "chunk.03", "chunk.04", "chunk.05", "chunk.06", "val"})
    EXPECT_EQ(read_file(folder_ / cat("ours.", part, ".jsonl")), read_file(folder_ / cat("by.", part, ".jsonl")))
        << part;
}

TEST_F(CopyRowsTest, SharesFormAPartition) {
  put(folder_ / "rows.jsonl", numbered_rows(0, 2000));
  options_.parts.fractions = {0.8, 0.1, 0.1};
  const MadeRows made = copy(find("rows.jsonl"), "share");
  std::vector<int> all;
  for (const char* part : {"train", "val", "test"}) {
    const std::vector<int> numbers = numbers_in(folder_ / cat("share.", part, ".jsonl"));
    EXPECT_TRUE(std::ranges::is_sorted(numbers)) << "rows keep their order";
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  std::ranges::sort(all);
  std::vector<int> expected(2000);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int>(i);
  EXPECT_EQ(all, expected);
  EXPECT_NEAR(static_cast<double>(made.files[1].rows), 200, 70);
}

TEST_F(CopyRowsTest, ContinuesAfterKillsWithTheSameBytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "forks processes";
#endif
  for (int i = 0; i < 5; ++i) put(folder_ / cat("in/", i, ".jsonl"), numbered_rows(1000 * i, 1000) + "[]\n");
  put(folder_ / "in/9.txt", "a document");
  options_.parts = {.chunks = 2, .valid = 3};
  const auto whole = [&](const std::string& name) {
    std::string all;
    for (const char* part : {"chunk.00", "chunk.01", "val", "quarantine"})
      all += read_file(folder_ / cat(name, ".", part, ".jsonl"));
    return all;
  };
  copy(find("in"), "whole");
  options_.checkpoint_bytes = 20000;
  int kills = 0;
  for (bool ended = false; !ended; ++kills) {
    ASSERT_LT(kills, 100);
    const pid_t child = ::fork();
    if (child == 0) {
      int calls = 0;
      report_ = [&](const RowProgress&) {
        if (++calls == 3) ::kill(::getpid(), SIGKILL);
      };
      try {
        copy(find("in"), "killed");
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    ended = WIFEXITED(status);
  }
  EXPECT_GT(kills, 5);
  EXPECT_TRUE(whole("killed") == whole("whole"));
}

TEST_F(CopyRowsTest, ErrorsNameImpossibleOptions) {
  put(folder_ / "empty.jsonl", "\n");
  EXPECT_THAT(message_of<DataError>([&] { copy(find("empty.jsonl"), "a"); }), HasSubstr("found no document in 1 file"));
  put(folder_ / "rows.jsonl", numbered_rows(0, 5));
  options_.parts = {.chunks = 4, .valid = 1};
  EXPECT_THAT(message_of<DataError>([&] { copy(find("rows.jsonl"), "b"); }),
              HasSubstr("5 rows cannot fill 5 files: 8 are needed"));
  put(folder_ / "c.jsonl", "");
  options_.parts = {};
  EXPECT_THAT(message_of<ConfigError>([&] { copy(find("rows.jsonl"), "c"); }), HasSubstr("c.jsonl exists already"));
  EXPECT_FALSE(fs::exists(folder_ / ".c.unfinished"));
}

TEST_F(CopyRowsTest, NeverOverwritesInputsOrFilesOfTheUser) {
  put(folder_ / "rows.jsonl", numbered_rows(0, 30) + "[]\n");
  const std::string before = read_file(folder_ / "rows.jsonl");
  EXPECT_THAT(message_of<UsageError>([&] { copy(find("rows.jsonl"), "rows"); }), HasSubstr("is one of the inputs"));
  put(folder_ / "a.quarantine.jsonl", "notes of my own");
  EXPECT_THAT(message_of<ConfigError>([&] { copy(find("rows.jsonl"), "a"); }),
              HasSubstr("a.quarantine.jsonl exists already"));
  EXPECT_EQ(read_file(folder_ / "rows.jsonl"), before);
  EXPECT_EQ(read_file(folder_ / "a.quarantine.jsonl"), "notes of my own");
  EXPECT_FALSE(fs::exists(folder_ / ".a.unfinished"));
  fs::remove(folder_ / "a.quarantine.jsonl");
  EXPECT_EQ(copy(find("rows.jsonl"), "a").bad_rows, 1);
  fs::remove(folder_ / "a.jsonl");
  EXPECT_EQ(copy(find("rows.jsonl"), "a").bad_rows, 1) << "its own list is rewritten";
}

TEST_F(CopyRowsTest, KeepsUnfinishedWorkOnlyIfUseful) {
  put(folder_ / "rows.jsonl", "{\"n\": 1}\n[]\n");
  EXPECT_THAT(message_of<DataError>([&] { copy(find("rows.jsonl"), "a"); }),
              AllOf(HasSubstr("1 of 2 rows are unusable"), HasSubstr("what is done is kept in "),
                    HasSubstr(".a.unfinished, and the same command continues from there")));
  EXPECT_TRUE(fs::exists(folder_ / ".a.unfinished"));
  options_.rows.bad_row_share = 0.5;
  EXPECT_TRUE(copy(find("rows.jsonl"), "a").continued);
  EXPECT_FALSE(fs::exists(folder_ / ".a.unfinished"));

  options_.rows.bad_row_share = 0.1;
  put(folder_ / "in/1.jsonl", numbered_rows(0, 2000));
  put(folder_ / "in/2.jsonl", "{\"text\": \"caf\xE9\"}\n");
  options_.checkpoint_bytes = 20000;
  EXPECT_THAT(message_of<DataError>([&] { copy(find("in"), "b"); }),
              AllOf(HasSubstr("is not UTF-8"), ::testing::Not(HasSubstr("kept"))));
  EXPECT_FALSE(fs::exists(folder_ / ".b.unfinished")) << "with another source everything starts over";
  report_ = [](const RowProgress&) { throw DiskFullError("the disk is full"); };
  fs::remove(folder_ / "in/2.jsonl");
  EXPECT_THAT(message_of<DiskFullError>([&] { copy(find("in"), "c"); }), ::testing::Not(HasSubstr("kept")));
  EXPECT_FALSE(fs::exists(folder_ / ".c.unfinished")) << "nothing was done";
  int calls = 0;
  report_ = [&](const RowProgress&) {
    if (++calls == 6) throw DiskFullError("the disk is full");
  };
  EXPECT_THAT(message_of<DiskFullError>([&] { copy(find("in"), "c"); }), HasSubstr("kept in "));
  report_ = {};
  EXPECT_TRUE(copy(find("in"), "c").continued);
  EXPECT_EQ(read_file(folder_ / "c.jsonl"), read_file(folder_ / "in/1.jsonl"));
}

TEST_F(CopyRowsTest, CountsEveryRowOfATable) {
  fs::copy_file(golden_table("encodings/zstd_plain_v1.parquet"), folder_ / "a.parquet");
  EXPECT_EQ(copy(find("a.parquet"), "all").rows, 40);
  options_.rows.text_key = "text";
  options_.rows.bad_row_share = 0.5;
  const MadeRows made = copy(find("a.parquet"), "with_text");
  EXPECT_EQ(made.rows + made.bad_rows, 40);
  EXPECT_GT(made.bad_rows, 0);
}

}  // namespace
}  // namespace witan
