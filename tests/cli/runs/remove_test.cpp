// witan runs remove.

#include "cli/runs/runs_support.h"
#include "support/program.h"
#include "witan/train/state/run_folder.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class RemoveTest : public MadeUpRuns {
 protected:
  Said remove(std::vector<std::string> names, const std::string& answer) const {
    names.insert(names.begin(), "remove");
    return runs(names, answer);
  }
  void expect_kept(const Said& said, const std::string& run, const std::string& why) const {
    EXPECT_EQ(said.code, 2) << said.err;
    EXPECT_TRUE(contains(said.err, why)) << said.err;
    EXPECT_TRUE(fs::exists(runs_ / run / "config.toml"));
  }
};

TEST_F(RemoveTest, RequiresNames) {
  for (const char* command : {"remove", "compare"}) {
    const Said said = runs({command}, "");
    EXPECT_EQ(said.code, 2);
    EXPECT_TRUE(contains(said.err, cat("name the runs to ", command, ": witan runs ", command, " NAME"))) << said.err;
  }
}

TEST_F(RemoveTest, AsksAndReportsFreedSpace) {
  make("a", 3);
  write_text(runs_ / "a/checkpoints/step-3/shard", std::string(3 << 20, 'x'));
  expect_kept(remove({"a"}, ""), "a", "nothing was removed: answer y, or give --yes");
  expect_kept(remove({"a"}, "no\n"), "a", "nothing was removed");
  const Said said = remove({"a"}, "y\n");
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "1 checkpoint, the newest of step 3")) << said.err;
  EXPECT_TRUE(contains(said.err, "MiB in 1 run would be freed\nremove? [y/N] removed ")) << said.err;
  EXPECT_FALSE(fs::exists(runs_ / "a"));
  EXPECT_TRUE(fs::is_empty(runs_));
}

TEST_F(RemoveTest, RemovesAllNamedRunsOrNone) {
  for (const char* name : {"a", "b", "c"}) make(name, 3);
  const auto lock = RunLock::take(runs_ / "b");
  expect_kept(remove({"a", "b", "--yes"}, ""), "a", "the run b is training");
  expect_kept(remove({"a", "nowhere", "--yes"}, ""), "a", "no run nowhere");
  EXPECT_EQ(remove({"a", "c", "a", "--yes"}, "").code, 0);
  EXPECT_FALSE(fs::exists(runs_ / "a") || fs::exists(runs_ / "c"));
  EXPECT_TRUE(fs::exists(runs_ / "b"));
}

TEST_F(RemoveTest, NamesCannotLeaveTheFolder) {
  make("a", 3);
  write_text(folder_ / "other/config.toml", "");
  for (const char* name : {"../other", ".", "..", "/", "a/"})
    expect_kept(remove({name, "--yes"}, ""), "a", "there is no run");
  expect_kept(remove({"", "--yes"}, ""), "a", "a run's name is empty");
  fs::create_directory_symlink(folder_ / "other", runs_ / "linked");
  expect_kept(remove({"linked", "--yes"}, ""), "a", "is a link");
  EXPECT_TRUE(fs::exists(folder_ / "other/config.toml"));
}

TEST_F(RemoveTest, RemovesLeftoversOfAFailedStart) {
  make("a", 3);
  for (const char* file : {"left/.lock", "left/tokenizer.json", "left/data/tokens.bin", "locked/.lock", "mine/.lock",
                           "mine/notes.txt", "files/data/tokens.bin", "book/.lock", "book/data/book.txt"})
    write_text(runs_ / file, "x");
  const Said listed = runs();
  EXPECT_TRUE(contains(listed.err, "left: no run: a start that failed left a tokenizer and tokens there"))
      << listed.err;
  EXPECT_TRUE(contains(listed.err, "`witan runs remove left --runs-folder ")) << listed.err;
  EXPECT_TRUE(contains(listed.err, "mine: no config.toml, so no run")) << listed.err;
  for (const char* name : {"mine", "files", "book", "./left", "left/"})
    EXPECT_TRUE(contains(remove({name, "--yes"}, "").err, "there is no run ")) << name;
  EXPECT_TRUE(contains(remove({"left"}, "").err, "nothing was removed: answer y"));
  EXPECT_TRUE(fs::exists(runs_ / "left/data/tokens.bin"));
  const Said said = remove({"left", "locked"}, "y\n");
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "no run: a start that failed left a tokenizer and tokens\n")) << said.err;
  EXPECT_TRUE(contains(said.err, "no run: a start that failed left a lock\n")) << said.err;
  EXPECT_FALSE(fs::exists(runs_ / "left") || fs::exists(runs_ / "locked"));
  for (const char* file : {"a/config.toml", "mine/notes.txt", "files/data/tokens.bin", "book/data/book.txt"})
    EXPECT_TRUE(fs::exists(runs_ / file)) << file;
}

