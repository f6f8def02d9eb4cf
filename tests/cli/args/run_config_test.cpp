// The precedence of sources of a key: defaults, the run on disk, a file, flags, and the mesh of each.
#include "witan/cli/args/run_config.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "witan/train/config/resolve.h"

namespace witan::test {
namespace {

class RunConfigTest : public ::testing::Test {
 protected:
  static constexpr const char* kSmall[] = {"--num-layers", "1", "--hidden-size", "32", "--num-experts", "4"};

  std::string file(const std::string& toml) const {
    write_text(own_ / "mine.toml", toml);
    return own_ / "mine.toml";
  }
  std::vector<std::string> words(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"plan", "--print-layout", "--json", "--runs-folder", own_ / "runs"};
    all.insert(all.end(), std::begin(kSmall), std::end(kSmall));
    for (const char* word : {"--micro-batch-size", "1", "--device", "cpu"}) all.emplace_back(word);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // "AXIS=SIZE,…" for axes larger than 1.
  std::string mesh(const std::vector<std::string>& more) const {
    const Said said = witan(words(more));
    if (said.code != 0) return said.err;
    std::string text;
    const auto layout = nlohmann::ordered_json::parse(said.out);
    for (const auto& [axis, size] : layout["mesh"].items())
      if (size.get<int>() > 1) text += (text.empty() ? "" : ",") + axis + "=" + size.dump();
    return text;
  }

  // The settings that a command reads, and its messages on standard error.
  cli::GivenConfig given(const std::vector<std::string>& more, cli::OtherRun other = cli::OtherRun::keep) {
    std::vector<std::string> words = {"--runs-folder", own_ / "runs"};
    words.insert(words.end(), more.begin(), more.end());
    Capture err;
    cli::Context context;
    context.err = err.file();
    CLI::App app("test", "test");
    RunConfig flags;
    const cli::ConfigArgs args(app, flags.fields());
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    cli::GivenConfig read = cli::read_given_config(context, flags, args, other);
    said_ = err.text();
    return read;
  }

