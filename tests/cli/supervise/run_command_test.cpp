// witan run: after ranks are killed, runs continue with the losses of an undisturbed run.
#include <signal.h>

#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "support/comes_true.h"
#include "support/program.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kPatience = 120;  // on a busy machine

class RunCommandTest : public ::testing::Test {
 protected:
  RunCommandTest() { write_text(own_ / "text.txt", some_text(800)); }

  // Uses sixteen micro-batches; `more` overrides these words.
  std::vector<std::string> train(const std::string& run, const std::vector<std::string>& more = {}) const {
    return with_flags(
        words_in("--train-iters 60 --save-interval 5 --seq-length 16 --hidden-size 16 --num-layers 2 --num-experts 4 "
                 "--ffn-hidden-size 16 --sample-tokens 0 --tokenizer-vocab-size 300 --held-out-fraction 0.05 "
                 "--eval-iters 1 --threads 1 --micro-batch-size 1 --global-batch-size 16 --device cpu "
                 "--distributed-timeout-minutes 0.1",
                 {"train", "--data", own_ / "text.txt", "--runs-folder", own_ / "runs", "--run", run}),
        more);
  }
  static std::vector<std::string> supervised(const std::vector<std::string>& options,
                                             const std::vector<std::string>& train) {
    std::vector<std::string> words = {WITAN_PROGRAM, "run"};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), train.begin(), train.end());
    return words;
  }
  void train_undisturbed(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.end(), {"--ranks", "4"});
    std::vector<std::string> words = train(run, more);
    words.insert(words.begin(), WITAN_PROGRAM);
    Program program(words, own_ / "undisturbed.log");
    ASSERT_TRUE(program.ends_within(kPatience));
    ASSERT_EQ(program.wait(), 0) << read_text(own_ / "undisturbed.log");
  }
  std::string log() const { return read_text(own_ / "log"); }

  // The run's steps so far, without an incomplete last line.
  std::map<int64_t, nlohmann::json> steps(const std::string& run) const {
    std::map<int64_t, nlohmann::json> steps;
    std::istringstream lines(read_text(own_ / "runs" / run / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line, nullptr, false);
      if (!event.is_discarded() && event["kind"] == "step") steps[event["step"].get<int64_t>()] = event;
    }
    return steps;
  }
  int64_t last_step(const std::string& run) const {
    const auto all = steps(run);
    return all.empty() ? 0 : all.rbegin()->first;
  }
  // The process of a rank of this test's supervised job; 0: none.
  pid_t process_of(int rank) const {
    const std::string variable = "RANK=" + std::to_string(rank);
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::string words = read_text(entry.path() / "cmdline"), variables = read_text(entry.path() / "environ");
      if (!contains(words, (own_ / "text.txt").string())) continue;
      for (size_t at = 0; at < variables.size(); at = variables.find('\0', at) + 1)
        if (variable == variables.c_str() + at) return static_cast<pid_t>(std::stol(name));
    }
    return 0;
  }
  void kill_rank(int rank) const {
    const pid_t process = process_of(rank);
    ASSERT_GT(process, 1) << log();
    ::kill(process, SIGKILL);
  }
  // Seconds from the kill until a new step.
  double goes_on_after_kill(Program& program, const std::string& run, int rank, int64_t step, int restart) const {
    EXPECT_TRUE(program.reaches([&] { return last_step(run) >= step; }, kPatience)) << log();
    const auto killed = Clock::now();
    kill_rank(rank);
    const std::string said = "restart " + std::to_string(restart) + " of 3";
    EXPECT_TRUE(program.reaches([&] { return contains(log(), said); }, kPatience)) << log();
    const int64_t before = last_step(run);
    EXPECT_TRUE(program.reaches([&] { return last_step(run) > before; }, kPatience)) << log();
    return std::chrono::duration<double>(Clock::now() - killed).count();
  }

  TempFolder own_;
};

std::vector<std::string> deterministic() {
  return {"--deterministic", "true", "--expert-model-parallel-size", "2"};
}

