#include "witan/cli/compat/megatron.h"

#include "cli/compat/megatron_support.h"
#include "witan/cli/compat/megatron_flags.h"

namespace witan::test {
namespace {

// Uses flags of published recipes for models with latent attention.
TEST(Megatron, RecipesOfLatentAttentionPlan) {
  TempFolder folder;
  write_text(
      folder / "latent.args",
      "--distributed-timeout-minutes 60 --use-distributed-optimizer --use-mcore-models --sequence-parallel\n"
      "--use-flash-attn --disable-bias-linear --global-batch-size 2 --train-samples 64 --lr-warmup-samples 8\n"
      "--lr-warmup-init 1e-6 --exit-duration-in-mins 220 --no-check-for-nan-in-loss-and-grad --num-layers 2\n"
      "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te --manual-gc --manual-gc-interval 10\n"
      "--transformer-impl transformer_engine --no-mmap-bin-files --no-create-attention-mask-in-dataloader\n"
      "--split 99,1,0 --tokenizer-type HuggingFaceTokenizer --num-workers 6 --kv-channels 64 --hidden-size 64\n"
      "--ffn-hidden-size 64 --position-embedding-type rope --normalization RMSNorm --norm-epsilon 1e-6\n"
      "--swiglu --untie-embeddings-and-output-weights --multi-latent-attention --qk-layernorm --lr 1e-3\n"
      "--q-lora-rank 24 --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8 --mscale 1.0\n"
      "--rotary-scaling-factor 40 --mscale-all-dim 1.0 --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1\n"
      "--num-experts 4 --moe-layer-freq ([0]*1+[1]*1) --moe-ffn-hidden-size 16 --moe-router-topk 2\n"
      "--moe-shared-expert-intermediate-size 16 --moe-router-load-balancing-type seq_aux_loss\n"
      "--moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-pre-softmax --moe-grouped-gemm\n"
      "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-dtype fp32\n"
      "--moe-permute-fusion --no-save-optim --async-save --ckpt-format torch_dist --dist-ckpt-strictness log_all\n"
      "--bf16 --enable-experimental --recompute-granularity selective --attention-backend fused\n"
      "--te-rng-tracker --auto-detect-ckpt-format --account-for-embedding-in-pipeline-split --vocab-size 5000\n"
      "--seq-length 32 --max-position-embeddings 32 --num-attention-heads 4 --micro-batch-size 1\n");
  const Said said = witan({"plan", "@" + (folder / "latent.args").string(), "--gpus", "2", "--gpu", "h100",
                           "--runs-folder", folder.path().string()});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_TRUE(contains(said.err, "--no-save-optim (checkpoints are always complete")) << said.err;
}

TEST(Megatron, AListOrTypicalFlagsSelectMegatronsRules) {
  EXPECT_EQ(cli::read_megatron_line({"--num-layers", "2", "--seed", "3", "--no-swiglu"}), nullptr);
  EXPECT_EQ(cli::read_megatron_line({"--num_layers", "2", "--no_swiglu"}), nullptr) << "another spelling";
  EXPECT_EQ(cli::read_megatron_line({}), nullptr);
  EXPECT_EQ(cli::read_megatron_line(small({"--bf16"}))->why, "--bf16");
  EXPECT_EQ(cli::read_megatron_line(small({"--megatron"}))->why, "--megatron");
  EXPECT_EQ(cli::read_megatron_line(small({"--nproc_per_node=2"}))->why, "--nproc-per-node");
  TempFolder folder;
  write_text(folder / "mine.args", "--seed 3");
  const auto line = cli::read_megatron_line({"@" + (folder / "mine.args").string()});
  EXPECT_EQ(line->name, "mine");
  EXPECT_TRUE(line->defaults);
  EXPECT_FALSE(cli::read_megatron_line({"--bf16", "--no-megatron"})->defaults);
}

// The defaults of megatron/training/arguments.py.
TEST(Megatron, MegatronsDefaultsApply) {
  const RunConfig config = read_config({"--megatron"});
  EXPECT_EQ(config.model.norm.normalization, "LayerNorm");
  EXPECT_TRUE(config.model.norm.norm_bias);
  EXPECT_TRUE(config.model.add_bias_linear);
  EXPECT_TRUE(config.model.mlp.gelu_tanh);
  EXPECT_FALSE(config.model.mlp.swiglu);
  EXPECT_EQ(config.model.mlp.ffn_hidden_size, 256);
  EXPECT_EQ(config.model.attention.num_query_groups, 4);
  EXPECT_EQ(config.model.attention.position_embedding_type, "learned_absolute");
  EXPECT_EQ(config.model.hidden_dropout, 0.1);
  EXPECT_EQ(config.model.attention.attention_dropout, 0.1);
  EXPECT_EQ(config.model.make_vocab_size_divisible_by, 128);
  EXPECT_EQ(config.model.moe.num_experts, 0);
  EXPECT_EQ(config.model.dtype, "float32");
  EXPECT_EQ(config.train.global_batch_size, 2);
  EXPECT_EQ(config.train.seed, 1234);
  EXPECT_EQ(config.optimizer.lr_decay_style, "linear");
  EXPECT_EQ(config.optimizer.lr_warmup_iters, 0);
  EXPECT_EQ(config.optimizer.lr_schedule_counter, "updates");
  EXPECT_EQ(config.optimizer.min_lr, 0);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.optimizer.adam_beta2, 0.999);
  EXPECT_EQ(config.train.run, "megatron");
}

TEST(Megatron, SomeDefaultsDependOnOtherFlags) {
  EXPECT_EQ(read_config({"--megatron", "--swiglu", "--hidden-size", "512"}).model.mlp.ffn_hidden_size,
            1344);  // int(512*8/3/64)*64
  EXPECT_FALSE(read_config({"--disable-bias-linear"}).model.mlp.gelu_tanh);
  EXPECT_FALSE(read_config({"--no-bias-gelu-fusion"}).model.mlp.gelu_tanh);
  EXPECT_FALSE(read_config({"--megatron", "--normalization", "RMSNorm"}).model.norm.norm_bias);
  EXPECT_EQ(read_config({"--group-query-attention"}).model.attention.num_query_groups, 1);
  EXPECT_EQ(read_config({"--group-query-attention", "--num-query-groups", "2"}).model.attention.num_query_groups, 2);
  EXPECT_EQ(read_config({"--megatron", "--ranks", "4"}).train.global_batch_size, 8);
  const Words experts = {"--num-experts", "8", "--moe-router-load-balancing-type", "none", "--disable-bias-linear"};
  EXPECT_EQ(read_config(experts).model.moe.moe_router_topk, 2);
  EXPECT_EQ(read_config(experts).model.moe.moe_router_load_balancing_type, "none");
  EXPECT_EQ(read_config({"--num-experts", "8", "--moe-router-load-balancing-type", "seq_aux_loss",
                         "--disable-bias-linear", "--moe-aux-loss-coeff", "1e-4"})
                .model.moe.moe_router_load_balancing_type,
            "seq_aux_loss");
}

TEST(Megatron, WitansDefaultsApplyOnRequest) {
  const RunConfig config = read_config({"--bf16", "--no-megatron"});
  EXPECT_EQ(config.model.dtype, "bfloat16");
  EXPECT_EQ(config.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(config.train.run, "default");
  EXPECT_EQ(read_words({"--seed", "3", "--no-megatron"}).config.train.seed, 3);
}

TEST(Megatron, ARunOnDiskKeepsItsConfiguration) {
  TempFolder folder;
  write_text(folder / "megatron/config.toml",
             "num_layers = 5\nadam_beta2 = 0.9\nhidden_size = 64\ndtype = \"bfloat16\"\n");
  const Said said = witan({"plan", "--bf16", "--hidden-size", "64", "--runs-folder", folder.path().string()});
  EXPECT_TRUE(
      contains(said.err, "megatron is resumed: its saved configuration applies where the command line sets nothing"));
  EXPECT_FALSE(contains(said.err, "must also set")) << said.err;
  EXPECT_FALSE(contains(said.err, "defaults apply")) << said.err;
}

TEST(Megatron, AFileOverridesDefaults) {
  TempFolder folder;
  write_text(folder / "c.toml", "adam_beta2 = 0.98\nnum_layers = 3\nffn_hidden_size = 100\n");
  const RunConfig config =
      read_words({"--config", folder / "c.toml", "--bf16", "--hidden-size", "64", "--seq-length", "32",
                  "--num-attention-heads", "4", "--train-iters", "8", "--lr", "1e-3", "--micro-batch-size", "2"})
          .config;
  EXPECT_EQ(config.optimizer.adam_beta2, 0.98);
  EXPECT_EQ(config.model.num_layers, 3);
  EXPECT_EQ(config.model.mlp.ffn_hidden_size, 100);
}

TEST(Megatron, LaterFlagsOverrideEarlierOnes) {
  EXPECT_EQ(read_config({"--bf16", "--seed", "1", "--seed", "2"}).train.seed, 2);
  EXPECT_EQ(read_config({"--bf16", "--dtype", "float32"}).model.dtype, "float32");
  EXPECT_EQ(read_config({"--dtype=float32", "--bf16"}).model.dtype, "bfloat16");
  EXPECT_FALSE(read_config({"--bf16", "--swiglu", "--no-swiglu"}).model.mlp.swiglu);
}

TEST(Megatron, ParsesFlagsOfEveryKind) {
  const MegatronRead read = read_words(small({"--bf16", "--use-flash-attn", "--use-flash-attn", "--manual-gc",
                                              "--timing-log-option", "minmax", "--recompute-activations"}));
  EXPECT_EQ(read.config.model.dtype, "bfloat16");
  EXPECT_EQ(read.config.model.recompute_granularity, "selective");
  EXPECT_TRUE(contains(read.said,
                       "accepted without effect: --timing-log-option minmax, --use-flash-attn (attention "
                       "never stores its scores), --manual-gc ("))
      << read.said;
  EXPECT_EQ(config_refused({"--fp8-param-gather"}),
            "command line: --fp8-param-gather: weights are gathered in bfloat16, with their masters beside them; leave "
            "it out");
  const ModelConfig blocks = read_config({"--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"}).model;
  EXPECT_EQ(blocks.fp8_format, "e4m3");
  EXPECT_EQ(blocks.fp8_recipe, "blockwise");
  const ModelConfig delayed = read_config({"--bf16", "--fp8", "hybrid", "--fp8-margin", "1", "--fp8-interval", "1",
                                           "--fp8-amax-history-len", "1024", "--fp8-amax-compute-algo", "max"})
                                  .model;
  EXPECT_EQ(delayed.fp8_format, "hybrid");
  EXPECT_EQ(delayed.fp8_recipe, "delayed");
  EXPECT_EQ(delayed.fp8_margin, 1);
  EXPECT_EQ(delayed.fp8_amax_history_len, 1024);
  EXPECT_EQ(delayed.fp8_amax_compute_algo, "max");
  const ModelConfig ends = read_config({"--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise",
                                        "--first-last-layers-bf16", "--num-layers-at-end-in-bf16", "2"})
                               .model;
  EXPECT_EQ(ends.fp8_recipe, "tensorwise");
  EXPECT_TRUE(ends.first_last_layers_bf16);
  EXPECT_EQ(ends.num_layers_at_start_in_bf16, 1);
  EXPECT_EQ(ends.num_layers_at_end_in_bf16, 2);
  EXPECT_EQ(config_refused({"--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"}),
            "command line: --fp8-recipe mxfp8: scales blocks of 32 numbers, which only Blackwell's tensor cores "
            "multiply; give --fp8-recipe blockwise");
  EXPECT_EQ(read_config({"--fp16", "--loss-scale-window", "7"}).model.dtype, "float16");
  EXPECT_EQ(read_config({"--fp16", "--loss-scale-window", "7"}).optimizer.loss_scale_window, 7);
  EXPECT_EQ(read_config({"--tensor-model-parallel-size", "2"}).parallel.tensor_model_parallel_size, 2);
  EXPECT_EQ(read_config({"--bf16", "--recompute-granularity", "selective", "--recompute-modules", "core_attn",
                         "moe_act", "mlp"})
                .model.recompute_modules,
            "core_attn,moe_act,mlp");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--recompute-modules", "core_attn", "attn_proj"}),
                       "--recompute-modules core_attn attn_proj: "));
  EXPECT_TRUE(contains(config_refused({"--bf16", "--num-layers", "many"}),
                       "command line: --num-layers: num_layers = many: must be a whole number"));
}

