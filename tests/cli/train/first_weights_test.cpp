// Runs that start from the weights of other runs: accepted names, checkpoints used, and what is stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/small_runs.h"
#include "witan/cli/train/start_checks.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using FirstWeights = SmallRuns;

// Flips a bit of the last tensor in a safetensors file.
void damage(const fs::path& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_text(path, bytes);
}

// Like a run that resumes from a damaged checkpoint.
TEST_F(FirstWeights, ReportsDamagedCheckpointsThatAreSkipped) {
  train_dense("dense", {"--ranks", "1", "--save-interval", "1", "--keep-last", "9"});
  const fs::path checkpoints = folder_ / "runs/dense/checkpoints";
  damage(checkpoints / "step-2/shard-00000.safetensors");
  const std::string tokenizer = folder_ / "runs/dense/tokenizer.json";
  for (const std::string key : {"init-from", "upcycle"}) {
    const std::string damaged =
        cat(key == "upcycle" ? "upcycle" : "init_from", " = dense: the checkpoint of step 2 is damaged and is skipped");
    std::vector<std::string> args = {"train", "--run", key, "--" + key, "dense", "--tokenizer", tokenizer};
    for (const char* one :
         {"--data", "", "--device", "cpu", "--ranks", "1", "--seq-length", "16", "--train-iters", "2",
          "--micro-batch-size", "1", "--global-batch-size", "4", "--sample-tokens", "0", "--held-out-fraction", "0.2"})
      args.push_back(*one == 0 ? (folder_ / "text.txt").string() : one);
    if (key == "upcycle")
      for (const char* one : {"--tokenizer-vocab-size", "300", "--num-layers", "2", "--hidden-size", "32",
                              "--ffn-hidden-size", "32", "--num-experts", "4"})
        args.emplace_back(one);
    for (const bool dry : {true, false}) {
      if (dry) args.emplace_back("--dry-run");
      const Said said = done(args);
      if (dry) args.pop_back();
      EXPECT_THAT(said.err, AllOf(HasSubstr("warning: " + damaged),
                                  HasSubstr("weights      from " + (checkpoints / "step-1").string())));
    }
    EXPECT_THAT(file("runs/" + key + "/train.log"),
                AllOf(HasSubstr(damaged), HasSubstr("weights from " + (checkpoints / "step-1").string())));
    args[4] = "dense@2";
    args[2] = key + "-2";
    for (const bool dry : {true, false}) {
      if (dry) args.emplace_back("--dry-run");
      const Said said = run(args);
      if (dry) args.pop_back();
      EXPECT_EQ(said.code, 5) << said.err;
      EXPECT_THAT(said.err, HasSubstr("step-2/shard-00000.safetensors"));
      EXPECT_FALSE(fs::exists(folder_ / "runs" / args[2])) << "nothing was read or written";
    }
  }
}

// The run would be archived before its weights are read.
TEST_F(FirstWeights, ARunCannotStartOverFromItself) {
  train_small("one", {"--ranks", "1"});
  const std::string config = file("runs/one/config.toml");
  const fs::path folder = folder_ / "runs/one";
  const std::vector<std::string> sources = {"one", "one@2", folder.string(), (folder / "checkpoints/step-2").string()};
  for (const std::string& source : sources)
    for (const char* key : {"--init-from", "--upcycle"})
      for (const bool dry : {true, false}) {
        std::vector<std::string> args = {"train", "--run", "one", "--fresh", key, source};
        args.insert(args.end(), {"--data", folder_ / "text.txt", "--device", "cpu"});
        if (dry) args.emplace_back("--dry-run");
        const Said said = run(args);
        EXPECT_EQ(said.code, 3) << said.err;
        EXPECT_THAT(said.err, HasSubstr(cat(" = ", source, ": --fresh would archive the run ", folder.string(),
                                            ", which has these weights: give the new run another name")));
      }
  EXPECT_FALSE(fs::exists(folder_ / "runs/one.1"));
  EXPECT_EQ(file("runs/one/config.toml"), config);
  train_small("two", {"--ranks", "1"});
  train("two", {"--fresh", "--init-from", "one", "--ranks", "1"});
}

