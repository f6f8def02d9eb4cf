#include "witan/cli/compat/megatron_flags.h"

#include <set>

#include "cli/compat/megatron_support.h"

namespace witan::test {
namespace {

using cli::FlagKind;
using cli::MegatronFlag;
using cli::Takes;

template <class Check>
void for_all(Check check) {
  for (const auto& section : cli::megatron_sections())
    for (const MegatronFlag& flag : section.flags) check(flag);
}

TEST(MegatronFlags, RowsSetKeysThatExist) {
  RunConfig config;
  const Fields fields = config.fields();
  const auto find = [&](const std::string& key) {
    return std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == key; });
  };
  for_all([&](const MegatronFlag& flag) {
    if (flag.key.empty()) return;
    ASSERT_NE(find(flag.key), fields.end()) << flag.name << " sets " << flag.key;
    EXPECT_EQ(flag.kind, FlagKind::honoured) << flag.name;
    if (!flag.value.empty()) {
      EXPECT_NO_THROW(find(flag.key)->set(flag.value, "test")) << flag.name;
    } else {
      EXPECT_EQ(std::holds_alternative<bool*>(find(flag.key)->value), flag.takes == Takes::nothing) << flag.name;
    }
  });
  for (const auto& [key, text] : cli::megatron_defaults()) {
    ASSERT_NE(find(key), fields.end()) << key;
    EXPECT_NO_THROW(find(key)->set(text, "test")) << key;
  }
}

TEST(MegatronFlags, RowsAreComplete) {
  std::set<std::string> names;
  for_all([&](const MegatronFlag& flag) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " appears twice";
    EXPECT_TRUE(flag.name.starts_with("--")) << flag.name;
    EXPECT_TRUE(flag.kind == FlagKind::honoured ? !flag.key.empty() || flag.rule : !flag.why.empty()) << flag.name;
    EXPECT_EQ(cli::find_megatron_flag(flag.name), &flag);
    EXPECT_TRUE(flag.why.find('|') == std::string::npos) << flag.name << ": | separates the table's columns";
  });
  EXPECT_EQ(cli::find_megatron_flag("--use-checkpoint-opt_param-scheduler"),
            cli::find_megatron_flag("--use-checkpoint-opt-param-scheduler"));
  EXPECT_EQ(cli::find_megatron_flag("--no-such-flag"), nullptr);
}

TEST(MegatronFlags, CoverTheListsOfPublicRuns) {
  for (const auto& file : std::filesystem::directory_iterator(kLists)) {
    std::vector<std::string> files;
    for (const cli::Argument& word : cli::expand_response_files({"@" + file.path().string()}, files)) {
      if (!word.text.starts_with("--")) continue;
      EXPECT_NE(cli::find_megatron_flag(word.text), nullptr) << word.origin << ": " << word.text;
    }
  }
}