TEST(Megatron, ParsesFlagsOfActivationsAndExperts) {
  const ModelConfig squared = read_config({"--bf16", "--squared-relu"}).model;
  EXPECT_TRUE(squared.mlp.squared_relu);
  EXPECT_FALSE(squared.mlp.gelu_tanh);
  const ModelConfig gpt_oss = read_config({"--quick-geglu", "--activation-func-clamp-value", "7", "--glu-linear-offset",
                                           "1", "--num-experts", "4"})
                                  .model;
  EXPECT_TRUE(gpt_oss.mlp.swiglu);
  EXPECT_EQ(gpt_oss.mlp.glu_activation_scale, 1.702);
  EXPECT_EQ(gpt_oss.mlp.activation_func_clamp_value, 7);
  EXPECT_EQ(gpt_oss.mlp.glu_linear_offset, 1);
  EXPECT_EQ(gpt_oss.mlp.ffn_hidden_size, 4 * gpt_oss.hidden_size);
  EXPECT_TRUE(gpt_oss.moe.moe_expert_add_bias) << "unless --disable-bias-linear is given";
  const ModelConfig experts =
      read_config({"--swiglu", "--disable-bias-linear", "--num-experts", "4", "--moe-token-dispatcher-type",
                   "allgather", "--moe-shared-expert-intermediate-size", "8", "--moe-shared-expert-gate",
                   "--moe-latent-size", "16"})
          .model;
  EXPECT_FALSE(experts.moe.moe_expert_add_bias);
  EXPECT_EQ(experts.moe.moe_token_dispatcher_type, "allgather");
  EXPECT_TRUE(experts.moe.moe_shared_expert_gate);
  EXPECT_EQ(experts.moe.moe_latent_size, 16);
  const ModelConfig overlapping =
      read_config({"--swiglu", "--disable-bias-linear", "--num-experts", "4", "--moe-token-dispatcher-type", "alltoall",
                   "--moe-shared-expert-intermediate-size", "8", "--moe-shared-expert-overlap"})
          .model;
  EXPECT_TRUE(overlapping.moe.moe_shared_expert_overlap);
  EXPECT_EQ(read_config({"--bf16", "--moe-token-dispatcher-type", "flex"}).model.moe.moe_token_dispatcher_type,
            "alltoall");
}

