// The flags --save, --load, --pretrained-checkpoint and --finetune determine where a run starts and writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cli/compat/megatron_support.h"
#include "cli/small_runs.h"
#include "support/message_of.h"
#include "witan/cli/compat/megatron.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MegatronCheckpoints : public SmallRuns {
 protected:
  MegatronCheckpoints() {
    fs::create_directories(folder_ / "own/checkpoints/step-3");
    fs::create_directories(folder_ / "theirs");
    write_text(folder_ / "theirs/latest_checkpointed_iteration.txt", "100");
  }

  std::string at(const std::string& name) const { return folder_ / name; }
  std::string refused(const Words& more) const {
    return message_of<ConfigError>([&] { read_words(small(more)); });
  }

  // The keys for the start of a run, "init_from=…;init_state=…;no_load_optim=…;".
  std::string begins(const Words& more) const {
    std::map<std::string, std::string> keys;
    const auto line = cli::read_megatron_line(small(more));
    for (const auto& setting : line->settings) keys[setting.key] = setting.text;
    std::string text;
    for (const char* key : {"init_from", "init_state", "no_load_optim"})
      if (keys.contains(key)) text += cat(key, "=", keys[key], ";");
    return text;
  }
};

TEST_F(MegatronCheckpoints, FineTuningLoadsOnlyWeights) {
  for (const char* name : {"own", "theirs"})
    EXPECT_EQ(begins({"--load", at(name), "--save", at("new"), "--finetune", "--no-load-optim", "--no-load-rng"}),
              cat("init_from=", at(name), ";"));
  EXPECT_EQ(begins({"--load", at("own"), "--finetune", "--ckpt-step", "2"}), cat("init_from=", at("own"), "@2;"));
  EXPECT_EQ(begins({"--load", at("theirs"), "--finetune", "--ckpt-step", "20"}),
            cat("init_from=", at("theirs"), "/iter_0000020;"));
}

TEST_F(MegatronCheckpoints, TrainingContinuesAnotherRun) {
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("new")}), cat("init_from=", at("own"), ";init_state=training;"));
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("new"), "--no-load-optim"}),
            cat("init_from=", at("own"), ";init_state=training;no_load_optim=true;"));
  EXPECT_THAT(refused({"--load", at("theirs"), "--save", at("new")}),
              AllOf(HasSubstr("--finetune"), HasSubstr("step 0")));
}

TEST_F(MegatronCheckpoints, PretrainedCheckpointIsUsedIfThereIsNoOther) {
  const std::string pretrained = cat("init_from=", at("theirs"), ";");
  EXPECT_EQ(begins({"--load", at("new"), "--save", at("new"), "--pretrained-checkpoint", at("theirs"), "--finetune"}),
            pretrained);
  EXPECT_EQ(begins({"--load", at("none"), "--save", at("new"), "--pretrained-checkpoint", at("theirs")}), pretrained);
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("new"), "--pretrained-checkpoint", at("theirs"), "--finetune"}),
            cat("init_from=", at("own"), ";"));
}

TEST_F(MegatronCheckpoints, TheSameFolderIsResumed) {
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("own")}), "");
  EXPECT_EQ(begins({"--load", at("own/"), "--save", at("./own")}), "") << "regardless of spelling";
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("own"), "--no-load-optim"}), "no_load_optim=true;");
  EXPECT_EQ(begins({"--load", at("new"), "--save", at("new"), "--finetune"}), "") << "nothing to start from";
}

TEST_F(MegatronCheckpoints, RefusesRandomWeightsAndOverwritingCheckpoints) {
  EXPECT_THAT(refused({"--load", at("none"), "--save", at("new")}), HasSubstr("random weights"));
  EXPECT_THAT(refused({"--load", at("none")}), HasSubstr("has no checkpoint"));
  EXPECT_THAT(refused({"--pretrained-checkpoint", at("none")}), HasSubstr("has no checkpoint"));
  EXPECT_THAT(refused({"--load", at("own"), "--save", at("own"), "--finetune"}), HasSubstr("a folder of its own"));
  EXPECT_THAT(refused({"--load", at("new"), "--save", at("new"), "--exit-on-missing-checkpoint"}),
              HasSubstr("--exit-on-missing-checkpoint asks for one"));
  EXPECT_THAT(refused({"--load", at("own"), "--save", at("own"), "--ckpt-step", "2"}), HasSubstr("newest checkpoint"));
  EXPECT_THAT(refused({"--save", at("theirs")}), AllOf(HasSubstr("of Megatron-LM"), HasSubstr("--finetune")));
}

// A run with its own checkpoints resumes them with the optimizer, however it started.
TEST_F(MegatronCheckpoints, AStartedRunContinuesWithItsOwnState) {
  fs::create_directories(folder_ / "begun/checkpoints/step-1");
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("begun"), "--no-load-optim"}),
            cat("init_from=", at("own"), ";init_state=training;"));
  EXPECT_EQ(begins({"--load", at("theirs"), "--save", at("begun")}),
            cat("init_from=", at("theirs"), ";init_state=training;"));
}

// Repeating the command, as a scheduler does, resumes the run.
TEST_F(MegatronCheckpoints, TheSameCommandResumesFineTuning) {
  train_dense("base", {"--ranks", "1", "--vocab-size", "300"});
  const auto tune = [&](const std::string& steps) {
    return run({"train",
                "--finetune",
                "--load",
                at("runs/base"),
                "--save",
                at("runs/tuned"),
                "--no-load-optim",
                "--no-load-rng",
                "--num-layers",
                "2",
                "--hidden-size",
                "32",
                "--num-attention-heads",
                "4",
                "--seq-length",
                "16",
                "--max-position-embeddings",
                "16",
                "--micro-batch-size",
                "1",
                "--global-batch-size",
                "2",
                "--lr",
                "1e-3",
                "--train-iters",
                steps,
                "--save-interval",
                "1",
                "--data",
                at("text.txt"),
                "--device",
                "cpu",
                "--ranks",
                "1",
                "--no-megatron",
                "--sample-tokens",
                "0",
                "--held-out-fraction",
                "0.2"},
               false);
  };
  const Said begun = tune("2");
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_THAT(begun.err, HasSubstr(cat("weights      from ", at("runs/base"))));
  const Said again = tune("3");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("step 2 of 3"));
}

}  // namespace
}  // namespace witan::test
