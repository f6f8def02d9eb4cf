// Checks that each flag does what its row of docs/megatron.md says.
#include <map>
#include <set>

#include "cli/compat/megatron_support.h"
#include "support/message_of.h"
#include "witan/cli/compat/megatron_flags.h"
#include "witan/cli/compat/megatron_rules.h"

namespace witan::test {
namespace {

using cli::FlagKind;
using cli::MegatronFlag;
using cli::Takes;

template <class Check>
void for_each_of(FlagKind kind, Check check) {
  for (const auto& section : cli::megatron_sections())
    for (const MegatronFlag& flag : section.flags)
      if (flag.kind == kind) check(flag);
}

// The keys and values that `flag` sets in a command line with these words.
std::map<std::string, std::string> set_by(const std::string& flag, const Words& words) {
  std::map<std::string, std::string> keys;
  const auto line = cli::read_megatron_line(words);
  for (const auto& setting : line->settings)
    if (setting.by == flag) keys[setting.key] = setting.text;
  return keys;
}

// A value different from the field's current one, if there is one.
std::string other_value(const Field& field) {
  for (const auto* names : {&field.choices, &field.parts})
    for (const std::string& name : *names)
      if (cat("\"", name, "\"") != field.text()) return name;
  if (!field.choices.empty()) return field.choices.front();
  if (std::holds_alternative<std::string*>(field.value)) return "another";
  for (const char* number : {"3", "0.5", "0.25", "1", "0"}) try {
      const std::string before = field.text();
      field.set(number, "test");
      if (field.text() != before) return number;
    } catch (const ConfigError&) {
    }
  return "";
}

TEST(MegatronGrounds, FlagsOfAKeyChangeIt) {
  for_each_of(FlagKind::honoured, [&](const MegatronFlag& flag) {
    if (flag.rule) return;
    RunConfig config;
    const Fields fields = config.fields();
    const auto field = std::ranges::find(fields, flag.key, &Field::name);
    ASSERT_NE(field, fields.end()) << flag.name;
    Words words = {"--megatron", flag.name};
    std::string value = flag.value.empty() ? "true" : flag.value;
    if (flag.takes != Takes::nothing) words.push_back(value = other_value(*field));
    const std::map<std::string, std::string> expected = {{flag.key, value}};
    EXPECT_EQ(set_by(flag.name, words), expected) << flag.name;
  });
}

TEST(MegatronGrounds, HarmlessFlagsChangeNothing) {
  const std::string without = toml_of(read_words(small({"--bf16"})).config);
  for_each_of(FlagKind::harmless, [&](const MegatronFlag& flag) {
    Words words = {"--bf16", flag.name};
    if (flag.takes != Takes::nothing) words.push_back(flag.accepted.empty() ? "1" : flag.accepted.front());
    const MegatronRead with = read_words(small(words));
    EXPECT_EQ(toml_of(with.config), without) << flag.name;
    EXPECT_TRUE(contains(with.said, flag.name)) << flag.name << ": " << with.said;
    if (flag.accepted.empty()) return;
    words.back() = "something else";
    const std::string refusal = message_of<ConfigError>([&] { read_words(small(words)); });
    EXPECT_TRUE(contains(refusal, flag.name)) << flag.name << ": " << refusal;
  });
}

// These flags do not change training, so they can be left out; the purpose of all others would be lost without them.
TEST(MegatronGrounds, OnlyFlagsThatDoNotChangeTrainingMayBeLeftOut) {
  const std::set<std::string> without_effect = {"--dynamic-context-parallel",
                                                "--fp8-param-gather",
                                                "--hierarchical-context-parallel-sizes",
                                                "--hybrid-context-parallel",
                                                "--max-seqlen-per-dp-cp-rank",
                                                "--reuse-grad-buf-for-mxfp8-param-ag",
                                                "--test-mode"};
  for_each_of(FlagKind::refused, [&](const MegatronFlag& flag) {
    EXPECT_EQ(contains(flag.why, "leave it out"), without_effect.contains(flag.name)) << flag.name << ": " << flag.why;
  });
}

TEST(MegatronGrounds, RefusalsOfFlagsThatChangeTrainingOrMemoryNameTheFix) {
  const auto refused = [](const Words& words, const Words& ways) {
    Words args = {"plan", "--bf16"};
    args.insert(args.end(), words.begin(), words.end());
    Words parts = {words.front()};
    parts.insert(parts.end(), ways.begin(), ways.end());
    expect_refusal(args, 3, parts);
  };
  refused({"--rampup-batch-size", "32", "32", "65536"}, {"needs --train-samples"});
  refused({"--decrease-batch-size-if-needed"}, {"--global-batch-size"});
  refused({"--step-batch-size-schedule", "8", "16"}, {"--rampup-batch-size", "--init-from"});
  refused({"--optimizer-cpu-offload"}, {"--use-distributed-optimizer"});
  refused({"--optimizer-offload-fraction", "0.5"}, {"--use-distributed-optimizer", "only 0 is accepted"});
  for (const Words& words : {Words{"--fine-grained-activation-offloading"},
                             {"--offload-modules", "core_attn", "attn_proj"},
                             {"--cpu-offloading-num-layers", "3"}})
    refused(words, {"only the inputs of recomputed blocks", "--recompute-granularity full", "offload_activations"});
  refused({"--recompute-modules", "attn_proj"}, {"--recompute-granularity full"});
  refused({"--freeze-all-layers"}, {"--freeze PATTERNS"});
  refused({"--ckpt-convert-format", "torch_dist"}, {"witan import", "witan export --format megatron"});
}

// The words that a rule needs, and the keys that its flag sets.
struct Ruled {
  const char* flag;
  Words line;
  Words keys;
};

std::vector<Ruled> ruled_lines(const TempFolder& folder) {
  write_text(folder / "blend", "1 a 2 b");
  write_text(folder / "splits", R"({"train": ["a"]})");
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"}) write_text(folder / name, "{}");
  const std::string file = folder / "tokenizer.json";
  const std::string here = folder / "mine", own = folder / "own";
  fs::create_directories(folder / "own/checkpoints/step-3");
  return {
      {"--kv-channels", {"8"}, {"kv_channels"}},
      {"--group-query-attention", {}, {"num_query_groups"}},
      {"--num-query-groups", {"2", "--group-query-attention"}, {"num_query_groups"}},
      {"--no-position-embedding", {"--position-embedding-type", "rope"}, {}},
      {"--rotary-seq-len-interpolation-factor", {"2"}, {"rope_scaling_type", "rotary_scaling_factor"}},
      {"--use-rope-scaling", {}, {"original_max_position_embeddings", "rope_scaling_type", "rotary_scaling_factor"}},
      {"--rope-scaling-factor", {"4", "--use-rope-scaling"}, {"rotary_scaling_factor"}},
      {"--rope-type", {"yarn"}, {"rope_scaling_type"}},
      {"--no-rope-freq", {"2"}, {"no_rope_freq"}},
      {"--window-attn-skip-freq", {"2"}, {"window_attn_skip_freq"}},
      {"--linear-attention-freq", {"2"}, {"linear_attention_freq"}},
      {"--hybrid-layer-pattern", {"M*-M"}, {"hybrid_override_pattern", "num_layers"}},
      {"--spec",
       {"megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec", "--hybrid-override-pattern", "M*"},
       {}},
      {"--quick-geglu", {}, {"glu_activation_scale", "swiglu"}},
      {"--multi-latent-attention",
       {"--qk-layernorm"},
       {"kv_lora_rank", "multi_latent_attention", "rope_scaling_type", "rotary_interleaved", "v_head_dim"}},
      {"--v-head-dim", {"8", "--multi-latent-attention", "--qk-layernorm"}, {"v_head_dim"}},
      {"--enable-hyper-connections", {}, {"num_residual_streams"}},
      {"--moe-layer-freq", {"2"}, {"moe_layer_freq"}},
      {"--moe-router-load-balancing-type", {"none"}, {"moe_router_load_balancing_type"}},
      {"--moe-aux-loss-coeff", {"0.1"}, {"moe_aux_loss_coeff"}},
      {"--moe-token-dispatcher-type", {"allgather"}, {"moe_token_dispatcher_type"}},
      {"--exp-avg-dtype", {"bf16"}, {"exp_avg_dtype"}},
      {"--exp-avg-sq-dtype", {"bf16"}, {"exp_avg_sq_dtype"}},
      {"--main-grads-dtype", {"bf16"}, {"gradient_dtype"}},
      {"--rampup-batch-size", {"2", "2", "10", "--train-samples", "60"}, {"rampup_batch_size"}},
      {"--decrease-batch-size-if-needed",
       {"--rampup-batch-size", "2", "2", "10", "--train-samples", "60"},
       {"decrease_batch_size_if_needed"}},
      {"--train-samples", {"8", "--global-batch-size", "4"}, {"train_iters"}},
      {"--check-for-spiky-loss", {}, {"skip_step_sigma"}},
      {"--check-for-large-grads", {}, {"skip_step_sigma"}},
      {"--recompute-method", {"uniform"}, {}},
      {"--recompute-modules", {"mlp"}, {"recompute_modules"}},
      {"--lr-decay-samples", {"8", "--global-batch-size", "4"}, {"lr_decay_iters"}},
      {"--lr-warmup-samples", {"8", "--global-batch-size", "4"}, {"lr_warmup_iters"}},
      {"--lr-wsd-decay-samples", {"8", "--global-batch-size", "4"}, {"lr_wsd_decay_iters"}},
      {"--lr-warmup-fraction", {"0.5", "--train-iters", "8"}, {"lr_warmup_iters"}},
      {"--decoupled-lr", {"0.1"}, {"optimizer_groups"}},
      {"--decoupled-min-lr", {"0.1", "--decoupled-lr", "0.2"}, {}},
      {"--fp8", {"e4m3"}, {"fp8_format", "fp8_recipe"}},
      {"--fp8-format", {"e4m3", "--fp8-recipe", "blockwise"}, {"fp8_format"}},
      {"--fp8-recipe", {"tensorwise"}, {"fp8_recipe"}},
      {"--accumulate-allreduce-grads-in-fp32", {}, {"gradient_dtype"}},
      {"--cp-comm-type", {"p2p"}, {"cp_comm_type"}},
      {"--cuda-graph-impl", {"none"}, {"cuda_graph"}},
      {"--data-path", {"a"}, {"data_path"}},
      {"--weight-decay", {"0.1"}, {"weight_decay"}},
      {"--start-weight-decay",
       {"0.1", "--weight-decay-incr-style", "linear", "--end-weight-decay", "0.2"},
       {"start_weight_decay"}},
      {"--end-weight-decay",
       {"0.1", "--weight-decay-incr-style", "linear", "--start-weight-decay", "0.2"},
       {"weight_decay"}},
      {"--weight-decay-incr-style",
       {"cosine", "--start-weight-decay", "0.1", "--end-weight-decay", "0.2"},
       {"weight_decay_incr_style"}},
      {"--train-data-path", {"a"}, {"train_data_path"}},
      {"--valid-data-path", {"a"}, {"valid_data_path"}},
      {"--test-data-path", {"a"}, {"test_data_path"}},
      {"--data-args-path", {folder / "blend"}, {"data_path"}},
      {"--per-split-data-args-path", {folder / "splits"}, {"train_data_path"}},
      {"--split", {"90,10"}, {"held_out_fraction", "split"}},
      {"--tokenizer-type", {"HuggingFaceTokenizer"}, {}},
      {"--tokenizer-model", {file}, {"tokenizer"}},
      {"--vocab-file", {folder / "vocab.json", "--merge-file", folder / "merges.txt"}, {"tokenizer"}},
      {"--merge-file", {folder / "merges.txt", "--vocab-file", folder / "vocab.json"}, {}},
      {"--moe-token-dropping", {"--moe-expert-capacity-factor", "1", "--num-experts", "2"}, {}},
      {"--moe-use-megablocks-dmoe", {"--num-experts", "2"}, {}},
      {"--profile", {}, {}},
      {"--tp-comm-overlap", {"--micro-batch-size", "16", "--seq-length", "2048"}, {"tp_comm_overlap"}},
      {"--save", {here}, {"run", "runs_folder"}},
      {"--load", {own}, {"init_from", "init_state"}},
      {"--finetune", {"--load", own}, {}},  // modifies --load
      {"--pretrained-checkpoint", {own}, {"init_from"}},
      {"--ckpt-step", {"2", "--load", own, "--finetune"}, {}},
      {"--no-load-optim", {}, {"no_load_optim"}},
  };
}

TEST(MegatronGrounds, PatternsOfHybridLayersHaveTheirNewerName) {
  const ModelConfig model = read_config({"--bf16", "--num-layers", "3", "--hybrid-layer-pattern", "M*-"}).model;
  EXPECT_EQ(model.mamba.hybrid_override_pattern, "M*-");
  EXPECT_EQ(model.num_layers, 3);
  const auto refused = [](const Words& words, const std::string& why) {
    EXPECT_TRUE(contains(config_refused(words), why)) << config_refused(words);
  };
  refused({"--bf16", "--hybrid-layer-pattern", "M*|-M"}, "--decoder-first-pipeline-num-layers");
  refused({"--bf16", "--hybrid-layer-pattern", "M*-M/*E"}, "no modules of multi-token prediction");
  refused({"--bf16", "--hybrid-layer-pattern", "M*", "--hybrid-override-pattern", "M*"}, "leave one of them out");
  refused({"--bf16", "--spec", "megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"},
          "needs --hybrid-override-pattern");
  refused({"--bf16", "--spec", "mine.layers", "mamba_stack_spec", "--hybrid-layer-pattern", "M*"},
          "other Python modules");
}

TEST(MegatronGrounds, FlagsWithARuleSetTheDocumentedKeys) {
  const TempFolder folder;
  std::set<std::string> seen;
  for (const Ruled& ruled : ruled_lines(folder)) {
    const MegatronFlag* const flag = cli::find_megatron_flag(ruled.flag);
    ASSERT_TRUE(flag != nullptr && flag->rule) << ruled.flag;
    seen.insert(ruled.flag);
    Words words = {"--megatron", ruled.flag};
    words.insert(words.end(), ruled.line.begin(), ruled.line.end());
    Words keys;
    for (const auto& [key, text] : set_by(ruled.flag, words)) {
      keys.push_back(key);
      EXPECT_TRUE(contains(flag->why, "`" + key)) << ruled.flag << " sets " << key << ": " << flag->why;
    }
    EXPECT_EQ(keys, ruled.keys) << ruled.flag;
  }
  for_each_of(FlagKind::honoured, [&](const MegatronFlag& flag) {
    EXPECT_EQ(flag.rule != nullptr, seen.contains(flag.name)) << flag.name << " is missing from the list above";
  });
}

// Every flag mentioned in a reason belongs to Megatron-LM, to a key, or to a command.
TEST(MegatronGrounds, ReasonsNameFlagsThatExist) {
  RunConfig config;
  std::set<std::string> known = {"--config", "--format", "--trace-steps"};
  for (const Field& field : config.fields()) known.insert(flag_name(field.name));
  for (const std::string& name : cli::megatron_flag_names()) known.insert(name);
  for (const auto& section : cli::megatron_sections())
    for (const MegatronFlag& flag : section.flags)
      for (size_t at = flag.why.find("--"); at != std::string::npos; at = flag.why.find("--", at + 2)) {
        const size_t end = flag.why.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
        const std::string named = flag.why.substr(at, end == std::string::npos ? end : end - at);
        EXPECT_TRUE(known.contains(named)) << flag.name << ": " << named;
      }
  EXPECT_TRUE(contains(witan({"train", "--help"}).out, "--trace-steps"));
  EXPECT_TRUE(contains(witan({"export", "--help"}).out, "megatron"));
}

}  // namespace
}  // namespace witan::test