// Either one value or one per layer.
TEST(Megatron, ContextParallelCommTypesApplyToAllLayers) {
  const auto type = [](const Words& values) {
    Words words = {"--bf16", "--cp-comm-type"};
    words.insert(words.end(), values.begin(), values.end());
    return read_config(words).parallel.cp_comm_type;
  };
  const auto refused = [](const Words& values) {
    Words words = {"--bf16", "--cp-comm-type"};
    words.insert(words.end(), values.begin(), values.end());
    return config_refused(words);
  };
  EXPECT_EQ(read_config({"--bf16"}).parallel.cp_comm_type, "auto");
  EXPECT_EQ(type({"a2a"}), "a2a");
  EXPECT_EQ(type({"p2p"}), "p2p");
  EXPECT_EQ(type({"a2a", "a2a", "a2a"}), "a2a");
  EXPECT_TRUE(contains(refused({"p2p", "a2a"}), "give one value, p2p or a2a"));
  EXPECT_TRUE(contains(refused({"a2a+p2p"}), "a2a+p2p"));
  EXPECT_TRUE(contains(refused({"all_gather"}), "the types are p2p"));
}

TEST(Megatron, EveryRefusedFlagGivesAReason) {
  for (const auto& section : cli::megatron_sections())
    for (const cli::MegatronFlag& flag : section.flags) {
      if (flag.kind != cli::FlagKind::refused) continue;
      Words words = {"--bf16", flag.name};
      if (flag.takes != cli::Takes::nothing) words.push_back("7");
      EXPECT_TRUE(contains(config_refused(words), flag.name)) << flag.name;
    }
}

