// Sends signals to the real program at various moments: it either saves and reports the signal by its exit code, or
// ends at once without losing saved checkpoints.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <memory>

#include "reliability/small_runs.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"

namespace witan::test {
namespace {

class Signals : public ::testing::Test {
 protected:
  Signals() {
    std::ofstream text(own_ / "text.txt");
    for (int i = 0; i < 400; ++i)
      text << "The council of experts met for the " << i << "th time and spoke of grain.\n\n";
  }

  fs::path run() const { return own_ / "runs" / "default"; }

  void start(std::vector<std::string> more) {
    std::vector<std::string> args = {WITAN_BINARY,
                                     "train",
                                     "--runs-folder",
                                     own_ / "runs",
                                     "--data",
                                     own_ / "text.txt",
                                     "--ranks",
                                     "2",
                                     "--threads",
                                     "1",
                                     "--num-layers",
                                     "1",
                                     "--hidden-size",
                                     "16",
                                     "--num-experts",
                                     "2",
                                     "--ffn-hidden-size",
                                     "16",
                                     "--seq-length",
                                     "16",
                                     "--tokenizer-vocab-size",
                                     "260",
                                     "--held-out-fraction",
                                     "0.05",
                                     "--eval-iters",
                                     "1"};
    args.insert(args.end(), more.begin(), more.end());
    program_ = std::make_unique<Program>(std::move(args), own_ / "said");
  }
  // Whether the condition became true within a minute, before the program ended.
  bool reaches(const std::function<bool()>& place) const { return program_->reaches(place, 60); }
  bool said(const std::string& words) const { return read_file(own_ / "said").find(words) != std::string::npos; }
  void send(int signal) const { program_->send(signal); }
  int exit_code() const { return program_->wait(); }
  // The folder of the newest checkpoint, complete or not.
  int64_t last_folder() const {
    const auto all = step_folders(run() / "checkpoints");
    return all.empty() ? 0 : all[0].first;
  }

  TempFolder own_;
  std::unique_ptr<Program> program_;
};

TEST_F(Signals, SaveAndReportTheSignal) {
  int64_t before = 0;
  for (const auto& [signal, code] :
       {std::pair{SIGTERM, 75}, std::pair{SIGUSR1, 75}, std::pair{SIGUSR2, 75}, std::pair{SIGINT, 130}}) {
    start({"--train-iters", "1000000", "--save-interval", "0", "--eval-interval", "0"});
    const auto log = run() / "train.log", metrics = run() / "metrics.jsonl";
    const auto begun = [&] { return fs::exists(log) && read_file(log).ends_with(cat("start at step ", before, "\n")); };
    ASSERT_TRUE(reaches(begun)) << read_file(own_ / "said");
    const auto size = fs::file_size(metrics);
    ASSERT_TRUE(reaches([&] { return fs::file_size(metrics) > size; })) << "the ranks are training";
    send(signal);
    EXPECT_EQ(exit_code(), code) << read_file(own_ / "said");
    EXPECT_TRUE(said("Finishing this step and saving; Ctrl-C again quits without saving")) << signal;
    const int64_t now = newest(run());
    EXPECT_GT(now, before) << "only the signal required this checkpoint";
    before = now;
  }
}

TEST_F(Signals, SaveDuringAnEvaluation) {
  start({"--train-iters", "1000000", "--save-interval", "0", "--eval-interval", "1"});
  const auto metrics = run() / "metrics.jsonl";
  ASSERT_TRUE(reaches([&] { return fs::exists(metrics) && read_file(metrics).find("\"eval\"") != std::string::npos; }));
  send(SIGTERM);
  EXPECT_EQ(exit_code(), 75);
  EXPECT_GT(newest(run()), 0);
}

// A save is almost always in progress: only that unfinished save is lost.
TEST_F(Signals, ASecondInterruptEndsAtOnceAndKeepsTheLastCheckpoint) {
  for (int i = 0; i < 5; ++i) {
    const int64_t before = last_folder();
    start({"--train-iters", "1000000", "--save-interval", "1", "--eval-interval", "0"});
    ASSERT_TRUE(reaches([&] { return last_folder() > before + i; })) << read_file(own_ / "said");
    send(SIGINT);
    ASSERT_TRUE(reaches([&] { return said("Finishing this step"); }) || !said("Quit without saving"));
    send(SIGINT);
    EXPECT_EQ(exit_code(), 130) << read_file(own_ / "said");
    EXPECT_EQ(newest(run()), last_folder()) << "the newest checkpoint is complete";
    EXPECT_GT(newest(run()), before);
  }
}

TEST_F(Signals, SaveNothingDuringStartUp) {
  start({"--train-iters", "1000000"});
  ASSERT_TRUE(reaches([&] { return fs::exists(run() / ".lock"); }));
  send(SIGUSR1);
  EXPECT_EQ(exit_code(), 75) << read_file(own_ / "said");
  start({"--train-iters", "2"});
  EXPECT_EQ(exit_code(), 0) << read_file(own_ / "said");
}

TEST_F(Signals, LetARunFinishItsFinalSample) {
  start({"--train-iters", "2", "--sample-tokens", "2000"});
  ASSERT_TRUE(reaches([&] { return last_folder() == 2; }));
  send(SIGTERM);
  EXPECT_EQ(exit_code(), 0) << read_file(own_ / "said");
  EXPECT_EQ(newest(run()), 2);
}

}  // namespace
}  // namespace witan::test