TEST_F(RunCommandTest, ContinuesWithTheRemainingRanksToTheSameBits) {
  Program program(supervised({"--ranks", "4"}, train("lost", deterministic())), own_ / "log");
  const double first = goes_on_after_kill(program, "lost", 2, 12, 1);
  const double second = goes_on_after_kill(program, "lost", 0, 30, 2);
  EXPECT_LT(first, 30);
  EXPECT_LT(second, 30);
  std::printf("from a kill to the next step: %.2f s, %.2f s\n", first, second);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 0) << log();
  EXPECT_TRUE(contains(log(),
                       "rank 2 was killed by signal 9 (Killed); 3 of 4 are left: continuing with 2 ranks "
                       "(replicate=2,expert=2), restart 1 of 3"))
      << log();
  EXPECT_TRUE(contains(log(), "rank 0 was killed by signal 9 (Killed); 2 of 4 are left: continuing with 2 ranks"))
      << log();

  train_undisturbed("whole", deterministic());
  const auto lost = steps("lost"), whole = steps("whole");
  ASSERT_EQ(whole.size(), 60u);
  ASSERT_EQ(lost.size(), 60u) << "each step is recorded once";
  for (const auto& [step, event] : whole)
    for (const char* key : {"loss", "grad_norm", "lr"}) EXPECT_EQ(lost.at(step)[key], event[key]) << key << step;
}

// Without deterministic mode other layouts round differently. Three ranks do not divide 16 micro-batches, but 24.
TEST_F(RunCommandTest, ContinuesWithThreeRanksToTheSameLosses) {
  const std::vector<std::string> more = {"--global-batch-size",          "24", "--train-iters", "40",
                                         "--expert-model-parallel-size", "4"};
  Program program(supervised({"--ranks", "4"}, train("lost", more)), own_ / "log");
  EXPECT_LT(goes_on_after_kill(program, "lost", 3, 12, 1), 30);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 0) << log();
  EXPECT_TRUE(contains(log(), "continuing with 3 ranks (replicate=3), restart 1 of 3")) << log();
  train_undisturbed("whole", more);
  const auto lost = steps("lost"), whole = steps("whole");
  ASSERT_EQ(lost.size(), 40u);
  for (const auto& [step, event] : whole) {
    const double loss = event["loss"].get<double>();
    EXPECT_NEAR(lost.at(step)["loss"].get<double>(), loss, 1e-4 * loss) << step;
  }
}

TEST_F(RunCommandTest, ReturnsToAllRanksWhenTheyAreBack) {
  Program program(supervised({"--ranks", "4", "--max-restarts", "3"},
                             train("lost", {"--train-iters", "4000", "--save-interval", "20"})),
                  own_ / "log");
  goes_on_after_kill(program, "lost", 1, 21, 1);
  program.send(SIGHUP);
  ASSERT_TRUE(program.reaches([&] { return contains(log(), "all 4 ranks start again: replicate=4"); }, kPatience))
      << log();
  const int64_t saved = last_step("lost");
  EXPECT_TRUE(program.reaches([&] { return last_step("lost") > saved; }, kPatience)) << log();
  EXPECT_GT(process_of(3), 1);
  program.send(SIGTERM);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 75) << log();
  EXPECT_EQ(process_of(0), 0) << "no rank is left over";
  EXPECT_TRUE(contains(log(), "the run is saved, and starts again with all 4 ranks")) << log();
  const std::string restart = log().substr(0, log().find("all 4 ranks start again"));
  EXPECT_TRUE(contains(restart, "; the ranks end to be started again\n")) << log();
  for (const char* end : {"Ctrl-C again", "(saved at step ", "\nwrite text  "})
    EXPECT_FALSE(contains(restart, end)) << "the run has not ended\n" << log();
}

TEST_F(RunCommandTest, RegrowsByItselfAfterMinutes) {
  Program program(supervised({"--ranks", "2", "--regrow", "0.02"},
                             train("lost", {"--train-iters", "4000", "--save-interval", "20"})),
                  own_ / "log");
  ASSERT_TRUE(program.reaches([&] { return last_step("lost") >= 5; }, kPatience)) << log();
  kill_rank(1);
  EXPECT_TRUE(program.reaches([&] { return contains(log(), "all 2 ranks start again"); }, kPatience)) << log();
  program.send(SIGINT);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 130) << log();
}