TEST(Megatron, LayersWithExpertsMayBeAPattern) {
  EXPECT_EQ(cli::expand_layer_pattern("([1]*3+[0]*1)*2"), "[1,1,1,0,1,1,1,0]");
  EXPECT_EQ(cli::expand_layer_pattern("[0] + [1]*2"), "[0,1,1]");
  EXPECT_EQ(cli::expand_layer_pattern("[1,0]"), "[1,0]");
  for (const char* none : {"", "[", "[]", "[2]", "[1", "([1]", "[1]*", "[1]*0", "[1]*-1", "[1]+", "1", "[1] [0]",
                           "[1]*99999999999999999999", "[1]*1000000", "([1]*1000)*1000"})
    EXPECT_EQ(cli::expand_layer_pattern(none), "") << none;
  EXPECT_EQ(cli::expand_layer_pattern(std::string(1000000, '(')), "");
  const Words experts = {"--num-experts", "2", "--disable-bias-linear", "--moe-layer-freq"};
  const auto with = [&](const std::string& pattern) {
    Words words = experts;
    words.push_back(pattern);
    return words;
  };
  EXPECT_EQ(read_config(with("([0]+[1])")).model.moe.moe_layer_freq, "[0,1]");
  EXPECT_EQ(read_config(with("2")).model.moe.moe_layer_freq, "2");
  EXPECT_TRUE(contains(config_refused(with("[3]")), "--moe-layer-freq [3]: must be a whole number, or a list"));
}

