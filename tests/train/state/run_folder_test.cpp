#include "witan/train/state/run_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;

TEST(RunFolder, RemovesPartialFilesOfAKilledProcess) {
  const TempFolder folder;
  fs::create_directories(folder / "left" / "data");
  for (const char* name : {".tmp-config.toml.1.0", "data/.tmp-tokens.bin.1.0", "notes.txt"})
    std::ofstream(folder / "left" / name) << "half";
  const RunFolder mine(folder.path().string(), "left");
  EXPECT_FALSE(fs::exists(folder / "left" / ".tmp-config.toml.1.0"));
  EXPECT_FALSE(fs::exists(folder / "left" / "data" / ".tmp-tokens.bin.1.0"));
  EXPECT_TRUE(fs::exists(folder / "left" / "notes.txt"));
}

TEST(RunFolder, IsRemovedIfNothingWasWritten) {
  const TempFolder folder;
  for (const char* file : {"", "data/tokens.bin", "tokenizer.json", "config.toml"}) {
    {
      const RunFolder mine(folder.path(), "run");
      fs::create_directories(folder / "run" / "data");
      if (*file) std::ofstream(folder / "run" / file) << "kept";
    }
    EXPECT_EQ(fs::exists(folder / "run"), *file != 0) << file;
    EXPECT_EQ(fs::exists(folder / "run" / file), *file != 0);
    fs::remove_all(folder / "run");
  }
}

TEST(RunFolder, NewRunsMustNotHaveNamesOfCheckpoints) {
  const TempFolder folder;
  for (const char* name : {"a@best", "a@300", "@", "a@b"}) {
    const std::string message = message_of<ConfigError>([&] { RunFolder(folder.path(), name); });
    EXPECT_NE(message.find(cat("run = \"", name, "\": a new run's name has no @")), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(folder / name));
  }
  EXPECT_THROW(RunFolder(folder.path(), "a@b", RunFolder::Access::stage), ConfigError);
  fs::create_directory(folder / "a@best");
  std::ofstream(folder / "a@best" / "config.toml") << "old";
  EXPECT_NO_THROW(RunFolder(folder.path(), "a@best")) << "an existing one is resumed";
}

TEST(RunFolder, ErrorsForPathsNameTheRunAndItsFolder) {
  const auto refusal = [](const char* name) { return message_of<ConfigError>([&] { check_new_name("runs", name); }); };
  EXPECT_EQ(refusal("../old/k"), "run = \"../old/k\" must be a name without slashes: give --run k --runs-folder old");
  EXPECT_EQ(refusal("sub/new/"),
            "run = \"sub/new/\" must be a name without slashes: give --run new --runs-folder runs/sub");
  EXPECT_NE(refusal("/a/b").find("--run b --runs-folder /a"), std::string::npos);
}

// `witan runs` and `witan watch` skip hidden folders.
TEST(RunFolder, NewRunsMustNotBeHidden) {
  const TempFolder folder;
  for (const char* name : {".x", ".mine.fresh"}) {
    const std::string message = message_of<ConfigError>([&] { RunFolder(folder.path(), name); });
    EXPECT_NE(message.find("does not begin with a dot"), std::string::npos) << message;
    EXPECT_NE(message.find("another name with --run"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(folder / name));
  }
  fs::create_directory(folder / ".old");
  std::ofstream(folder / ".old" / "config.toml") << "old";
  EXPECT_NO_THROW(RunFolder(folder.path(), ".old")) << "an existing one is resumed";
}

TEST(RunFolder, ARunHasOneProcess) {
  const TempFolder folder;
  const RunFolder mine(folder.path().string(), "taken");
  const std::string message = message_of<ConfigError>([&] { RunFolder(folder.path().string(), "taken"); });
  EXPECT_NE(message.find("another process trains or imports"), std::string::npos) << message;
}

TEST(RunFolder, ArchivesWithoutOverwriting) {
  const TempFolder folder;
  fs::create_directory(folder / "x");
  std::ofstream(folder / "x" / "config.toml") << 0;
  for (const int run : {1, 2}) {
    RunFolder old(folder.path(), "x");
    EXPECT_FALSE(old.empty());
    RunFolder staged(folder.path(), "x", RunFolder::Access::stage);
    EXPECT_TRUE(staged.empty());
    std::ofstream(staged.config()) << run;
    const fs::path archived = folder / cat("x.", run);
    EXPECT_EQ(staged.replace(old), archived);
    EXPECT_EQ(read_file(archived / "config.toml"), std::to_string(run - 1));
    EXPECT_EQ(read_file(folder / "x" / "config.toml"), std::to_string(run));
    EXPECT_EQ(staged.path(), folder / "x");
    EXPECT_THROW(RunFolder(folder.path(), "x"), ConfigError) << "it remains locked";
  }
  { const RunFolder unused(folder.path(), "x", RunFolder::Access::stage); }
  EXPECT_FALSE(fs::exists(folder / ".x.fresh")) << "it was empty";
}

TEST(RunFolder, AFailedReplacementKeepsTheOldRun) {
  const TempFolder folder;
  RunFolder old(folder.path(), "x");
  std::ofstream(old.config()) << "old";
  RunFolder staged(folder.path(), "x", RunFolder::Access::stage);
  fs::remove_all(folder / ".x.fresh");
  EXPECT_THROW(staged.replace(old), IoError);
  EXPECT_EQ(old.path(), folder / "x");
  EXPECT_EQ(read_file(folder / "x" / "config.toml"), "old");
  EXPECT_FALSE(fs::exists(folder / "x.1"));
}

TEST(RunLock, IsHeldByOneAndSeenByOthers) {
  const test::TempFolder folder;
  const fs::path run = folder / "run";
  fs::create_directories(run);
  EXPECT_FALSE(is_training(run));
  EXPECT_FALSE(fs::exists(run / ".lock")) << "testing creates no file";
  std::optional<RunLock> lock = RunLock::take(run);
  ASSERT_TRUE(lock);
  EXPECT_TRUE(is_training(run));
  EXPECT_FALSE(RunLock::take(run));
  RunLock moved = std::move(*lock);
  lock.reset();
  EXPECT_TRUE(is_training(run)) << "the lock was moved to this object";
  { const RunLock last = std::move(moved); }
  EXPECT_FALSE(is_training(run));
  EXPECT_TRUE(RunLock::take(run)) << "the file remains and can be locked again";
}

TEST(RunLock, FoldersThatAreNotRunsHaveNone) {
  const test::TempFolder folder;
  EXPECT_FALSE(is_training(folder / "nowhere"));
  fs::create_directories(folder / "run/.lock");
  EXPECT_FALSE(is_training(folder / "run"));
}

}  // namespace
}  // namespace witan