TEST_F(FirstWeights, UpcyclingAcceptsCheckpointsByName) {
  train_dense("dense", {"--ranks", "1", "--save-interval", "1", "--keep-last", "9"});
  write_text(folder_ / "same.json", nlohmann::json::parse(file("runs/dense/tokenizer.json")).dump());
  const auto upcycled = [&](const std::string& source, const std::string& name) {
    train_small(name, {"--upcycle", source, "--tokenizer", folder_ / "same.json", "--ranks", "1", "--lr", "0",
                       "--min-lr", "0", "--weight-decay", "0"});
    EXPECT_THAT(file(cat("runs/", name, "/train.log")), Not(HasSubstr("another tokenizer")))
        << "the bytes need not be equal";
    const Said said = run({"export", "--run", name, "--format", "hf", folder_ / (name + "-hf")});
    EXPECT_EQ(said.code, 0) << said.err;
    return file(name + "-hf/model.safetensors");
  };
  const std::string newest = upcycled("dense", "newest");
  EXPECT_EQ(upcycled("dense@2", "second"), newest);
  EXPECT_NE(upcycled("dense@1", "first"), newest);
  const Said none =
      run({"train", "--run", "none", "--upcycle", "dense@3", "--num-experts", "4", "--data", folder_ / "text.txt"});
  EXPECT_EQ(none.code, 5);
  EXPECT_THAT(none.err, HasSubstr("has no checkpoint 3"));
}