TEST(Megatron, ExpertsMayHaveTheirOwnFfnSize) {
  const Words all = {"--num-experts",     "2",  "--disable-bias-linear", "--moe-ffn-hidden-size", "96",
                     "--ffn-hidden-size", "512"};
  EXPECT_EQ(read_config(all).model.mlp.ffn_hidden_size, 512);
  EXPECT_EQ(read_config(all).model.moe.moe_ffn_hidden_size, 96);
  Words some = all;
  some.insert(some.end(), {"--moe-layer-freq", "[0,1]"});
  const std::vector<LayerSpec> layers = read_config(some).model.layers();
  EXPECT_EQ(layers[0].mlp.ffn_hidden_size, 512);
  EXPECT_EQ(layers[1].mlp.ffn_hidden_size, 96);
  EXPECT_EQ(read_config({"--num-experts", "2", "--disable-bias-linear"}).model.moe.moe_ffn_hidden_size, 0);
}

TEST(Megatron, LayersMayHaveWindows) {
  const Words window = {"--bf16", "--window-size", "127,0"};
  const auto windows = [](const RunConfig& config) {
    std::vector<int64_t> sizes;
    for (const LayerSpec& layer : config.model.layers()) sizes.push_back(window_of(layer.mixer));
    return sizes;
  };
  EXPECT_EQ(windows(read_config(window)), std::vector<int64_t>({128, 128}));
  Words some = window;
  some.insert(some.end(), {"--window-attn-skip-freq", "([1]+[0])"});
  EXPECT_EQ(windows(read_config(some)), std::vector<int64_t>({128, 0}));
  EXPECT_EQ(read_config(some).model.attention.window_attn_skip_freq, "[1,0]");
  some.back() = "2";
  EXPECT_EQ(windows(read_config(some)), std::vector<int64_t>({128, 0}));
  some.back() = "[2]";
  EXPECT_TRUE(contains(config_refused(some), "--window-attn-skip-freq [2]: must be a whole number, or a list"));
  EXPECT_EQ(read_config({"--bf16", "--position-embedding-type", "rope", "--no-rope-freq", "[0]+[1]"})
                .model.attention.no_rope_freq,
            "[0,1]");
}

TEST(Megatron, ChecksFlagsThatDependOnEachOther) {
  EXPECT_TRUE(contains(config_refused({"--bf16", "--num-query-groups", "2"}),
                       "Megatron-LM ignores it without --group-query-attention"));
  EXPECT_TRUE(contains(config_refused({"--no-position-embedding"}), "use --position-embedding-type rope"));
  EXPECT_EQ(read_config({"--no-position-embedding", "--use-rotary-position-embeddings"})
                .model.attention.position_embedding_type,
            "rope");
  const auto balanced_by = [](const Words& types) {
    Words words = {"--bf16", "--moe-router-load-balancing-type"};
    words.insert(words.end(), types.begin(), types.end());
    return config_refused(words);
  };
  EXPECT_TRUE(
      contains(balanced_by({"hash"}), "the types are aux_loss, seq_aux_loss, global_aux_loss, several of them"));
  EXPECT_TRUE(contains(balanced_by({"aux_loss", "none"}), "the types are"));
  EXPECT_TRUE(contains(balanced_by({"aux_loss", "aux_loss"}), "the types are"));
  const MoeConfig both = read_config({"--num-experts", "8", "--moe-router-load-balancing-type", "aux_loss",
                                      "seq_aux_loss", "--moe-aux-loss-coeff", "1e-2", "1e-3", "--disable-bias-linear"})
                             .model.moe;
  ASSERT_EQ(both.balance_losses().size(), 2u);
  EXPECT_EQ(both.balance_losses()[0].coefficient, 1e-2);
  EXPECT_EQ(both.balance_losses()[1].coefficient, 1e-3);
  const MoeConfig global = read_config({"--num-experts", "8", "--moe-router-load-balancing-type", "global_aux_loss",
                                        "--disable-bias-linear"})
                               .model.moe;
  EXPECT_EQ(global.balance_losses().at(0).over, BalanceLoss::Over::global_batch);
  EXPECT_TRUE(contains(config_refused({"--recompute-method", "block"}), "one by one"));
}

