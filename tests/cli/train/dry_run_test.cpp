// witan train --dry-run describes the run, fails like the run, and writes nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include "cli/small_runs.h"
#include "witan/base/error.h"
#include "witan/cli/train/start_checks.h"
#include "witan/train/state/run_folder.h"

namespace witan::test {
namespace {

class DryRunTest : public SmallRuns {
 protected:
  // A small training command with additional flags.
  static Words training(const Words& more) {
    return with_flags(words_in("train --device cpu --seq-length 16 --micro-batch-size 1 --global-batch-size 4 "
                               "--train-iters 6 --num-layers 2 --hidden-size 32 --ffn-hidden-size 32 --num-experts 4 "
                               "--tokenizer-vocab-size 300 --sample-tokens 0 --held-out-fraction 0.2"),
                      more);
  }
  Said try_out(std::vector<std::string> more) const {
    more.emplace_back("--dry-run");
    return run(training(more));
  }
  std::vector<std::string> with_text(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--data", (folder_ / "text.txt").string()});
    return more;
  }
  // Everything below the folder, with sizes and modification times.
  std::map<std::string, std::string> everything() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      struct stat status {};
      ::lstat(entry.path().c_str(), &status);
      found[entry.path()] = cat(status.st_size, " ", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec);
    }
    return found;
  }
  void expect_fails(const std::vector<std::string>& args, int code, const std::string& why) const {
    const auto before = everything();
    const Said said = try_out(args);
    EXPECT_EQ(said.code, code) << said.err;
    EXPECT_TRUE(contains(said.err, why)) << said.err;
    EXPECT_EQ(everything(), before);
  }
};

TEST_F(DryRunTest, DescribesANewRunAndWritesNothing) {
  const auto before = everything();
  const Said said = try_out(with_text());
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_EQ(everything(), before);
  for (const char* piece : {"would be trained on the text, with at most 300 entries", "1 file, ", "to be tokenized",
                            "not checked  whether its rows are usable, and whether it has the 34 tokens",
                            "default would start, to train for 384 tokens; nothing was written"})
    EXPECT_TRUE(contains(said.err, piece)) << piece << " in " << said.err;
}

// With a tokenizer, sets are tokenized; otherwise only their sizes are known.
TEST_F(DryRunTest, ReportsUntokenizedSets) {
  write_text(folder_ / "own.txt", some_text(3));
  const std::string set = "own=" + (folder_ / "own.txt").string();
  const Said untrained = try_out(with_text({"--valid-data", set}));
  EXPECT_EQ(untrained.code, 0) << untrained.err;
  EXPECT_TRUE(contains(untrained.err, "not checked  whether each set of valid_data has the 17 tokens of a sample"))
      << untrained.err;
  const std::string tokenizer = folder_ / "t.json";
  ASSERT_EQ(witan({"tokenizer", "train", folder_ / "text.txt", "--vocab-size", "300", "--output", tokenizer}).code, 0);
  const Said known = try_out(with_text({"--valid-data", set, "--tokenizer", tokenizer}));
  EXPECT_EQ(known.code, 0) << known.err;
  EXPECT_TRUE(contains(known.err, "validation   own: ")) << known.err;
  EXPECT_FALSE(contains(known.err, "each set of valid_data")) << known.err;
}

TEST_F(DryRunTest, ReadsARunOnDiskWithoutChangingIt) {
  train_small("a", {});
  const auto before = everything();
  const Said more = try_out(with_text({"--run", "a"}));
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_TRUE(contains(more.err, "would resume from step 2, to train for 256 tokens")) << more.err;
  EXPECT_TRUE(contains(more.err, "epochs")) << more.err;
  const Said done = run({"train", "--run", "a", "--dry-run"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "is finished")) << done.err;
  const Said fresh = try_out(with_text({"--run", "a", "--fresh"}));
  EXPECT_TRUE(contains(fresh.err, "would be archived, and a new run would start")) << fresh.err;
  EXPECT_EQ(everything(), before);
  expect_fails(with_text({"--run", "a", "--seed", "5"}), 3, "was started with another configuration");
  const auto lock = RunLock::take(folder_ / "runs/a");
  expect_fails(with_text({"--run", "a"}), 3, "another process trains or imports");
}