TEST_F(RunCommandTest, GivesUpAfterTheLastRestart) {
  Program program(supervised({"--ranks", "2", "--max-restarts", "1", "--min-ranks", "2"},
                             train("lost", {"--train-iters", "4000", "--save-interval", "20"})),
                  own_ / "log");
  ASSERT_TRUE(program.reaches([&] { return last_step("lost") >= 5; }, kPatience)) << log();
  kill_rank(1);
  ASSERT_TRUE(program.reaches([&] { return contains(log(), "restart 1 of 1"); }, kPatience)) << log();
  EXPECT_TRUE(contains(log(), "1 of 2 are left: --min-ranks 2: all 2 start again (replicate=2,expert=2)")) << log();
  ASSERT_TRUE(program.reaches([&] { return process_of(1) > 1; }, kPatience)) << log();
  kill_rank(1);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 7) << log();
  EXPECT_TRUE(contains(log(),
                       "rank 1 was killed by signal 9 (Killed), and --max-restarts 1 allows no further restart "
                       "within 60 minutes; the same command resumes"))
      << log();
}

TEST_F(RunCommandTest, EndsAndExcludesAStoppedRank) {
  Program program(supervised({"--ranks", "2"}, train("lost", {"--train-iters", "4000", "--save-interval", "20",
                                                              "--distributed-timeout-minutes", "0.05"})),
                  own_ / "log");
  ASSERT_TRUE(program.reaches([&] { return last_step("lost") >= 5; }, kPatience)) << log();
  ::kill(process_of(1), SIGSTOP);
  EXPECT_TRUE(program.reaches(
      [&] {
        return contains(log(),
                        "rank 1 did not end when others had failed; 1 of 2 are left: continuing with 1 rank "
                        "(one rank), restart 1 of 3");
      },
      kPatience))
      << log();
  program.send(SIGTERM);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 75) << log();
}

// The other ranks have seconds to end; only then does the supervisor choose the ranks that resume the run.
TEST_F(RunCommandTest, ReturnsLostRanksRequestedWhileOthersEnd) {
  Program program(supervised({"--ranks", "2"}, train("lost", {"--train-iters", "4000", "--save-interval", "20"})),
                  own_ / "log");
  ASSERT_TRUE(program.reaches([&] { return last_step("lost") >= 5; }, kPatience)) << log();
  const pid_t first = process_of(0);
  ::kill(process_of(1), SIGSTOP);  // it cannot end by itself
  kill_rank(0);
  ASSERT_TRUE(program.reaches([&] { return ::kill(first, 0) != 0; }, kPatience))
      << "the supervisor has noticed: " << log();
  program.send(SIGHUP);
  ASSERT_TRUE(program.reaches([&] { return contains(log(), "restart 1 of 3"); }, kPatience)) << log();
  EXPECT_FALSE(contains(log(), "no rank is missing")) << log();
  EXPECT_TRUE(contains(log(), "a rank has failed: when the others have ended, the run starts again with all 2 ranks"))
      << log();
  EXPECT_TRUE(contains(log(), "rank 0 was killed by signal 9 (Killed): all 2 ranks start again (replicate=2")) << log();
  const int64_t saved = last_step("lost");
  EXPECT_TRUE(program.reaches([&] { return last_step("lost") > saved; }, kPatience)) << log();
  EXPECT_GT(process_of(1), 1);
  program.send(SIGTERM);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 75) << log();
}

// --fresh applies only to the first start: repeated, it would discard saved checkpoints.
TEST_F(RunCommandTest, StartsOverOnlyOnce) {
  std::vector<std::string> call = train("lost");
  call.emplace_back("--fresh");
  Program program(supervised({"--ranks", "2"}, call), own_ / "log");
  goes_on_after_kill(program, "lost", 1, 12, 1);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 0) << log();
  EXPECT_EQ(steps("lost").size(), 60u);
  EXPECT_FALSE(contains(log(), "archived")) << log();
  EXPECT_TRUE(contains(log(), " run --ranks 2 -- train --run lost")) << "the restart continues it\n" << log();
}