TEST(Megatron, ScalesRotaryFrequencies) {
  const auto attention_of = [](Words flags) {
    flags.insert(flags.begin(), {"--position-embedding-type", "rope"});
    return read_config(flags).model.attention;
  };
  const AttentionConfig llama = attention_of({"--use-rope-scaling"});
  EXPECT_EQ(llama.rope_scaling_type, "llama3");
  EXPECT_EQ(llama.rotary_scaling_factor, 8);
  EXPECT_EQ(llama.original_max_position_embeddings, 8192);
  EXPECT_EQ(attention_of({"--use-rope-scaling", "--rope-scaling-factor", "32"}).rotary_scaling_factor, 32);
  const AttentionConfig linear = attention_of({"--rotary-seq-len-interpolation-factor", "4"});
  EXPECT_EQ(linear.rope_scaling_type, "linear");
  EXPECT_EQ(linear.rotary_scaling_factor, 4);
  const AttentionConfig yarn = attention_of(
      {"--rope-type", "yarn", "--rotary-scaling-factor", "40", "--mscale", "0.707", "--mscale-all-dim", "0.707"});
  EXPECT_EQ(yarn.rope_scaling_type, "yarn");
  EXPECT_EQ(yarn.rotary_scaling_factor, 40);
  EXPECT_EQ(yarn.mscale, 0.707);
  EXPECT_EQ(yarn.mscale_all_dim, 0.707);
  EXPECT_EQ(attention_of({"--rope-type", "rope"}).rope_scaling_type, "none");
  EXPECT_TRUE(
      contains(config_refused({"--bf16", "--rope-scaling-factor", "8"}), "ignores it without --use-rope-scaling"));
  EXPECT_TRUE(contains(config_refused({"--bf16", "--rope-type", "alibi"}), "the types are rope and yarn"));
  EXPECT_TRUE(
      contains(config_refused({"--use-rope-scaling", "--rope-type", "yarn"}), "contradicts --use-rope-scaling"));
  EXPECT_TRUE(contains(config_refused({"--use-rope-scaling", "--rotary-seq-len-interpolation-factor", "2"}),
                       "contradicts --use-rope-scaling"));
}

TEST(Megatron, ParsesLatentAttention) {
  const Words flags = {"--bf16", "--multi-latent-attention", "--qk-layernorm", "--position-embedding-type",
                       "rope",   "--disable-bias-linear"};
  const auto attention_of = [&](const Words& more) {
    Words words = flags;
    words.insert(words.end(), more.begin(), more.end());
    return read_config(words).model.attention;
  };
  const AttentionConfig defaults = attention_of({});
  EXPECT_TRUE(defaults.multi_latent_attention);
  EXPECT_TRUE(defaults.rotary_interleaved);
  EXPECT_EQ(defaults.q_lora_rank, 0);
  EXPECT_EQ(defaults.kv_lora_rank, 32);
  EXPECT_EQ(defaults.latent_qk_head_dim, 128);
  EXPECT_EQ(defaults.qk_pos_emb_head_dim, 64);
  EXPECT_EQ(defaults.v_head_dim, 128);
  EXPECT_EQ(defaults.rope_scaling_type, "yarn");
  EXPECT_EQ(defaults.rotary_scaling_factor, 1);
  const AttentionConfig given =
      attention_of({"--q-lora-rank", "24", "--kv-lora-rank", "16", "--qk-head-dim", "8", "--qk-pos-emb-head-dim", "4",
                    "--v-head-dim", "6", "--rope-type", "rope"});
  EXPECT_EQ(given.q_lora_rank, 24);
  EXPECT_EQ(given.kv_lora_rank, 16);
  EXPECT_EQ(given.latent_qk_head_dim, 8);
  EXPECT_EQ(given.qk_pos_emb_head_dim, 4);
  EXPECT_EQ(given.v_head_dim, 6);
  EXPECT_EQ(given.rope_scaling_type, "none");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--multi-latent-attention"}), "add --qk-layernorm"));
  EXPECT_TRUE(
      contains(config_refused({"--bf16", "--multi-latent-attention", "--qk-layernorm", "--group-query-attention"}),
               "contradicts --group-query-attention"));
  EXPECT_TRUE(
      contains(config_refused({"--bf16", "--v-head-dim", "64"}), "ignores it without --multi-latent-attention"));
  Words channels = flags;
  channels.insert(channels.end(), {"--kv-channels", "64"});
  const MegatronRead beside = read_words(small(channels));
  EXPECT_EQ(toml_of(beside.config), toml_of(read_config(flags))) << "as in Megatron-LM";
  EXPECT_TRUE(contains(beside.said, "--kv-channels (heads of latent attention")) << beside.said;
  EXPECT_EQ(read_config({"--bf16", "--kv-channels", "8"}).model.attention.kv_channels, 8);
}