// Flags of megatron/core/transformer/moe/README.md: its tables, and its example for Mixtral 8x7B with torchrun's flags.
TEST(MegatronFlags, CoverTheGuideToMixtureOfExperts) {
  const char* guide[] = {"--attention-dropout",
                         "--auto-detect-ckpt-format",
                         "--bf16",
                         "--ckpt-format",
                         "--clip-grad",
                         "--context-parallel-size",
                         "--cross-entropy-fusion-impl",
                         "--cross-entropy-loss-fusion",
                         "--cuda-graph-impl",
                         "--cuda-graph-modules",
                         "--cuda-graph-scope",
                         "--data-path",
                         "--delay-wgrad-compute",
                         "--disable-bias-linear",
                         "--eval-interval",
                         "--eval-iters",
                         "--exp-avg-dtype",
                         "--exp-avg-sq-dtype",
                         "--expert-model-parallel-size",
                         "--expert-tensor-parallel-size",
                         "--external-cuda-graph",
                         "--fake-init-process-group",
                         "--ffn-hidden-size",
                         "--fine-grained-activation-offloading",
                         "--fp8",
                         "--fp8-format",
                         "--fp8-param-gather",
                         "--fp8-recipe",
                         "--global-batch-size",
                         "--grad-reduce-in-fp32",
                         "--group-query-attention",
                         "--hidden-dropout",
                         "--hidden-size",
                         "--inference-cuda-graph-scope",
                         "--init-method-std",
                         "--load",
                         "--log-interval",
                         "--lr",
                         "--lr-decay-iters",
                         "--lr-decay-style",
                         "--lr-warmup-iters",
                         "--manual-gc",
                         "--manual-gc-interval",
                         "--master_addr",
                         "--master_port",
                         "--max-position-embeddings",
                         "--micro-batch-size",
                         "--min-lr",
                         "--moe-aux-loss-coeff",
                         "--moe-enable-deepep",
                         "--moe-expert-capacity-factor",
                         "--moe-extended-tp",
                         "--moe-ffn-hidden-size",
                         "--moe-flex-dispatcher-backend",
                         "--moe-grouped-gemm",
                         "--moe-input-jitter-eps",
                         "--moe-layer-freq",
                         "--moe-layer-recompute",
                         "--moe-pad-expert-input-to-capacity",
                         "--moe-per-layer-logging",
                         "--moe-permute-fusion",
                         "--moe-router-bias-update-rate",
                         "--moe-router-dtype",
                         "--moe-router-enable-expert-bias",
                         "--moe-router-force-load-balancing",
                         "--moe-router-fusion",
                         "--moe-router-group-topk",
                         "--moe-router-load-balancing-type",
                         "--moe-router-num-groups",
                         "--moe-router-padding-for-fp8",
                         "--moe-router-pre-softmax",
                         "--moe-router-score-function",
                         "--moe-router-topk",
                         "--moe-shared-expert-intermediate-size",
                         "--moe-shared-expert-overlap",
                         "--moe-token-capacity-factor",
                         "--moe-token-dispatcher-type",
                         "--moe-token-drop-policy",
                         "--moe-upcycling-granularity",
                         "--moe-use-upcycling",
                         "--moe-z-loss-coeff",
                         "--mtp-num-layers",
                         "--nnodes",
                         "--no-load-optim",
                         "--no-load-rng",
                         "--no-masked-softmax-fusion",
                         "--no-position-embedding",
                         "--node_rank",
                         "--normalization",
                         "--nproc_per_node",
                         "--num-attention-heads",
                         "--num-distributed-optimizer-instances",
                         "--num-experts",
                         "--num-layers",
                         "--num-layers-per-virtual-pipeline-stage",
                         "--num-query-groups",
                         "--offload-modules",
                         "--optimizer-cpu-offload",
                         "--overlap-grad-reduce",
                         "--overlap-moe-expert-parallel-comm",
                         "--overlap-p2p-comm",
                         "--overlap-param-gather",
                         "--pipeline-model-parallel-layout",
                         "--pipeline-model-parallel-size",
                         "--position-embedding-type",
                         "--recompute-granularity",
                         "--recompute-modules",
                         "--reuse-grad-buf-for-mxfp8-param-ag",
                         "--save",
                         "--save-interval",
                         "--seq-length",
                         "--sequence-parallel",
                         "--split",
                         "--swiglu",
                         "--te-rng-tracker",
                         "--tensor-model-parallel-size",
                         "--tensorboard-dir",
                         "--tokenizer-model",
                         "--tokenizer-type",
                         "--tp-comm-overlap",
                         "--train-iters",
                         "--untie-embeddings-and-output-weights",
                         "--use-distributed-optimizer",
                         "--use-mcore-models",
                         "--use-precision-aware-optimizer",
                         "--wandb-exp-name",
                         "--wandb-project",
                         "--weight-decay"};
  for (const char* flag : guide) EXPECT_NE(cli::find_megatron_flag(flag), nullptr) << flag;
}

// Things named by the reasons exist: TensorBoard tags in the description of its files, and the upload script.
TEST(MegatronFlags, ReasonsOfLoggingFlagsNameExistingThings) {
  const std::string format = read_text(std::filesystem::path(WITAN_SOURCE_DIR) / "docs/formats/tensorboard.md");
  const auto why = [](const char* flag) { return cli::find_megatron_flag(flag)->why; };
  for (const auto& [flag, tag] : {std::pair{"--log-timers-to-tensorboard", "`iteration-time`"},
                                  {"--log-timers-to-tensorboard", "`data-wait-time`"}}) {
    EXPECT_TRUE(contains(why(flag), tag)) << why(flag);
    EXPECT_TRUE(contains(format, tag)) << tag;
  }
  EXPECT_TRUE(contains(format, "`world-size`"));
  EXPECT_TRUE(contains(format, "`mem-max-allocated-bytes`"));
  for (const char* flag : {"--wandb-project", "--wandb-exp-name", "--wandb-entity"}) {
    EXPECT_TRUE(contains(why(flag), "docs/formats/tensorboard.md")) << flag;
    EXPECT_TRUE(contains(format, cat("config[\"", cli::find_megatron_flag(flag)->key, "\"]"))) << flag;
  }
  EXPECT_TRUE(contains(format, "wandb.init("));
}

TEST(MegatronFlags, FlagsOfTransportsAndRestartsAreNotTypos) {
  const auto kind = [](const char* flag) { return cli::find_megatron_flag(flag)->kind; };
  for (const char* flag : {"--rerun-mode", "--inprocess-restart", "--moe-deepep-num-sms", "--moe-hybridep-num-sms"})
    EXPECT_EQ(kind(flag), FlagKind::harmless) << flag;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--hierarchical-context-parallel-sizes", "2", "4"},
        {"--hybrid-context-parallel"},
        {"--dynamic-context-parallel"},
        {"--max-seqlen-per-dp-cp-rank", "4096"}}) {
    EXPECT_EQ(kind(words[0].c_str()), FlagKind::refused) << words[0];
    std::vector<std::string> args = {"plan", "--bf16"};
    args.insert(args.end(), words.begin(), words.end());
    expect_refusal(args, 3, {words[0], "context-parallel ranks", "leave it out"});
  }
}

TEST(MegatronFlags, DocumentMatchesTheTable) {
  const std::string document = read_text(std::filesystem::path(WITAN_SOURCE_DIR) / "docs/megatron.md");
  EXPECT_TRUE(document.ends_with(cli::megatron_reference()))
      << "docs/megatron.md must end with the output of `witan help megatron`";
  EXPECT_EQ(witan({"help", "megatron"}).out, cli::megatron_reference());
}

}  // namespace
}  // namespace witan::test