TEST_F(RunCommandTest, RefusesAMistakeOnceWithoutRetries) {
  // The supervisor itself refuses without starting anything.
  const std::vector<std::string> start = {"run", "--ranks", "2", "--", "train"};
  const auto refused = [&](std::vector<std::string> more, int code, const std::vector<std::string>& pieces) {
    more.insert(more.begin(), start.begin(), start.end());
    expect_refusal(more, code, pieces);
  };
  refused({"--no-such-flag", "1"}, 2, {"witan train: unknown flag --no-such-flag"});
  refused({"--num-layers", "none"}, 3, {"num_layers"});
  refused({"--ranks", "3"}, 2, {"--ranks 2 of `run`, but ranks = 3 of `train` (--ranks)"});
  refused({"--dry-run"}, 2, {"--dry-run writes nothing that could be supervised"});
  refused({"--debug-rank", "1"}, 2, {"no terminal under `witan run`"});
  refused({"--data", own_ / "text.txt", "--runs-folder", own_ / "runs", "--global-batch-size", "3",
           "--micro-batch-size", "1"},
          3, {"is not divisible by ranks = 2"});
  expect_refusal({"run", "train", "--lr", "1e-3"}, 2, {"unknown flag --lr; flags of `train` go after --"});
  expect_refusal({"run", "--", "plan"}, 2, {"give `train` and its flags after --"});
  expect_refusal({"run", "--ranks", "2", "--min-ranks", "3", "--", "train", "--runs-folder", own_ / "runs"}, 3,
                 {"--min-ranks 3 is more than the 2 ranks of the run"});
  for (const auto& [flag, value, range] : {std::tuple{"--ranks", "0", "1 to 4096"},
                                           {"--ranks", "-1", "1 to 4096"},
                                           {"--min-ranks", "0", "1 to 4096"},
                                           {"--max-restarts", "-1", "0 to 1000000"}})
    expect_refusal({"run", flag, value, "--", "train", "--run", "zz"}, 2,
                   {std::string("witan run: ") + flag + ": Value " + value + " not in range " + range});
  for (const char* word : {"x", "2x", "1.5"})
    expect_refusal({"run", std::string("--ranks=") + word, "--", "train", "--run", "zz"}, 2,
                   {cat("witan run: --ranks: ", word, " is not a whole number")});
  expect_refusal({"run", "--rank", "2", "--", "train"}, 2, {"unknown flag --rank (did you mean --ranks?)"});
  // The ranks refuse.
  Program program(supervised({"--ranks", "2"}, train("lost", {"--data", own_ / "nowhere.txt"})), own_ / "log");
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 4) << log();
  EXPECT_TRUE(contains(log(), "nowhere.txt")) << log();
  EXPECT_FALSE(contains(log(), "restart 1")) << log();
}

TEST_F(RunCommandTest, RefusesToRunUnderALauncher) {
  Program program(supervised({"--ranks", "2"}, train("lost")), own_ / "log", {"RANK=0", "WORLD_SIZE=2"});
  ASSERT_TRUE(program.ends_within(kPatience));
  EXPECT_EQ(program.wait(), 2) << log();
  EXPECT_TRUE(contains(log(), "witan run starts its ranks itself, but a launcher started several processes")) << log();
}

// A run of one process starts again, since no other layout is left.
TEST_F(RunCommandTest, RestartsAllWhenNoneIsLeft) {
  Program program(supervised({"--ranks", "1"}, train("lost")), own_ / "log");
  ASSERT_TRUE(program.reaches([&] { return last_step("lost") >= 12; }, kPatience)) << log();
  kill_rank(0);
  ASSERT_TRUE(program.ends_within(kPatience)) << log();
  EXPECT_EQ(program.wait(), 0) << log();
  EXPECT_TRUE(contains(log(), "0 of 1 are left: --min-ranks 1: all 1 start again")) << log();
  EXPECT_EQ(steps("lost").size(), 60u);
}

// Ranks of a killed supervisor save the run and end.
TEST_F(RunCommandTest, RanksDoNotOutliveIt) {
  auto program = std::make_unique<Program>(
      supervised({"--ranks", "2"}, train("lost", {"--train-iters", "100000", "--save-interval", "1000"})),
      own_ / "log");
  ASSERT_TRUE(program->reaches([&] { return last_step("lost") >= 5; }, kPatience)) << log();
  program.reset();  // kills it
  EXPECT_TRUE(comes_true([&] { return process_of(0) + process_of(1) == 0; }));
  EXPECT_FALSE(fs::is_empty(own_ / "runs/lost/checkpoints")) << "the run was saved: " << log();
}

}  // namespace
}  // namespace witan::test