TEST(Megatron, ParsesRouters) {
  const auto moe_of = [](const Words& flags) {
    Words words = {"--num-experts", "8", "--disable-bias-linear"};
    words.insert(words.end(), flags.begin(), flags.end());
    return read_config(words).model.moe;
  };
  const MoeConfig groups = moe_of({"--moe-router-topk", "4", "--moe-router-num-groups", "4", "--moe-router-group-topk",
                                   "2", "--moe-router-topk-scaling-factor", "2.5", "--moe-router-score-function",
                                   "sigmoid", "--moe-input-jitter-eps", "0.01"});
  EXPECT_EQ(groups.moe_router_num_groups, 4);
  EXPECT_EQ(groups.moe_router_group_topk, 2);
  EXPECT_EQ(groups.group_score_topk(), 2) << "topk / group_topk";
  EXPECT_EQ(groups.moe_router_topk_scaling_factor, 2.5);
  EXPECT_EQ(groups.moe_input_jitter_eps, 0.01);
  EXPECT_EQ(moe_of({"--moe-router-force-load-balancing"}).moe_router_selection, "uniform");
  const MoeConfig two = moe_of({"--moe-router-load-balancing-type", "sinkhorn"});
  EXPECT_EQ(two.moe_router_selection, "sinkhorn");
  EXPECT_TRUE(two.balance_losses().empty());
  EXPECT_TRUE(two.moe_router_pre_softmax);
  EXPECT_EQ(
      moe_of({"--moe-router-load-balancing-type", "sinkhorn", "--moe-router-topk", "1"}).moe_router_score_function,
      "sigmoid");
}

TEST(Megatron, ParsesGraphsAndGradientDtypes) {
  EXPECT_TRUE(read_config({"--bf16"}).parallel.cuda_graph);
  EXPECT_FALSE(read_config({"--bf16", "--cuda-graph-impl", "none"}).parallel.cuda_graph);
  EXPECT_TRUE(read_config({"--bf16", "--cuda-graph-impl", "local"}).parallel.cuda_graph);
  EXPECT_EQ(read_config({"--bf16", "--grad-reduce-in-bf16"}).parallel.gradient_dtype, "bfloat16");
  EXPECT_EQ(read_config({"--bf16", "--main-grads-dtype", "bf16"}).parallel.gradient_dtype, "bfloat16");
  EXPECT_EQ(read_config({"--bf16", "--main-grads-dtype", "fp32"}).parallel.gradient_dtype, "float32");
  EXPECT_EQ(read_config({"--bf16", "--accumulate-allreduce-grads-in-fp32"}).parallel.gradient_dtype, "float32");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--main-grads-dtype", "fp16"}), "gradients are fp32 or bf16"));
  const OptimizerConfig moments = read_config({"--bf16", "--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16",
                                               "--exp-avg-sq-dtype", "fp32"})
                                      .optimizer;
  EXPECT_EQ(moments.exp_avg_dtype, "bfloat16");
  EXPECT_EQ(moments.exp_avg_sq_dtype, "float32");
  EXPECT_TRUE(contains(config_refused({"--bf16", "--exp-avg-dtype", "fp8"}), "Adam's moments are fp32 or bf16"));
  EXPECT_TRUE(contains(config_refused({"--bf16", "--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16"}),
                       "contradicts --grad-reduce-in-bf16"));
  EXPECT_TRUE(contains(config_refused({"--bf16", "--main-grads-dtype", "bf16", "--accumulate-allreduce-grads-in-fp32"}),
                       "contradicts --main-grads-dtype bf16"));
  EXPECT_TRUE(
      contains(config_refused({"--bf16", "--gradient-dtype", "bfloat16", "--accumulate-allreduce-grads-in-fp32"}),
               "contradicts --gradient-dtype bfloat16"));
}