  TempFolder own_;
  std::string said_;
};

// lr comes from a flag, min_lr from the file and weight_decay from the run; each is also set in all earlier sources.
TEST_F(RunConfigTest, EachSourceOverridesEarlierOnesAndIsRecorded) {
  using cli::ValueSource;
  write_text(own_ / "runs/default/config.toml", "lr = 0.1\nmin_lr = 0.01\nweight_decay = 0.2\n");
  const std::string own_file = file("lr = 0.3\nmin_lr = 0.03\n");
  const cli::GivenConfig all = given({"--config", own_file, "--lr", "0.5"});
  EXPECT_EQ(all.config.optimizer.lr, 0.5);
  EXPECT_EQ(all.config.optimizer.min_lr, 0.03);
  EXPECT_EQ(all.config.optimizer.weight_decay, 0.2);
  EXPECT_EQ(all.config.optimizer.clip_grad, RunConfig().optimizer.clip_grad);
  EXPECT_EQ(all.source("lr"), ValueSource::flag);
  EXPECT_EQ(all.source("min_lr"), ValueSource::file);
  EXPECT_EQ(all.source("weight_decay"), ValueSource::saved_run);
  EXPECT_EQ(all.source("clip_grad"), ValueSource::witan_default);
  EXPECT_TRUE(all.said("min_lr"));
  EXPECT_FALSE(all.said("weight_decay"));
  ASSERT_TRUE(all.saved);
  EXPECT_EQ(all.saved->optimizer.lr, 0.1);
  EXPECT_EQ(all.run, fs::path(own_ / "runs/default"));
}

TEST_F(RunConfigTest, KeysOfAMeshHaveItsSource) {
  using cli::ValueSource;
  const cli::GivenConfig of_flag = given({"--config", file("mesh = \"replicate=4\"\n"), "--mesh", "tensor=2"});
  EXPECT_EQ(of_flag.source("tensor_model_parallel_size"), ValueSource::flag);
  EXPECT_EQ(of_flag.source("sequence_parallel"), ValueSource::flag) << "which experts need with it";
  EXPECT_TRUE(of_flag.config.parallel.sequence_parallel);
  EXPECT_EQ(given({"--config", file("mesh = \"tensor=2\"\n")}).source("tensor_model_parallel_size"), ValueSource::file);
}

// For a small rate, as in fine-tuning, the default of min_lr must not be an error.
TEST_F(RunConfigTest, ALowRateDecaysToATenth) {
  using cli::ValueSource;
  const cli::GivenConfig low = given({"--lr", "2e-5"});
  EXPECT_DOUBLE_EQ(low.config.optimizer.min_lr, 2e-6);
  EXPECT_EQ(low.source("min_lr"), ValueSource::flag);
  EXPECT_EQ(low.place("min_lr"), "--lr");
  EXPECT_DOUBLE_EQ(given({"--config", file("lr = 1e-5\n")}).config.optimizer.min_lr, 1e-6);
  EXPECT_EQ(given({"--lr", "3e-4"}).config.optimizer.min_lr, OptimizerConfig().min_lr);
  EXPECT_EQ(given({"--lr", "2e-5", "--min-lr", "1e-3"}).config.optimizer.min_lr, 1e-3)
      << "an explicit value is refused";
  EXPECT_EQ(given({"--config", file("min_lr = 1e-4\n"), "--lr", "2e-5"}).config.optimizer.min_lr, 1e-4);
}

TEST_F(RunConfigTest, WarnsOfAWarmupThatNeverEnds) {
  const auto warned = [&](const std::vector<std::string>& words) {
    const cli::GivenConfig one = given(words);
    std::string all;
    for (const std::string& warning : cli::config_warnings(one, resolve(one.config, {}))) all += warning;
    return contains(all, "warning: lr_warmup_iters = ");
  };
  EXPECT_TRUE(warned({"--train-iters", "20", "--lr-warmup-iters", "20"}));
  EXPECT_FALSE(warned({"--train-iters", "20", "--lr-warmup-iters", "19"}));
  EXPECT_FALSE(warned({"--train-iters", "20"})) << "the default";
}

TEST_F(RunConfigTest, DisabledKeysAreNotReportedAsIdle) {
  const auto warnings = [&](const std::vector<std::string>& words) {
    const cli::GivenConfig one = given(words);
    return cli::config_warnings(one, resolve(one.config, {}));
  };
  const std::vector<std::string> tensor = {"--ranks", "2", "--tensor-model-parallel-size", "2", "--sample-tokens"};
  const auto with = [&](const char* tokens) {
    auto words = tensor;
    words.emplace_back(tokens);
    return words;
  };
  EXPECT_EQ(warnings(with("0")), std::vector<std::string>());
  EXPECT_EQ(warnings(with("8")).size(), 1u);
  EXPECT_EQ(warnings({"--num-experts", "0", "--moe-aux-loss-coeff", "0"}), std::vector<std::string>());
}

// The message shows the given value, not the derived one.
TEST_F(RunConfigTest, AnIdleTimeoutIsReportedAsGiven) {
  const cli::GivenConfig one =
      given({"--distributed-timeout-minutes", "90", "--checkpoint-timeout-minutes", "30", "--ranks", "1"});
  EXPECT_EQ(cli::config_warnings(one, resolve(one.config, {})),
            std::vector<std::string>{"warning: checkpoint_timeout_minutes = 30.0 has no effect: it needs more than "
                                     "distributed_timeout_minutes; here distributed_timeout_minutes = 90.0"});
}

// If the run on disk is a different one, none of its values apply.
TEST_F(RunConfigTest, IgnoresADifferentRun) {
  write_text(own_ / "runs/default/config.toml", "num_layers = 7\nlr = 0.1\n");
  const cli::GivenConfig kept = given({"--num-layers", "3"});
  EXPECT_EQ(kept.changes, std::vector<std::string>{"num_layers = 3 (was 7)"});
  EXPECT_EQ(kept.config.optimizer.lr, 0.1);
  const cli::GivenConfig alone = given({"--num-layers", "3"}, cli::OtherRun::leave);
  EXPECT_FALSE(alone.saved);
  EXPECT_EQ(alone.config.optimizer.lr, RunConfig().optimizer.lr);
  EXPECT_EQ(alone.source("lr"), cli::ValueSource::witan_default);
  EXPECT_TRUE(contains(said_, "num_layers = 3 (was 7)")) << said_;
}

TEST_F(RunConfigTest, AFlagsMeshOverridesKeysOfAFile) {
  EXPECT_EQ(mesh({"--config", file("ranks = 1\n"), "--mesh", "replicate=2"}), "replicate=2");
  EXPECT_EQ(mesh({"--config",
                  file("tensor_model_parallel_size = 2\npipeline_model_parallel_size = 1\nranks = 8\n"
                       "use_distributed_optimizer = true\n"),
                  "--mesh", "replicate=2,context=2"}),
            "replicate=2,context=2");
  EXPECT_EQ(mesh({"--config", file("data_parallel_sharding_strategy = \"no_shard\"\n"), "--mesh", "shard=2"}),
            "shard=2");
  EXPECT_EQ(mesh({"--config", std::string(WITAN_SOURCE_DIR) + "/recipes/default.toml", "--mesh", "tensor=2"}),
            "tensor=2");
}

TEST_F(RunConfigTest, AFlagOverridesTheMeshOfAFile) {
  EXPECT_EQ(mesh({"--config", file("mesh = \"replicate=4\"\n")}), "replicate=4");
  EXPECT_EQ(mesh({"--config", file("mesh = \"replicate=4\"\n"), "--ranks", "2"}), "replicate=2");
  EXPECT_EQ(mesh({"--config", file("mesh = \"replicate=4\"\n"), "--mesh", "shard=2"}), "shard=2");
}

TEST_F(RunConfigTest, RefusesContradictionsWithinOneSource) {
  expect_refusal(words({"--mesh", "replicate=4", "--ranks", "1"}), 3,
                 {"--mesh replicate=4 implies 4 ranks, but --ranks 1 is given too: remove one"});
  const std::string both = file("mesh = \"replicate=4\"\nranks = 1\n");
  expect_refusal(words({"--config", both}), 3,
                 {both + ": mesh = replicate=4 implies 4 ranks, but ranks = 1 is set there too: remove one"});
}

// Flags can also set the world that is planned for.
TEST_F(RunConfigTest, AFlagsWorldOverridesTheRanksOfAFile) {
  EXPECT_EQ(mesh({"--config", file("ranks = 1\n"), "--world-size", "2"}), "replicate=2");
  const auto on_gpus = [&](const std::string& toml) {
    std::vector<std::string> all = words({"--config", file(toml), "--gpus", "2"});
    all.erase(std::find(all.begin(), all.end(), "cpu") - 1, std::find(all.begin(), all.end(), "cpu") + 1);
    return all;
  };
  EXPECT_EQ(witan(on_gpus("device = \"cpu\"\nranks = 1\ndtype = \"bfloat16\"\n")).code, 0);
  expect_refusal(words({"--ranks", "1", "--world-size", "2"}), 3, {"--world-size 2 and ranks = 1 differ"});
}

// Experts need it with tensor-parallel ranks; a dense model does not.
TEST_F(RunConfigTest, SequenceParallelismFollowsTensorParallelExperts) {
  EXPECT_EQ(mesh({"--mesh", "tensor=2,replicate=2"}), "replicate=2,tensor=2");
  EXPECT_EQ(mesh({"--tensor-model-parallel-size", "2", "--ranks", "2"}), "tensor=2");
  EXPECT_EQ(mesh({"--config", file("mesh = \"tensor=2\"\n")}), "tensor=2");
  EXPECT_EQ(mesh({"--config", file("sequence_parallel = false\n"), "--mesh", "tensor=2"}), "tensor=2");
  const std::string refused = "needs sequence_parallel = true";
  expect_refusal(words({"--mesh", "tensor=2", "--no-sequence-parallel"}), 3, {refused});
  expect_refusal(words({"--config", file("mesh = \"tensor=2\"\nsequence_parallel = false\n")}), 3, {refused});
  expect_refusal(words({"--config", file("mesh = \"tensor=2\"\n"), "--sequence-parallel", "false"}), 3, {refused});

  // The saved file of a run contains its settings.
  const auto follows = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--train-iters", "1", "--seq-length", "8", "--tokenizer-vocab-size", "300",
                               "--runs-folder", own_ / "runs", "--data", own_ / "text.txt", "--num-layers", "1",
                               "--hidden-size", "16", "--ffn-hidden-size", "16", "--sample-tokens", "0"});
    const Said said = witan(more);
    EXPECT_EQ(said.code, 0) << said.err;
    return contains(read_text(own_ / "runs" / more.back() / "config.toml"), "\nsequence_parallel = true");
  };
  write_text(own_ / "text.txt", some_text(400));
  EXPECT_TRUE(follows({"--mesh", "tensor=2", "--run", "experts"}));
  EXPECT_FALSE(follows({"--mesh", "tensor=2", "--num-experts", "0", "--run", "dense"}));
  EXPECT_FALSE(follows({"--mesh", "replicate=2", "--run", "replicas"}));
}

}  // namespace
}  // namespace witan::test
