#include "witan/data/rows/copy_rows.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "data/compress.h"
#include "data/rows/row_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

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
}

// What the usual pipeline of coreutils makes: lines distributed in turn, the first ones of each chunk moved to one file.
TEST_F(CopyRowsTest, ChunksAreThoseOfCoreutils) {
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

TEST_F(CopyRowsTest, SharesAreAPartition) {
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

TEST_F(CopyRowsTest, GoesOnAfterKillsToTheSameBytes) {
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

TEST_F(CopyRowsTest, NamesWhatCannotBe) {
  put(folder_ / "empty.jsonl", "\n");
  EXPECT_THAT(message_of<DataError>([&] { copy(find("empty.jsonl"), "a"); }), HasSubstr("found no document in 1 file"));
  put(folder_ / "rows.jsonl", numbered_rows(0, 5));
  options_.parts = {.chunks = 4, .valid = 1};
  EXPECT_THAT(message_of<DataError>([&] { copy(find("rows.jsonl"), "b"); }),
              HasSubstr("5 rows cannot fill 5 files: 8 are needed"));
  put(folder_ / "c.jsonl", "");
  options_.parts = {};
  EXPECT_THAT(message_of<ConfigError>([&] { copy(find("rows.jsonl"), "c"); }), HasSubstr("c.jsonl exists already"));
}

}  // namespace
}  // namespace witan