TEST(Megatron, SupportsOldFlagsOfDroppingAndDroplessLayers) {
  const Words experts = {"--num-experts", "4"};
  const auto with = [&](Words more) {
    more.insert(more.end(), experts.begin(), experts.end());
    return more;
  };
  EXPECT_EQ(read_config(with({"--moe-token-dropping", "--moe-expert-capacity-factor", "1.5"}))
                .model.moe.moe_expert_capacity_factor,
            1.5);
  EXPECT_TRUE(contains(config_refused(with({"--moe-token-dropping"})), "--moe-expert-capacity-factor"));
  EXPECT_EQ(read_config(with({"--moe-use-megablocks-dmoe"})).model.moe.moe_expert_capacity_factor, 0);
  EXPECT_TRUE(contains(config_refused(with({"--moe-use-megablocks-dmoe", "--moe-expert-capacity-factor", "1"})),
                       "dropless experts have no capacity"));
  EXPECT_EQ(read_config(with({"--bf16", "--moe-router-load-balancing-type", "None"}))
                .model.moe.moe_router_load_balancing_type,
            "none");
}

TEST(Megatron, OverlapsTensorParallelCommunicationWherePossible) {
  const auto overlaps = [](const char* sequences) {
    return read_config({"--bf16", "--tp-comm-overlap", "--micro-batch-size", sequences, "--seq-length", "2048",
                        "--max-position-embeddings", "2048"})
        .parallel.tp_comm_overlap;
  };
  EXPECT_TRUE(overlaps("16"));
  EXPECT_FALSE(overlaps("15"));
}

// Megatron-LM counts steps from 0, starts its profiler after the first one and stops it after the second one.
TEST(Megatron, ProfilerTracesSteps) {
  const auto profiled = [](const Words& more) { return cli::read_megatron_line(small(more))->profiled; };
  EXPECT_FALSE(profiled({"--bf16", "--profile-step-start", "3"}));
  const auto usual = profiled({"--profile"});
  ASSERT_TRUE(usual);
  EXPECT_EQ(usual->first, 11);
  EXPECT_EQ(usual->last, 12);
  const auto said =
      profiled({"--profile", "--profile-step-start", "0", "--profile-step-end", "2", "--profile-ranks", "0", "1"});
  ASSERT_TRUE(said);
  EXPECT_EQ(said->first, 1);
  EXPECT_EQ(said->last, 2);
  const auto one = profiled({"--profile", "--profile-step-start", "11"});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->first, one->last);
  EXPECT_TRUE(contains(config_refused({"--profile", "--profile-step-start", "12"}), "above --profile-step-start"));
  EXPECT_TRUE(contains(config_refused({"--profile", "--profile-step-end", "x"}), "a whole number"));
}

TEST(Megatron, SaveFolderIsTheRunsFolder) {
  TempFolder folder;
  // --runs-folder is the last word in read_words(), so the settings are checked directly.
  const auto settings = [&](const Words& more) {
    std::string text;
    const auto line = cli::read_megatron_line(small(more));
    for (const auto& setting : line->settings)
      if (setting.key == "run" || setting.key == "runs_folder") text += setting.key + "=" + setting.text + ";";
    return text;
  };
  EXPECT_EQ(settings({"--save", "ckpt/mixtral"}), "run=mixtral;runs_folder=ckpt;");
  EXPECT_EQ(settings({"--save", "mixtral/", "--load", "./mixtral"}), "run=mixtral;runs_folder=.;");
  EXPECT_TRUE(contains(config_refused({"--save", ".."}), "must end in a name"));
  write_text(folder / "latest_checkpointed_iteration.txt", "100");
  EXPECT_TRUE(contains(config_refused({"--save", folder.path().string()}), "holds checkpoints of Megatron-LM"));
}

}  // namespace
}  // namespace witan::test
