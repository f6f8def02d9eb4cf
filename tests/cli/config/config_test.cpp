// witan config shows the configuration that `witan train` would use, and its output can be used as input.
#include <nlohmann/json.hpp>

#include "cli/cli_support.h"
#include "witan/train/config/saved_config.h"

namespace witan::test {
namespace {

namespace fs = std::filesystem;

class ConfigTest : public ::testing::Test {
 protected:
  Said config(std::vector<std::string> args) const {
    args.insert(args.begin(), "config");
    args.insert(args.end(), {"--runs-folder", (folder_ / "runs").string()});
    return witan(args);
  }
  nlohmann::json keys(std::vector<std::string> args) const {
    args.insert(args.begin(), {"show", "--json"});
    const Said said = config(args);
    EXPECT_EQ(said.code, 0) << said.err;
    return nlohmann::json::parse(said.out);
  }
  std::string source(const std::vector<std::string>& args, const std::string& key) const {
    return keys(args)[key]["source"];
  }

  TempFolder folder_;
};

TEST_F(ConfigTest, EveryValueHasItsSource) {
  const std::string file = folder_ / "mine.toml", run = folder_ / "runs/a/config.toml";
  write_text(file, "\n[optimizer]\nlr = 2e-3\nmin_lr = 1e-5\n");
  write_text(run, "[optimizer]\nweight_decay = 0.25\nlr = 4e-3\n");
  const std::vector<std::string> args = {"--run", "a", "--preset", "gpt2-124m", "--config", file, "--min-lr", "1e-6"};
  const nlohmann::json shown = keys(args);
  EXPECT_EQ(shown["min_lr"]["source"], "--min-lr");
  EXPECT_EQ(shown["min_lr"]["value"], 1e-6);
  EXPECT_EQ(shown["lr"]["source"], file + ":3");
  EXPECT_TRUE(contains(shown["num_layers"]["source"], "preset gpt2-124m:")) << shown["num_layers"];
  EXPECT_EQ(shown["seed"]["source"], "default");
  EXPECT_EQ(shown["run"]["source"], "--run");
  EXPECT_EQ(source({"--run", "a"}, "weight_decay"), run + ":2");
  EXPECT_EQ(source({"--run", "a"}, "lr"), run + ":3");
  RunConfig all;
  EXPECT_EQ(shown.size(), all.fields().size());
}

TEST_F(ConfigTest, JsonHasValues) {
  const nlohmann::json shown =
      keys({"--run", "mine", "--data", "a.txt", "b.txt", "--moe-layer-freq", "[1,0]", "--swiglu", "false",
            "--optimizer-groups", "[{kind = \"norms\", lr = 0.001}]", "--num-layers", "2"});
  const auto value = [&](const char* key) { return shown[key]["value"]; };
  EXPECT_EQ(value("run"), "mine");
  EXPECT_EQ(value("swiglu"), false);
  EXPECT_EQ(value("num_layers"), 2);
  EXPECT_EQ(value("weight_decay"), RunConfig().optimizer.weight_decay);
  EXPECT_EQ(value("data"), nlohmann::json({"a.txt", "b.txt"}));
  EXPECT_EQ(value("data_path"), nlohmann::json::array());
  EXPECT_EQ(value("moe_layer_freq"), nlohmann::json({1, 0}));
  EXPECT_EQ(value("optimizer_groups"), nlohmann::json::parse(R"([{"kind": "norms", "lr": 0.001}])"));
  EXPECT_TRUE(value("moe_aux_loss_coeff").is_number()) << value("moe_aux_loss_coeff");
}

TEST_F(ConfigTest, NamesANewRun) {
  write_text(folder_ / "runs/a/config.toml", "[optimizer]\nlr = 4e-3\n");
  EXPECT_TRUE(contains(config({"show", "--run", "a"}).err, "runs/a, as this command would resume it"));
  EXPECT_TRUE(contains(config({"show", "--run", "b"}).err, "runs/b yet: this is the configuration of a new one"));
  EXPECT_EQ(config({"show"}).err, "");
}

TEST_F(ConfigTest, ValuesOfAMeshNameTheirPlace) {
  EXPECT_EQ(source({"--mesh", "replicate=2", "--num-experts", "0"}, "ranks"), "--mesh");
  const std::string file = folder_ / "mine.toml";
  write_text(file, "num_experts = 4\nmesh = \"tensor=2\"\n");
  EXPECT_EQ(source({"--config", file}, "ranks"), file + ":2, mesh");
  EXPECT_EQ(source({"--config", file}, "sequence_parallel"), file + ":2, mesh") << "which tensor parallelism enables";
}

TEST_F(ConfigTest, NamesMegatronsDefaults) {
  EXPECT_EQ(source({"--megatron", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
                    "--seq-length", "16", "--micro-batch-size", "1", "--global-batch-size", "2",
                    "--max-position-embeddings", "16", "--train-iters", "3", "--lr", "1e-3"},
                   "adam_beta2"),
            "Megatron-LM's default");
}

TEST_F(ConfigTest, OutputIsAFileOfTheSameConfiguration) {
  const std::string groups = "[{kind = \"norms\", lr = 0.001}, {match = \"head.*\", weight_decay = 0.0}]";
  const std::vector<std::string> given = {"--preset",        "gpt2-124m",   "--optimizer-groups", groups,
                                          "--sample-prompt", "a \"b\" # c", "--moe-layer-freq",   "([0]*1+[1]*3)"};
  for (const bool changed : {false, true}) {
    std::vector<std::string> args = given;
    args.insert(args.begin(), "show");
    if (changed) args.emplace_back("--changed");
    const Said said = config(args);
    ASSERT_EQ(said.code, 0) << said.err;
    EXPECT_EQ(contains(said.out, "# default"), !changed) << said.out;
    const std::string file = folder_ / "again.toml";
    write_text(file, said.out);
    const nlohmann::json before = keys(given), after = keys({"--config", file});
    for (const auto& [key, value] : before.items()) EXPECT_EQ(value["value"], after[key]["value"]) << key;
    std::vector<std::string> again = {"show", "--changed", "--config", file};
    EXPECT_TRUE(contains(config(again).out, "optimizer_groups = " + groups)) << config(again).out;
  }
}

TEST_F(ConfigTest, ResolvesAutomaticValuesWithReasons) {
  const std::vector<std::string> args = {"--device", "cpu", "--threads", "1", "--num-experts", "4"};
  EXPECT_EQ(keys(args)["ranks"]["value"], 0);
  std::vector<std::string> resolved = args;
  resolved.emplace_back("--resolved");
  const nlohmann::json shown = keys(resolved);
  EXPECT_NE(shown["ranks"]["value"], 0);
  EXPECT_TRUE(contains(shown["ranks"]["source"], "chosen: ")) << shown["ranks"];
  EXPECT_EQ(shown["threads"]["source"], "--threads");
}

TEST_F(ConfigTest, ShowsTheResolvedTimeout) {
  std::vector<std::string> args = {"--distributed-timeout-minutes", "90", "--checkpoint-timeout-minutes", "30"};
  EXPECT_EQ(keys(args)["checkpoint_timeout_minutes"]["value"], 30);
  args.emplace_back("--resolved");
  const nlohmann::json shown = keys(args)["checkpoint_timeout_minutes"];
  EXPECT_EQ(shown["value"], 90);
  EXPECT_EQ(shown["source"], "chosen: never less than distributed_timeout_minutes");
}

TEST_F(ConfigTest, HasTheErrorsOfTraining) {
  const std::string file = folder_ / "bad.toml";
  write_text(file, "\nlrr = 1\n");
  expect_refusal({"config", "show", "--config", file}, 3, {"bad.toml:2", "no key lrr", "did you mean lr?"});
  expect_refusal({"config", "show", "--no-such-flag"}, 2, {"witan config show: unknown flag --no-such-flag"});
  expect_refusal({"config"}, 2, {"give a subcommand: show, diff"});
}

TEST_F(ConfigTest, DifferencesNeedTwoConfigurations) {
  expect_refusal({"config", "diff"}, 2, {"witan config diff: give two configurations to compare: names of runs"});
  expect_refusal({"config", "diff", "gpt2-124m"}, 2, {"give two configurations to compare, gpt2-124m and another one"});
}

TEST_F(ConfigTest, ComparesRunsFilesAndPresets) {
  write_text(folder_ / "runs/a/config.toml", "[optimizer]\nlr = 2e-3\n");
  const std::string file = folder_ / "mine.toml";
  write_text(file, "mesh = \"replicate=2\"\nlr = 3e-3\n");
  const auto diff = [&](const std::string& a, const std::string& b) {
    const Said said = config({"diff", a, b, "--json"});
    EXPECT_EQ(said.code, 0) << said.err;
    return nlohmann::json::parse(said.out);
  };
  EXPECT_EQ(diff("a", file)["lr"], nlohmann::json({0.002, 0.003}));
  EXPECT_EQ(diff("a", file)["ranks"][1], 2) << "as in the mesh";
  EXPECT_EQ(diff("defaults", "a").size(), 1u);
  EXPECT_EQ(diff("run:a", "a").size(), 0u);
  EXPECT_EQ(diff("defaults", "gpt2-124m")["num_layers"][1], 12);
  EXPECT_EQ(diff("preset:gpt2-124m", "file:" + file)["num_layers"][0], 12);
  const Said table = config({"diff", "defaults", "a"});
  EXPECT_TRUE(contains(table.out, "run a\n")) << table.out;
  EXPECT_TRUE(contains(table.out, "\nlr ")) << table.out;
  EXPECT_TRUE(contains(config({"diff", "a", "a"}).err, "run a and run a do not differ"));
  expect_refusal({"config", "diff", "gpt2-124", "a", "--runs-folder", folder_ / "runs"}, 2,
                 {"gpt2-124 is not a run in ", "did you mean gpt2-124m?"});
}

}  // namespace
}  // namespace witan::test
