// witan train --max-minutes on machines whose stored ceilings make them slow or fast.
#include "cli/train/train_command.h"
#include "support/process_state.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/train/planning.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/saved_config.h"

namespace witan::test {
namespace {

class TimeLimitTest : public TrainCommandTest {
 protected:
  // Every kernel of a run has these rates of FLOP/s and bytes/s.
  static void set_speed(double per_second, const Load& load = {}) {
    Ceilings kept;
    kept.load = load;
    kept.fma_flops = per_second;
    kept.copy_bytes = per_second;
    kept.kernels["gemm"] = {per_second, per_second, 1};
    cli::ceilings_file().keep(kept);
  }
  // The default length and the schedule that follows it, with a tiny model.
  Said train_within(const std::string& minutes, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = words_in(
        "--ranks 1 --threads 1 --device cpu --seq-length 16 --hidden-size 16 --num-layers 1 --num-experts 2 "
        "--ffn-hidden-size 16 --sample-tokens 3 --eval-iters 1 --tokenizer-vocab-size 300 --held-out-fraction 0.05",
        {"train", "--max-minutes", minutes, "--runs-folder", own_ / "runs", "--data", own_ / "text"});
    args.insert(args.end(), more.begin(), more.end());
    return witan(args);
  }
  RunConfig run(const std::string& name = "default") const { return *saved_config(own_ / "runs" / name); }

  const Variable cache_{"XDG_CACHE_HOME", own_ / "cache"};
};

TEST_F(TimeLimitTest, ShortensANewRunOnASlowMachine) {
  set_speed(1e3);
  const Said said = train_within("6");
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "steps        100 of the recipe's 1000, which would take this machine about "))
      << said.err;
  EXPECT_TRUE(contains(said.err, "for all of them: the same call without --max-minutes, under another --run NAME"));
  EXPECT_TRUE(contains(said.err, "work         100 steps of ")) << said.err;
  EXPECT_EQ(run().train.train_iters, 100);
  EXPECT_EQ(run().train.eval_interval, 10);
  EXPECT_EQ(run().train.save_interval, 20);
  EXPECT_EQ(run().optimizer.lr_warmup_iters, 10);
  const Said again = train_within("6");
  EXPECT_EQ(again.code, 0);
  EXPECT_TRUE(contains(again.err, "is finished: 100 steps are done")) << again.err;
  EXPECT_FALSE(contains(again.err, "of the recipe's")) << again.err;
}

// The machine becomes fast and then even slower: the run keeps its initial number of steps.
TEST_F(TimeLimitTest, AResumedRunKeepsItsLength) {
  set_speed(1e3);
  const Said begun = train_within("6", {"--exit-interval", "40"});
  ASSERT_EQ(begun.code, 75) << begun.err;
  set_speed(1e12);
  const Said resumed = train_within("6", {"--exit-interval", "40"});
  EXPECT_EQ(resumed.code, 75) << resumed.err;
  EXPECT_TRUE(contains(resumed.err, "saved at step 80 of 100")) << resumed.err;
  set_speed(1);
  const Said ended = train_within("0.001");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.err, "work         20 steps more of ")) << ended.err;
  EXPECT_FALSE(contains(resumed.err + ended.err, "of the recipe's"));
}

TEST_F(TimeLimitTest, DoesNotShortenRunsThatFit) {
  set_speed(1e12);
  const Said said = train_within("6", {"--dry-run"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "work         1000 steps of ")) << said.err;
  EXPECT_FALSE(contains(said.err, "of the recipe's")) << said.err;
  set_speed(1e3);
  const Said unlimited = train_within("0", {"--dry-run"});
  EXPECT_TRUE(contains(unlimited.err, "work         1000 steps of ")) << unlimited.err;
}

TEST_F(TimeLimitTest, ADryRunReportsTheDuration) {
  set_speed(1e3);
  const Said said = train_within("6", {"--dry-run"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "steps        100 of the recipe's 1000")) << said.err;
  EXPECT_TRUE(contains(said.err, "work         100 steps of ")) << said.err;
}

// This holds whether or not the built-in text is installed, which the dry run checks afterwards.
TEST_F(TimeLimitTest, ACallWithoutOtherSettingsNamesTheFullCommand) {
  if (cuda::devices() > 0) GTEST_SKIP() << "the default run is on the GPU, whose speeds are measured differently";
  const ResolvedConfig config = resolve(RunConfig(), facts_of_machine());
  set_speed(1e6, load_of(config, usable_cores()));
  const Said said = witan({"train", "--max-minutes", "6", "--dry-run", "--runs-folder", own_ / "runs"});
  EXPECT_TRUE(contains(said.err, "steps        100 of the recipe's 1000, which would take this machine about "))
      << said.err;
  EXPECT_TRUE(contains(
      said.err, cat("; for all of them: witan train --run whole --runs-folder ", (own_ / "runs").string(), "\n")))
      << said.err;
}

TEST_F(TimeLimitTest, RefusesOtherLimitsOfTheLength) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    const Said said = train_within("6", more);
    EXPECT_EQ(said.code, 2) << said.err;
    EXPECT_TRUE(contains(said.err, "--max-minutes 6: " + why)) << said.err;
    EXPECT_FALSE(std::filesystem::exists(own_ / "runs"));
  };
  refused({"--train-iters", "20"}, "it chooses train_iters, which is given too (--train-iters: 20)");
  write_text(own_ / "mine.toml", "train_iters = 30\n");
  refused({"--config", own_ / "mine.toml"},
          "it chooses train_iters, which is given too (" + (own_ / "mine.toml").string() + ":1: 30)");
  refused({"--train-samples", "800"}, "train_samples = 800 (--train-samples) sets how long the run is");
}

TEST_F(TimeLimitTest, RefusesProcessesOfALauncher) {
  const Variable rank("RANK", "1"), size("WORLD_SIZE", "2");
  const Said said = train_within("6");
  EXPECT_EQ(said.code, 2) << said.err;
  EXPECT_TRUE(contains(said.err, "--max-minutes 6: each of the processes that a launcher started")) << said.err;
}

TEST_F(TimeLimitTest, RefusesToShortenContinuedTraining) {
  set_speed(1e12);
  ASSERT_EQ(train({"--run", "base", "--train-iters", "3", "--save-interval", "2"}).code, 0);
  const Said said = train_within("6", {"--run", "more", "--init-from", "base@2", "--init-state", "training"});
  EXPECT_EQ(said.code, 2) << said.err;
  EXPECT_TRUE(contains(said.err, "--max-minutes 6: with init_state = training the run continues ")) << said.err;
}

}  // namespace
}  // namespace witan::test