// Settings that the call leaves out come from the dense model, except routing, which it does not have.
TEST_F(FirstWeights, UpcyclingUsesTheDenseModelAndItsTokenizer) {
  train_dense("dense", {"--normalization", "LayerNorm", "--ranks", "1"});
  const std::vector<std::string> upcycle = {"--upcycle", "dense", "--num-experts", "6", "--ranks", "1"};
  train("moe", upcycle);
  const std::string config = file("runs/moe/config.toml");
  for (const char* line : {"num_layers = 2\n", "hidden_size = 32\n", "ffn_hidden_size = 32\n", "num_experts = 6\n",
                           "normalization = \"LayerNorm\"\n"})
    EXPECT_THAT(config, HasSubstr(line));
  EXPECT_EQ(file("runs/moe/tokenizer.json"), file("runs/dense/tokenizer.json"));
  EXPECT_THAT(run({"config", "show", "--run", "new", "--upcycle", "dense"}).out,
              ::testing::ContainsRegex("hidden_size = 32 +# upcycle = dense"));
  const Said other = run({"train", "--run", "deeper", "--upcycle", "dense", "--num-layers", "3", "--data",
                          folder_ / "text.txt", "--device", "cpu"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("upcycle = dense: the dense model has num_layers = 2, this run 3"));
  fs::rename(folder_ / "runs/dense", folder_ / "runs/gone");
  EXPECT_EQ(run({"train", "--run", "moe", "--train-iters", "3"}).code, 0) << "it has its own copy of the tokenizer";
}

// A run with checkpoints resumes from them: other initial weights would only be recorded.
TEST_F(FirstWeights, AStartedRunKeepsItsInitialWeights) {
  for (const char* name : {"a", "b"}) train_small(name, {"--ranks", "1"});
  train("tuned", {"--init-from", "a", "--ranks", "1"});
  const std::string config = file("runs/tuned/config.toml");
  const auto resumed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"train", "--run", "tuned", "--train-iters", "3"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  for (const char* key : {"--init-from", "--upcycle"}) {
    const Said other = resumed({key, "b"});
    EXPECT_EQ(other.code, 3) << key;
    EXPECT_THAT(other.err, AllOf(HasSubstr("was begun from a, and is resumed from its own checkpoint"),
                                 HasSubstr(cat("remove ", key)), HasSubstr("--run NAME")));
    EXPECT_EQ(resumed({key, "b", "--dry-run"}).code, 3);
    for (const std::vector<std::string>& shown : {std::vector<std::string>{"plan"}, {"config", "show"}}) {
      std::vector<std::string> args = shown;
      args.insert(args.end(), {"--run", "tuned", "--train-iters", "3", key, "b"});
      const Said said = run(args);
      EXPECT_EQ(said.code, 3) << key;
      EXPECT_EQ(said.err.substr(said.err.find(": ")), other.err.substr(other.err.find(": ")))
          << "the sentence that train prints";
    }
    EXPECT_EQ(file("runs/tuned/config.toml"), config);
  }
  EXPECT_THAT(run({"train", "--run", "a", "--train-iters", "3", "--init-from", "b"}).err,
              HasSubstr("was begun with random weights"));
  write_text(folder_ / "more.toml", "init_from = \"\"\n");
  EXPECT_EQ(resumed({"--config", folder_ / "more.toml"}).code, 0);
  EXPECT_THAT(file("runs/tuned/config.toml"), HasSubstr("init_from = \"a\""));
  const Said planned = run({"plan", "--run", "tuned", "--init-from", "a"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  const Said same = run({"train", "--run", "tuned", "--train-iters", "4", "--init-from", "a"});
  EXPECT_EQ(same.code, 0) << same.err;
}

// A run that continues another run's training ends like that one, and resumes from its own checkpoints.
TEST_F(FirstWeights, ABranchContinuesLikeTheOtherRun) {
  write_text(folder_ / "four.toml", "train_iters = 4\nsave_interval = 1\nkeep_last = 9\n");
  done(words_in(
      "--run one --device cpu --ranks 2 --seq-length 16 --micro-batch-size 1 --global-batch-size 4 --hidden-size 32 "
      "--ffn-hidden-size 32 --num-layers 2 --num-experts 4 --tokenizer-vocab-size 300 --held-out-fraction 0.2 "
      "--sample-tokens 0",
      {"train", "--config", folder_ / "four.toml", "--data", folder_ / "text.txt"}));
  const Said shown = run({"config", "show", "--run", "two", "--init-from", "one@2", "--init-state", "training"});
  EXPECT_THAT(shown.out, ::testing::ContainsRegex("train_iters = 4 +# init_from = one@2"));
  const Said tried = done(
      {"train", "--run", "two", "--init-from", "one@2", "--init-state", "training", "--device", "cpu", "--dry-run"});
  EXPECT_THAT(tried.err, HasSubstr("would continue from step 2 of one@2"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/two"));
  // Uses as many ranks as the other run, since other layouts give other bits.
  const Said begun = done(
      {"train", "--run", "two", "--init-from", "one@2", "--init-state", "training", "--device", "cpu", "--ranks", "2"});
  EXPECT_THAT(begun.err, HasSubstr("step 2 of 4"));
  for (const char* name : {"shard-00000.safetensors", "shard-00001.safetensors"})
    EXPECT_EQ(file(cat("runs/two/checkpoints/step-4/", name)), file(cat("runs/one/checkpoints/step-4/", name))) << name;
  fs::rename(folder_ / "runs/one", folder_ / "runs/gone");
  EXPECT_THAT(done({"train", "--run", "two", "--train-iters", "5"}).err, HasSubstr("step 4 of 5"));
}

// The configuration of the archived run does not remain.
TEST_F(FirstWeights, ARunThatStartsOverAsABranchContinuesLikeTheOtherRun) {
  train_dense("old", {"--ranks", "1", "--lr", "0.002", "--seed", "5"});
  train_small("one", {"--ranks", "1", "--lr", "0.0005", "--seed", "7", "--save-interval", "1", "--keep-last", "9"});
  std::vector<std::string> over = {"train", "--run",        "old",      "--fresh",  "--init-from",
                                   "one@1", "--init-state", "training", "--device", "cpu"};
  over.emplace_back("--dry-run");
  EXPECT_THAT(done(over).err, HasSubstr("old would be archived, and a new run would continue from step 1 of one@1, to "
                                        "train for 64 tokens; nothing was written"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/old.1"));
  over.back() = "--ranks=1";
  EXPECT_THAT(done(over).err, HasSubstr("step 1 of 2"));
  EXPECT_THAT(file("runs/old.1/config.toml"), HasSubstr("seed = 5"));
  EXPECT_EQ(file("runs/old/checkpoints/step-2/shard-00000.safetensors"),
            file("runs/one/checkpoints/step-2/shard-00000.safetensors"));
  // Starting over, it keeps the settings that it was started with, and explicit ones override them.
  over.insert(over.end(), {"--lr", "0.001"});
  done(over);
  EXPECT_THAT(file("runs/old/config.toml"), AllOf(HasSubstr("lr = 0.001\n"), HasSubstr("seed = 7\n")));
}

// The error comes before the text is read and leaves no files.
TEST_F(FirstWeights, RefusesToTraceFinishedStepsEarly) {
  train_small("one", {"--ranks", "1", "--save-interval", "1", "--keep-last", "9"});
  fs::rename(folder_ / "text.txt", folder_ / "gone.txt");
  const std::string log = file("runs/one/train.log"), config = file("runs/one/config.toml");
  for (const bool dry : {true, false}) {
    const auto refusal = [&](std::vector<std::string> args) {
      args.insert(args.begin(), {"train", "--device", "cpu", "--ranks", "1", "--train-iters", "4"});
      if (dry) args.emplace_back("--dry-run");
      const Said said = run(args);
      EXPECT_EQ(said.code, 3) << said.err;
      return said.err;
    };
    EXPECT_THAT(refusal({"--run", "one", "--trace-steps", "2:3"}),
                HasSubstr("--trace-steps 2:3: the run goes from step 3 to step 4"));
    EXPECT_THAT(refusal({"--run", "two", "--init-from", "one@1", "--init-state", "training", "--trace-steps", "1:2"}),
                HasSubstr("--trace-steps 1:2: the run goes from step 2 to step 4"));
    EXPECT_THAT(refusal({"--run", "one", "--fresh", "--trace-steps", "5"}),
                HasSubstr("--trace-steps 5: the run goes from step 1 to step 4"));
  }
  EXPECT_EQ(file("runs/one/train.log"), log);
  EXPECT_EQ(file("runs/one/config.toml"), config);
  for (const char* other : {"two", "one.1", ".one.fresh"}) EXPECT_FALSE(fs::exists(folder_ / "runs" / other)) << other;
}

TEST_F(FirstWeights, ABranchNeedsTrainingThatCanContinue) {
  train_small("one", {"--ranks", "1"});
  done({"export", "--run", "one", "--format", "hf", folder_ / "hf"});
  done({"import", folder_ / "hf", "--run", "imported"});
  const auto refusal = [&](std::vector<std::string> more, bool dry) {
    more.insert(more.begin(), {"train", "--run", "two", "--init-state", "training", "--device", "cpu"});
    if (dry) more.emplace_back("--dry-run");
    const Said said = run(more);
    EXPECT_EQ(said.code, 3) << said.err;
    return said.err;
  };
  for (const bool dry : {false, true}) {
    EXPECT_THAT(refusal({}, dry), HasSubstr("set init_from to that run"));
    EXPECT_THAT(refusal({"--init-from", "imported"}, dry), HasSubstr("has weights alone"));
    EXPECT_THAT(refusal({"--init-from", folder_ / "hf"}, dry), HasSubstr("there is none of that name"));
    EXPECT_THAT(refusal({"--init-from", "one"}, dry), HasSubstr("has done 2 steps, and train_iters = 2 leaves none"));
  }
  write_text(folder_ / "other.txt", some_text(300));
  const Said other = run({"train", "--run", "two", "--init-from", "one", "--init-state", "training", "--train-iters",
                          "3", "--device", "cpu", "--data", folder_ / "other.txt"});
  EXPECT_THAT(other.err, HasSubstr("init_state = weights"));
}

}  // namespace
}  // namespace witan::test
