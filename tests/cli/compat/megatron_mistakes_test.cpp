// Refusals of command lines with Megatron-LM's flags, and their messages.
#include <random>

#include "cli/compat/megatron_support.h"
#include "support/message_of.h"
#include "witan/cli/compat/megatron_flags.h"

namespace witan::test {
namespace {

std::string usage_refused(const Words& words) {
  return message_of<UsageError>([&] { cli::read_megatron_line(words); });
}

TEST(Megatron, NamesRequiredSizes) {
  const std::string said = message_of<ConfigError>([] { read_words({"--bf16", "--num-layers", "2"}); });
  EXPECT_TRUE(contains(said,
                       "--bf16 makes this a Megatron-LM command line, which must also set --hidden-size, "
                       "--num-attention-heads, --seq-length, --micro-batch-size, --train-iters, --lr. "))
      << said;
}

// A user of Witan's flags has typed a single flag of Megatron-LM.
TEST(Megatron, ASingleMegatronFlagAmongWitansIsQuestioned) {
  for (const auto& [flags, said] : std::vector<std::pair<Words, std::string>>{
           {{"--bf16"}, "did you mean --dtype bfloat16? --bf16 makes this a Megatron-LM command line, which must"},
           {{"--fp16"}, "did you mean --dtype float16? --fp16 makes this"},
           {{"--train-iters", "60", "--lr-warmup-fraction", "0.1"},
            "did you mean --lr-warmup-iters 6? --lr-warmup-fraction makes this a Megatron-LM command line, which must"},
           {{"--lr-warmup-fraction", "0.1"},
            "the warm-up is counted in steps: --lr-warmup-iters N. command line: --lr-warmup-fraction 0.1: needs "
            "--lr-decay-iters or --train-iters as well"},
           {{"--quick-geglu"}, "did you mean --swiglu true --glu-activation-scale 1.702? --quick-geglu makes this"},
           {{"--wandb-save-dir", "mine"},
            "docs/formats/tensorboard.md has a script that uploads the curves and the configuration of a run. "
            "--wandb-save-dir"}}) {
    Words words = {"train", "--data", "my.txt", "--hidden-size", "64"};
    words.insert(words.end(), flags.begin(), flags.end());
    expect_refusal(words, 3, {said});
  }
  const std::string two = message_of<ConfigError>([] { read_words({"--bf16", "--disable-bias-linear"}); });
  EXPECT_TRUE(two.starts_with("--bf16 makes this a Megatron-LM command line")) << two;
}

TEST(Megatron, NamesMisplacedWords) {
  TempFolder folder;
  write_text(folder / "script.args", "torchrun pretrain_gpt.py --bf16");
  EXPECT_TRUE(contains(usage_refused({"@" + (folder / "script.args").string()}),
                       "script.args:1: unexpected argument torchrun: give only the flags"));
  EXPECT_EQ(usage_refused({"--bf16", "yes"}),
            "command line: unexpected argument yes after --bf16, which takes no value");
  EXPECT_EQ(usage_refused({"--bf16", "--lr"}), "command line: --lr needs a value");
  EXPECT_EQ(usage_refused({"--bf16", "--data-path", "--lr", "1"}), "command line: --data-path needs a value");
  EXPECT_EQ(cli::read_megatron_line({"--bf16", "--config", "x.toml", "--fresh"})->rest,
            (Words{"--config", "x.toml", "--fresh"}));
}

TEST(Megatron, SuggestsSimilarFlags) {
  expect_refusal({"plan", "--use-flash-atn"}, 2, {"unknown flag --use-flash-atn", "did you mean --use-flash-attn?"});
  expect_refusal({"train", "--bf16", "--overlap-grad-reduc"}, 2, {"did you mean --overlap-grad-reduce?"});
  expect_refusal({"generate", "--use-flash-atn"}, 2, {"unknown flag --use-flash-atn;"});
}

TEST(Megatron, ReportsValuesOfTheWrongType) {
  expect_refusal({"plan", "--bf16", "--lr", "fast"}, 3, {"command line: --lr: lr = fast: must be a number"});
  expect_refusal({"plan", "@/nowhere/x.args"}, 2, {"@/nowhere/x.args: "});
}

// Arbitrary words in any order give a message and an exit code, never a crash, and at most a plan of a small model.
TEST(Megatron, RandomCommandLinesEndWithAMessage) {
  std::mt19937 random(11);
  Words pool = cli::megatron_flag_names();
  RunConfig config;
  for (const Field& field : config.fields()) pool.push_back(flag_name(field.name));
  const Words values = {"1", "0",     "-1",      "1e9",  "none", "true",        "",        "x y",       "=",   "--",
                        "-", "[1]*2", "0.5,0.5", "\xff", "@",    "--no-swiglu", "--bf16=", "--lr=1e-3", "--=x"};
  TempFolder own;
  for (int trial = 0; trial < 400; ++trial) {
    Words args = {"plan", "--memory-of-nothing"};
    for (size_t i = random() % 8; i > 0; --i)
      args.push_back(random() % 2 ? pool[random() % pool.size()] : values[random() % values.size()]);
    const Said said = witan(args);
    EXPECT_TRUE(said.code == 2 || said.code == 3) << said.code << said.err;
    EXPECT_TRUE(contains(said.err, "witan: error: ")) << said.err;
  }
}

}  // namespace
}  // namespace witan::test