TEST_F(RemoveTest, RemovesLeftoversOfAStartThatFailedWithOpenRecords) {
  make("a", 3);
  make("late", 0, "", "failed: no such folder");
  fs::remove(runs_ / "late/config.toml");
  for (const char* file : {".lock", "tokenizer.json", "data/tokens.bin", "train.log", "progress.txt",
                           "tensorboard/events.out.tfevents.1.host.2.0"})
    write_text(runs_ / "late" / file, "x");
  const std::string left = "no run: a start that failed left a tokenizer, tokens and records without a step";
  EXPECT_TRUE(contains(runs().err, "late: " + left)) << runs().err;
  write_text(runs_ / "late/tensorboard/notes.txt", "x");
  EXPECT_TRUE(contains(remove({"late", "--yes"}, "").err, "there is no run late"));
  fs::remove(runs_ / "late/tensorboard/notes.txt");
  const Said said = remove({"late", "--yes"}, "");
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, left + "\n")) << said.err;
  EXPECT_FALSE(fs::exists(runs_ / "late"));
}

// Only its configuration is lost.
TEST_F(RemoveTest, RunsWithRecordedStepsAreNotLeftovers) {
  make("a", 3);
  write_text(runs_ / "lost/.lock", "");
  fs::copy_file(runs_ / "a/metrics.jsonl", runs_ / "lost/metrics.jsonl");
  EXPECT_TRUE(contains(runs().err, "lost: no config.toml, so no run")) << runs().err;
  EXPECT_TRUE(contains(remove({"lost", "--yes"}, "").err, "there is no run lost"));
  EXPECT_TRUE(fs::exists(runs_ / "lost/metrics.jsonl"));
}

TEST_F(RemoveTest, KeepsAFailedStartThatTriesAgain) {
  make("a", 3);
  write_text(runs_ / "left/.lock", "");
  const auto lock = RunLock::take(runs_ / "left");
  EXPECT_TRUE(contains(remove({"left", "--yes"}, "").err, "the run left is training"));
  EXPECT_TRUE(contains(runs().err, "left: no run yet: it is being started")) << runs().err;
  EXPECT_TRUE(fs::exists(runs_ / "left"));
}

TEST_F(RemoveTest, KeepsRunsThatOthersNeed) {
  make("base", 3);
  make("tuned", 3, "init_from = \"base\"\n");
  expect_kept(remove({"base", "--yes"}, ""), "base", "the run tuned was given init_from = base");
  for (const std::string& named : {std::string("base@best"), (runs_ / "base@3").string()}) {
    make("of", 3, "init_from = \"" + named + "\"\n");
    expect_kept(remove({"base", "--yes"}, ""), "base", "the run of was given init_from = " + named);
  }
  fs::create_directories(runs_ / "of/checkpoints/step-3");
  fs::create_directories(runs_ / "tuned/checkpoints/step-3");  // from which it would resume
  make("shards", 3,
       "[data]\ntokenizer = \"t.json\"\ndata_path = \"x," + (runs_ / "base/data/tokens").string() + "\"\n");
  expect_kept(remove({"base", "--yes"}, ""), "base", "the run shards was given data_path = x,");
  EXPECT_EQ(remove({"base", "shards", "--yes"}, "").code, 0) << "both together";
  EXPECT_TRUE(fs::exists(runs_ / "tuned"));
}

TEST_F(RemoveTest, KeepsRunsInUse) {
  make("a", 3);
  const fs::path file = runs_ / "a/metrics.jsonl";
  {
    Program reader({"/bin/sh", "-c", "exec 3<'" + file.string() + "'; echo; exec sleep 600"}, folder_ / "log");
    ASSERT_TRUE(reader.reaches([&] { return !read_text(folder_ / "log").empty(); }, 60));
    expect_kept(remove({"a", "--yes"}, ""), "a", "has " + file.string() + " open");
  }
  EXPECT_EQ(remove({"a", "--yes"}, "").code, 0);
}

TEST_F(RemoveTest, RemovesLeftoversOfAKilledRemoval) {
  make("a", 3);
  make("b", 3);
  fs::rename(runs_ / "a", runs_ / ".removed-a");
  EXPECT_FALSE(contains(runs().out, "removed"));
  EXPECT_EQ(remove({"b", "--yes"}, "").code, 0);
  EXPECT_TRUE(fs::is_empty(runs_));
}

}  // namespace
}  // namespace witan::test
