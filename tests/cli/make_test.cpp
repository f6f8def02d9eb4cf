// `make train` when Ctrl-C and other signals end it.
#include <csignal>
#include <utility>

#include "cli/cli_support.h"
#include "support/program.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class MakeTest : public ::testing::Test {
 protected:
  // The project's Makefile, whose recipe finds this build's program in a test folder.
  MakeTest() {
    const fs::path source = WITAN_SOURCE_DIR;
    write_text(own_ / "my.txt", some_text(400));
    fs::create_directory_symlink(source / "scripts", own_ / "scripts");
    fs::create_directories(own_ / "build/release");
    fs::create_symlink(WITAN_PROGRAM, own_ / "build/release/witan");
    // env restores Ctrl-C, which shells ignore in background jobs; setsid creates a process group like a terminal's.
    make_ = std::make_unique<Program>(
        std::vector<std::string>{"/usr/bin/env", "--default-signal=INT", "setsid", "make", "--no-print-directory", "-C",
                                 own_.path(), "-f", source / "Makefile", "-o", "build", "train",
                                 "ARGS=--data my.txt --tokenizer-vocab-size 300 --hidden-size 16 --ffn-hidden-size 16 "
                                 "--seq-length 16 --train-iters 1000000"},
        log());
  }
  bool trains() {
    return make_->reaches([&] { return contains(read_text(own_ / "runs/default/metrics.jsonl"), "\"kind\":\"step\""); },
                          60);
  }
  fs::path log() const { return own_ / "log"; }
  std::string said() const { return read_text(log()); }

  TempFolder own_;
  std::unique_ptr<Program> make_;
};

TEST_F(MakeTest, CtrlCIsNotAnError) {
  ASSERT_TRUE(trains()) << said();
  make_->send_to_group(SIGINT);
  EXPECT_EQ(make_->wait(), -SIGINT) << said();
  EXPECT_FALSE(contains(said(), "***")) << said();
  EXPECT_FALSE(fs::is_empty(own_ / "runs/default/checkpoints"));
}

// When a supervisor ends it, the program receives the signal and saves.
TEST_F(MakeTest, ASignalToMakeAloneReachesTheProgram) {
  ASSERT_TRUE(trains()) << said();
  make_->send(SIGTERM);
  EXPECT_EQ(make_->wait(), -SIGTERM) << said();
  EXPECT_FALSE(contains(said(), "***")) << said();
  EXPECT_FALSE(fs::is_empty(own_ / "runs/default/checkpoints"));
}

// The recipe limits the time of a first run; a call with its own arguments is not limited.
TEST(MakeTrain, LimitsTheDefaultRunToMinutes) {
  const TempFolder own;
  fs::create_directory_symlink(fs::path(WITAN_SOURCE_DIR) / "scripts", own / "scripts");
  write_text(own / "build/release/witan", "#!/bin/sh\necho \"called: $*\"\n");
  fs::permissions(own / "build/release/witan", fs::perms::owner_all);
  const auto call = [&](const std::vector<std::string>& variables) {
    std::vector<std::string> words = {"/usr/bin/env",
                                      "-u",
                                      "MINUTES",
                                      "-u",
                                      "ARGS",
                                      "make",
                                      "--no-print-directory",
                                      "-C",
                                      own.path(),
                                      "-f",
                                      fs::path(WITAN_SOURCE_DIR) / "Makefile",
                                      "-o",
                                      "build",
                                      "train"};
    words.insert(words.end(), variables.begin(), variables.end());
    Program make(words, own / "log");
    EXPECT_EQ(make.wait(), 0);
    return read_text(own / "log");
  };
  EXPECT_EQ(call({}), "called: train --max-minutes 6\n");
  EXPECT_EQ(call({"MINUTES=0"}), "called: train\n");
  EXPECT_EQ(call({"ARGS=--data my.txt"}), "called: train --data my.txt\n");
  EXPECT_EQ(call({"MINUTES=20", "ARGS=--data my.txt"}), "called: train --max-minutes 20 --data my.txt\n");
}

TEST(MakeTrain, KeepsTheStatusOfAFailedProgram) {
  const TempFolder own;
  for (const int code : {0, 1, 4, 75, 130}) {
    Program script(
        {std::string(WITAN_SOURCE_DIR) + "/scripts/train.sh", "/bin/sh", "-c", "exit " + std::to_string(code)},
        own / "log");
    EXPECT_EQ(script.wait(), code);
  }
}

// Signals sent only to the script, which forwards them. The program ends by itself if it receives none.
TEST(MakeTrain, ForwardsSignalsToTheProgram) {
  const TempFolder own;
  for (const auto& [name, signal] : {std::pair("TERM", SIGTERM), std::pair("HUP", SIGHUP)}) {
    const fs::path log = own / name;
    Program script(
        {"/usr/bin/env", "--default-signal", std::string(WITAN_SOURCE_DIR) + "/scripts/train.sh", "/bin/sh", "-c",
         cat("trap 'echo saved; exit 75' ", name, "; echo ready; for i in $(seq 100); do sleep 0.05; done; exit 3")},
        log);
    ASSERT_TRUE(script.reaches([&] { return contains(read_text(log), "ready"); }, 20));
    do {
      script.send(signal);  // again if the script did not know the program's pid yet
    } while (!script.ends_within(1));
    EXPECT_EQ(script.wait(), 0) << name;
    EXPECT_TRUE(contains(read_text(log), "saved")) << name;
  }
}

}  // namespace
}  // namespace witan::test
