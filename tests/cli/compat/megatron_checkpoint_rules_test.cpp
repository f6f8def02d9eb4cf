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
    write_text(folder_ / "release/latest_checkpointed_iteration.txt", "release\n");
    write_text(folder_ / "logs/events.txt", "no checkpoint");
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

// As converters write checkpoints: they have no iteration from which training could continue.
TEST_F(MegatronCheckpoints, FineTunesAReleaseWithoutTheFlag) {
  for (const Words& more : {Words{}, {"--finetune"}, {"--no-load-optim", "--no-load-rng"}}) {
    Words words = {"--load", at("release"), "--save", at("new")};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(begins(words), cat("init_from=", at("release"), ";"));
  }
  EXPECT_THAT(refused({"--load", at("release"), "--ckpt-step", "7"}), HasSubstr("--finetune"));
}

TEST_F(MegatronCheckpoints, PretrainedCheckpointIsUsedIfThereIsNoOther) {
  const std::string pretrained = cat("init_from=", at("theirs"), ";");
  EXPECT_EQ(begins({"--load", at("new"), "--save", at("new"), "--pretrained-checkpoint", at("theirs"), "--finetune"}),
            pretrained);
  EXPECT_EQ(begins({"--load", at("none"), "--save", at("new"), "--pretrained-checkpoint", at("theirs")}), pretrained);
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("new"), "--pretrained-checkpoint", at("theirs"), "--finetune"}),
            cat("init_from=", at("own"), ";"));
  EXPECT_EQ(begins({"--load", at("logs"), "--save", at("new"), "--pretrained-checkpoint", at("theirs")}), pretrained);
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("new"), "--pretrained-checkpoint", at("none"), "--finetune"}),
            cat("init_from=", at("own"), ";"))
      << "it is not needed";
  EXPECT_EQ(begins({"--load", at("own"), "--save", at("own"), "--pretrained-checkpoint", at("none"), "--finetune"}),
            cat("init_from=", at("none"), ";"))
      << "no longer needed: the run resumes";
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
  EXPECT_THAT(refused({"--load", at("logs"), "--finetune"}), HasSubstr("has no checkpoint"));
  EXPECT_THAT(refused({"--pretrained-checkpoint", at("none")}), HasSubstr("has no checkpoint"));
  EXPECT_THAT(refused({"--finetune"}), HasSubstr("names no weights to train from"));
  EXPECT_THAT(refused({"--finetune", "--save", at("new")}), HasSubstr("add --load FOLDER, or leave it out"));
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

// Two or more steps of a model like that of train_dense() on one rank; `flags` say where it begins.
class MegatronFineTuning : public MegatronCheckpoints {
 protected:
  MegatronFineTuning() { train_dense("base", {"--ranks", "1", "--vocab-size", "300"}); }

  Said tune(const std::string& name, const std::string& steps, const Words& flags) const {
    Words words = {"train", "--save", at("runs/" + name), "--train-iters", steps, "--save-interval", "1"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.insert(words.end(), {"--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4"});
    words.insert(words.end(), {"--seq-length", "16", "--max-position-embeddings", "16", "--micro-batch-size", "1"});
    words.insert(words.end(),
                 {"--global-batch-size", "2", "--lr", "1e-3", "--data", at("text.txt"), "--device", "cpu"});
    words.insert(words.end(), {"--ranks", "1", "--no-megatron", "--sample-tokens", "0", "--held-out-fraction", "0.2"});
    return run(words, false);
  }
  // The weights after the run's last step.
  std::string weights(const std::string& name) const {
    return file("runs/" + name + "/checkpoints/step-2/shard-00000.safetensors");
  }
};

// Repeating the command, as a scheduler does, resumes the run.
TEST_F(MegatronFineTuning, TheSameCommandResumesIt) {
  const Words flags = {"--finetune", "--load", at("runs/base"), "--no-load-optim", "--no-load-rng"};
  const Said begun = tune("tuned", "2", flags);
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_THAT(begun.err, HasSubstr(cat("weights      from ", at("runs/base"))));
  const Said again = tune("tuned", "3", flags);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("step 2 of 3"));
}

// A run, and its export to Megatron-LM's format, however the line names them.
TEST_F(MegatronFineTuning, BeginsWithTheSameWeightsFromEitherFormat) {
  done({"export", "--run", "base", "--format", "megatron", at("megatron")});
  const Words pattern = {"--finetune", "--no-load-optim", "--no-load-rng"};
  const auto tuned = [&](const std::string& name, Words flags, bool with_pattern = true) {
    if (with_pattern) flags.insert(flags.end(), pattern.begin(), pattern.end());
    flags.insert(flags.end(), {"--tokenizer", at("runs/base/tokenizer.json")});
    const Said said = tune(name, "2", flags);
    EXPECT_EQ(said.code, 0) << said.err;
    return weights(name);
  };
  const std::string expected = tuned("own", {"--load", at("runs/base")});
  EXPECT_EQ(tuned("loaded", {"--load", at("megatron")}), expected);
  EXPECT_EQ(tuned("pretrained", {"--load", at("runs/pretrained"), "--pretrained-checkpoint", at("megatron")}),
            expected);
  EXPECT_EQ(tuned("release", {"--load", at("megatron")}, false), expected);
  EXPECT_NE(tuned("random", {}, false), expected);
}

}  // namespace
}  // namespace witan::test