TEST_F(DryRunTest, NamesSourcesWithoutText) {
  write_text(folder_ / "empty.txt", "");
  fs::create_directories(folder_ / "nofiles");
  const std::string text = folder_ / "text.txt", empty = folder_ / "empty.txt", none = folder_ / "nofiles";
  const std::string said = "left out: 1 empty file (" + empty + "), 1 folder without text (" + none + ")\n";
  const Said tried = try_out({"--data", cat(text, ",", empty, ",", none)});
  EXPECT_EQ(tried.code, 0) << tried.err;
  EXPECT_TRUE(contains(tried.err, said)) << tried.err;
  done(training({"--run", "a", "--data", cat(text, ",", empty, ",", none), "--train-iters", "1"}));
  EXPECT_TRUE(contains(file("runs/a/train.log"), "Z warning " + said)) << file("runs/a/train.log");
}

TEST_F(DryRunTest, FailsLikeTheRun) {
  expect_fails({"--data", (folder_ / "nowhere.txt").string()}, 4, "nowhere.txt");
  write_text(folder_ / "binary", std::string("a\0b", 3));
  expect_fails({"--data", (folder_ / "binary").string()}, 4, "binary");
  write_text(folder_ / "empty.txt", "");
  expect_fails({"--data", (folder_ / "empty.txt").string()}, 4, "empty.txt: there is no text");
  expect_fails(with_text({"--valid-data", "own=" + (folder_ / "empty.txt").string()}), 4,
               "valid_data: own: " + (folder_ / "empty.txt").string() + " is empty: there is no text");
  write_text(folder_ / "latin1.txt", some_text(20) + "caf\xe9 au lait\n");
  expect_fails(with_text({"--valid-data", "own=" + (folder_ / "latin1.txt").string()}), 4,
               "valid_data: own: " + (folder_ / "latin1.txt").string() + ": byte ");
  expect_fails(
      {"--data", (folder_ / "text.txt").string() + "," + (folder_ / "empty.txt").string(), "--data-weights", "1,1"}, 4,
      (folder_ / "empty.txt").string() + ": there is no text: 1 file of 0 bytes");
  expect_fails(with_text({"--replay-routes", folder_ / "no-routes"}), 4, "no-routes: there are no recorded routes");
  write_text(folder_ / "short.txt", "too short");
  expect_fails(
      {"--data", (folder_ / "short.txt").string()}, 4,
      "short.txt has 9 bytes, which are 10 tokens at most; with seq_length 16 a sample to train on and one for "
      "validation need 34");
  expect_fails(with_text({"--valid-data", "own=" + (folder_ / "short.txt").string()}), 4,
               "short.txt has 9 bytes, which are 10 tokens at most; with seq_length 16 a sample needs 17");
  expect_fails(with_text({"--tokenizer", folder_ / "no.json"}), 4, "no.json");
  expect_fails(with_text({"--ranks", "3"}), 3, "ranks");
  expect_fails(with_text({"--valid-data", "code=" + (folder_ / "no.txt").string()}), 4, "no.txt");
  expect_fails(with_text({"--init-from", folder_ / "no-run"}), 5, "no-run");
  expect_fails(with_text({"--upcycle", folder_ / "no-run"}), 5, "no-run");
  expect_fails(with_text({"--hidden-size", "65536", "--num-layers", "40"}), 8, "memory");
  write_text(folder_ / "runs", "a file");
  expect_fails(with_text(), 4, "is not a folder");
}

TEST_F(DryRunTest, ReportsUnwritableFolders) {
  if (::geteuid() == 0) GTEST_SKIP() << "root can write everywhere";
  fs::create_directories(folder_ / "runs");
  fs::permissions(folder_ / "runs", fs::perms::owner_read | fs::perms::owner_exec);
  expect_fails(with_text(), 4, "cannot write to the run folder");
}

// Runs as a user other than root.
TEST_F(DryRunTest, GivesTheReasonOfTheFolder) {
  const auto try_as_nobody = [] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(1);
    errno = ENOENT;
    try {
      cli::require_usable_folder("/usr/no-such-folder/a");
    } catch (const IoError& error) {
      std::fputs(error.what(), stderr);
      ::_exit(7);
    }
    ::_exit(0);
  };
  EXPECT_EXIT(try_as_nobody(), ::testing::ExitedWithCode(7),
              "cannot write to the run folder /usr/no-such-folder/a: /usr: (Permission denied|Read-only file system)");
}

}  // namespace
}  // namespace witan::test
