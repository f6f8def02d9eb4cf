#include "witan/model/config.h"

#include <gmock/gmock.h>

#include "support/message_of.h"
#include "support/model_variants.h"
#include "witan/base/error.h"
#include "witan/model/frozen.h"

namespace witan {
namespace {

using test::message_of;

TEST(ModelConfig, DefaultsAreValidWithAVocabularySize) {
  ModelConfig config;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "vocab_size is not set, and there is no tokenizer to take it from");
  config.vocab_size = 4096;
  config.validate();
}

TEST(ModelConfig, ComposesTheFieldsOfItsParts) {
  ModelConfig config;
  const Fields fields = config.fields();
  set_field(fields, "num_layers", "7", "test");
  set_field(fields, "num_query_groups", "1", "test");
  set_field(fields, "ffn_hidden_size", "96", "test");
  set_field(fields, "norm_epsilon", "0.001", "test");
  set_field(fields, "moe_router_topk", "3", "test");
  EXPECT_EQ(config.num_layers, 7);
  EXPECT_EQ(config.attention.num_query_groups, 1);
  EXPECT_EQ(config.mlp.ffn_hidden_size, 96);
  EXPECT_EQ(config.norm.norm_epsilon, 0.001);
  EXPECT_EQ(config.moe.moe_router_topk, 3);
}

TEST(ModelConfig, TorchInitialisationHasNoTinyEmbeddings) {
  ModelConfig config;
  config.init_method = "torch";
  config.vocab_size = 1;
  config.hidden_size = 8;
  config.attention.num_attention_heads = config.attention.num_query_groups = 1;
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "init_method = torch: PyTorch draws an embedding of less than 16 values in another way; use init_method = "
            "normal");
  config.vocab_size = 2;
  config.validate();
}

TEST(ModelConfig, ValidatesItsParts) {
  const auto refused = [](auto&& change) {
    ModelConfig config;
    config.vocab_size = 8;
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_NE(refused([](ModelConfig& c) { c.hidden_size = 30; }).find("does not divide hidden_size = 30"),
            std::string::npos);
  EXPECT_NE(refused([](ModelConfig& c) { c.norm.norm_bias = true; }).find("RMSNorm has no bias"), std::string::npos);
  EXPECT_EQ(refused([](ModelConfig& c) { c.hidden_dropout = 1; }),
            "hidden_dropout = 1 drops everything; use a probability below 1, such as 0.1");
  EXPECT_EQ(refused([](ModelConfig& c) { c.attention.attention_dropout = 1.5; }),
            "attention_dropout = 1.5 drops everything; use a probability below 1, such as 0.1");
  EXPECT_NE(refused([](ModelConfig& c) { c.fp8_recipe = "mxfp8"; }).find("only Blackwell's tensor cores"),
            std::string::npos);
  EXPECT_EQ(
      refused([](ModelConfig& c) {
        c.fp8_format = "hybrid";
        c.first_last_layers_bf16 = true;
        c.num_layers_at_start_in_bf16 = c.num_layers - 1;
      }),
      "first_last_layers_bf16 = true: num_layers_at_start_in_bf16 + num_layers_at_end_in_bf16 = 4 leaves no layer "
      "of num_layers = 4 in 8 bits; make them fewer, or set fp8_format = \"none\"");
  EXPECT_EQ(
      refused([](ModelConfig& c) {
        c.fp8_format = "e4m3";
        c.dtype = "float16";
      }),
      "fp8_format = e4m3 with dtype = float16: the results of 8-bit products are bfloat16 or float32; set dtype = "
      "\"bfloat16\"");
  EXPECT_NE(refused([](ModelConfig& c) {
              c.fp8_format = "e4m3";
              c.moe.moe_expert_backend = "block_sparse";
            }).find("set moe_expert_backend = \"grouped\""),
            std::string::npos);
  EXPECT_EQ(refused([](ModelConfig& c) { c.add_bias_linear = true; }),
            "add_bias_linear = true: experts have no biases (num_experts = 8); set add_bias_linear = false "
            "(Megatron-LM: --disable-bias-linear), or moe_expert_add_bias = true");
  EXPECT_EQ(refused([](ModelConfig& c) { c.mlp.squared_relu = true; }),
            "squared_relu = true and swiglu = true are two activations; set swiglu = false");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.mlp.swiglu = false;
              c.mlp.glu_linear_offset = 1;
            }),
            "glu_linear_offset = 1 is a form of SwiGLU: set swiglu = true, or glu_linear_offset = 0");
  EXPECT_EQ(refused([](ModelConfig& c) { c.moe.moe_shared_expert_gate = true; }),
            "moe_shared_expert_gate = true needs a shared expert to gate: set moe_shared_expert_intermediate_size");
  EXPECT_EQ(refused([](ModelConfig& c) { c.moe.moe_parallel_mlp = true; }),
            "moe_parallel_mlp = true with norm_placement = pre: the experts and the MLP beside them have norms before "
            "and after them; set norm_placement = \"both\"");
  ModelConfig biased;
  biased.vocab_size = 8;
  biased.add_bias_linear = biased.moe.moe_expert_add_bias = true;
  EXPECT_NO_THROW(biased.validate());
  EXPECT_EQ(refused([](ModelConfig& c) { c.attention.position_embedding_type = "learned_absolute"; }),
            "position_embedding_type = \"learned_absolute\" needs max_position_embeddings");
  EXPECT_NE(refused([](ModelConfig& c) { c.moe.moe_layer_freq = "[1]"; }).find("each of the 4 layers"),
            std::string::npos);
  EXPECT_NE(refused([](ModelConfig& c) {
              c.fp8_format = "e4m3";
              c.moe.num_experts = 8;
              c.moe.moe_replicated_experts = 2;
            }).find("set moe_replicated_experts = 0"),
            std::string::npos);
}

TEST(ModelConfig, ResolvesEachLayer) {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 32;
  for (const LayerSpec& layer : config.layers()) {
    EXPECT_TRUE(layer.moe);
    EXPECT_EQ(layer.mlp.ffn_hidden_size, 512);
    EXPECT_EQ(window_of(layer.mixer), 0);
    EXPECT_EQ(attention_of(layer.mixer)->qk_head_dim, 8);
    EXPECT_EQ(attention_of(layer.mixer)->v_head_dim, 8);
    EXPECT_EQ(attention_of(layer.mixer)->rope.dims, 8);
  }
  const Fields fields = config.fields();
  set_field(fields, "moe_layer_freq", "([0]*1+[1]*3)", "test");
  set_field(fields, "moe_ffn_hidden_size", "64", "test");
  set_field(fields, "window_size", "7,0", "test");
  set_field(fields, "window_attn_skip_freq", "2", "test");
  set_field(fields, "v_head_dim", "5", "test");
  config.vocab_size = 8;
  config.validate();
  std::string kinds;
  for (const LayerSpec& layer : config.layers())
    kinds += cat(layer.moe ? "E" : "D", layer.mlp.ffn_hidden_size, "/", window_of(layer.mixer), " ");
  EXPECT_EQ(kinds, "D512/8 E64/0 E64/8 E64/0 ");
  EXPECT_EQ(attention_of(config.layers()[2].mixer)->v_head_dim, 5);
  config.moe.num_experts = 0;
  EXPECT_EQ(config.layers()[3].mlp.ffn_hidden_size, 512) << "without experts their size means nothing";
}

TEST(ModelConfig, ResolvesConnectionsBetweenLayers) {
  ModelConfig config;
  config.vocab_size = 8;
  config.num_layers = 5;
  EXPECT_FALSE(config.joins_layers());
  config.value_embedding_freq = "[2,1]+[0]*2+[2]";
  config.skip_connections = true;
  config.attention.no_attention_freq = "[0,0,1,0,0]";
  config.validate();
  EXPECT_TRUE(config.joins_layers());
  EXPECT_EQ(config.value_embedding_tables(), 2);
  std::string text;
  for (const LayerSpec& layer : config.layers())
    text +=
        cat(mixer_kind(layer.mixer).value_embedding(), mixer_kind(layer.mixer).parameters({}).vectors > 0 ? "s" : "-",
            layer.skip_from ? cat(*layer.skip_from) : "", ' ');
  EXPECT_EQ(text, "2s 1s 0- 0s1 2s0 ");
}

TEST(ModelConfig, ProgramsMaySetOtherMixers) {
  ModelConfig config;
  config.vocab_size = 8;
  config.mixers[2] = NoMixer();
  config.validate();
  EXPECT_EQ(mixer_kind(config.layers()[1].mixer).describe(), "full attention");
  EXPECT_EQ(mixer_kind(config.layers()[2].mixer).describe(), "no attention");
  config.value_embedding_freq = "[1,0,0,1]";
  EXPECT_THAT(message_of<ConfigError>([&] { config.validate(); }), ::testing::HasSubstr("set only one of them"));
  config.value_embedding_freq = "none";
  config.mixers[4] = NoMixer();
  EXPECT_EQ(message_of<ConfigError>([&] { config.validate(); }),
            "mixers: layer 4 is not one of num_layers = 4, which are numbered from 0 on");
}

TEST(ModelConfig, LastLayersBorrowKeysOfLayersLikeThem) {
  ModelConfig config;
  config.vocab_size = 8;
  config.moe.num_experts = 0;
  testing::add_small_gemma4_features(config, "3,0");
  config.num_layers = 6;
  config.attention.window_attn_skip_freq = "[1,1,0,1,1,0]";
  config.num_kv_shared_layers = 3;
  config.validate();
  const std::vector<LayerSpec> layers = config.layers();
  std::vector<std::string> sharing;
  for (const LayerSpec& layer : layers) {
    const auto& spec = std::get<MultiHeadSpec>(layer.mixer);
    sharing.push_back(spec.sharing ? cat(spec.borrows() ? "borrows " : "lends ", spec.sharing->of) : "none");
    EXPECT_EQ(layer.mlp.ffn_hidden_size, config.mlp.ffn_hidden_size * (spec.borrows() ? 2 : 1));
  }
  EXPECT_THAT(sharing, ::testing::ElementsAre("none", "lends 1", "lends 2", "borrows 1", "borrows 1", "borrows 2"));
  EXPECT_EQ(mixer_kind(layers[5].mixer).describe(), "full attention, keys and values of layer 2");
}

TEST(ModelConfig, ErrorsExplainKeysThatCannotBeBorrowed) {
  const auto refused = [](auto&& change) {
    ModelConfig config;
    config.vocab_size = 8;
    config.moe.num_experts = 0;
    testing::add_small_gemma4_features(config, "3,0");
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_EQ(refused([](ModelConfig& c) { c.num_kv_shared_layers = 3; }),
            "num_kv_shared_layers = 3: layer 1, with full attention, has none like it among the first 1 layers, to "
            "whose keys and values it could attend; set num_kv_shared_layers lower");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.attention.window_size = "none";
              c.attention.window_attn_skip_freq = "none";
              c.num_kv_shared_layers = 4;
            }),
            "num_kv_shared_layers = 4: layer 0, with full attention, has none like it among the first 0 layers, to "
            "whose keys and values it could attend; set num_kv_shared_layers lower");
  EXPECT_THAT(refused([](ModelConfig& c) { c.mtp_num_layers = 1; }), ::testing::HasSubstr("set mtp_num_layers = 0"));
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.hidden_size_per_layer_input = 0;
              c.mtp_num_layers = 1;
            }),
            "num_kv_shared_layers = 2 with mtp_num_layers = 1: modules of multi-token prediction are like the last "
            "layer, which has no keys of its own; set mtp_num_layers = 0");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.attention.window_size = c.attention.window_attn_skip_freq = "none";
              c.attention.attention_k_eq_v = false;
              c.value_embedding_freq = "[1,0,0,0]";
            }),
            "num_kv_shared_layers = 2 with value_embedding_freq = [1,0,0,0]: a layer without values of its own has "
            "none to which a value embedding could be added; set one of them");
  EXPECT_EQ(refused([](ModelConfig& c) { c.mlp.swiglu = false; }),
            "hidden_size_per_layer_input = 6 with an MLP without a gate: a layer multiplies its embedding by a gate "
            "with the activation of MLPs; set swiglu, geglu or squared_reglu");
  EXPECT_EQ(refused([](ModelConfig& c) { testing::add_residual_streams(c); }),
            "hidden_size_per_layer_input = 6 with num_residual_streams = 3: what is made of a layer's embedding is "
            "added to a single stream; set num_residual_streams = 1");
}

TEST(ModelConfig, ErrorsExplainImpossibleConnections) {
  const auto refused = [](auto&& change) {
    ModelConfig config;
    config.vocab_size = 8;
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  for (const char* bad : {"2", "[0]*4", "[1,0]", "[1,-1,0,0]", "[9,0,0,0]"})
    EXPECT_EQ(refused([&](ModelConfig& c) { c.value_embedding_freq = bad; }),
              cat("value_embedding_freq = ", bad,
                  ": must be none, or a list of the 4 layers' tables, from 1 on, with 0 for none, as in [1]+[0]*3"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.value_embedding_freq = "[1]*4";
                c.attention.window_size = "3,0";
                c.attention.window_attn_skip_freq = "2";
                c.attention.window_kv_channels = 4;
              }),
              ::testing::HasSubstr("window_kv_channels or window_num_query_groups make values of layers with a window "
                                   "another; leave one of these keys out"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                c.value_embedding_freq = "[1]*4";
                c.attention.attention_k_eq_v = true;
              }),
              ::testing::HasSubstr("needs a projection of values, which attention_k_eq_v = true does not have"));
  EXPECT_EQ(refused([](ModelConfig& c) { c.value_embedding_freq = "[1,3,0,1]"; }),
            "value_embedding_freq = [1,3,0,1]: no layer reads table 2; number tables from 1 on without a gap");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.value_embedding_freq = "[1,0,0,1]";
              c.attention.no_attention_freq = "[1,0,0,0]";
            }),
            "value_embedding_freq = [1,0,0,1] gives layer 0 a value embedding, and no_attention_freq takes its "
            "attention; put a 0 there");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.value_embedding_freq = "[1,0,0,1]";
              testing::add_linear_attention(c);
            }),
            "value_embedding_freq = [1,0,0,1] gives layers value embeddings, which those with "
            "experimental_attention_variant = gated_delta_net do not read; set only one of them");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.attention.no_attention_freq = "[1,0,0,0]";
              testing::add_linear_attention(c);
            }),
            "no_attention_freq = [1,0,0,0] and linear_attention_freq = 2 choose the same layers' mixers; set one to "
            "none");
  const auto refused_hybrid = [&](const auto& change) {
    return refused([&](ModelConfig& c) {
      c.moe.num_experts = 4;
      testing::add_hybrid_layers(c, "ME");
      change(c);
    });
  };
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) { c.attention.no_attention_freq = "2"; }),
            "hybrid_override_pattern = ME makes each layer one part, and no_attention_freq = 2 changes what it is; set "
            "no_attention_freq = none");
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) { c.mtp_num_layers = 1; }),
            "hybrid_override_pattern = ME makes each layer one part, and mtp_num_layers = 1 changes what it is; set "
            "mtp_num_layers = 0");
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) { c.moe.num_experts = 0; }),
            "hybrid_override_pattern = ME has layers of experts (E); set num_experts");
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) { c.mamba.hybrid_override_pattern = "M-"; }),
            "hybrid_override_pattern = M- has no layer of experts (E), and num_experts = 4; set num_experts = 0");
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) { c.mamba.hybrid_override_pattern = "EE"; }),
            "hybrid_override_pattern = EE has no layer that reads other tokens than its own, so that the model could "
            "only learn which token follows which; make at least one layer M (Mamba-2) or * (attention)");
  EXPECT_EQ(refused_hybrid([](ModelConfig& c) {
              c.linear_attention.experimental_attention_variant = "mamba2";
              c.linear_attention.linear_attention_freq = "[1,0]";
            }),
            "hybrid_override_pattern = ME makes each layer one part, and linear_attention_freq = [1,0] changes what it "
            "is; set linear_attention_freq = none");
  EXPECT_EQ(refused([](ModelConfig& c) {
              testing::add_granite_layers(c);
              c.mamba.mamba_num_groups = 3;
            }),
            "mamba_num_groups = 3 does not divide the 8 heads of Mamba-2; set mamba_num_groups = 1, or a "
            "mamba_num_heads that it divides");
  const auto sparse = [](ModelConfig& c) {
    testing::add_latent_attention(c, {12, 16, 6, 4, 6});
    testing::add_sparse_attention(c);
  };
  EXPECT_EQ(
      refused([&](ModelConfig& c) {
        sparse(c);
        c.mtp_num_layers = 1;
      }),
      "dsa_indexer_freq = [1,0]*2 gives the last layer no indexer, and the 1 modules of multi-token prediction are "
      "like it: give it one, or set mtp_num_layers = 0");
  EXPECT_EQ(refused([&](ModelConfig& c) {
              sparse(c);
              c.sparse_attention.dsa_indexer_use_sparse_loss = false;
              c.sparse_attention.dsa_dense_warmup = true;
              c.lora_rank = 4;
            }),
            "dsa_dense_warmup = true trains indexers alone, and lora_rank = 4 adapters alone; set dsa_dense_warmup = "
            "false, or lora_rank = 0");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.num_layers = 1;
              c.skip_connections = true;
            }),
            "skip_connections = true joins two halves of a model; num_layers = 1 has none");
  EXPECT_EQ(refused([](ModelConfig& c) { c.init_method = "fan_in"; }),
            "init_method = fan_in draws embeddings with a standard deviation of 1, too large for an output layer: set "
            "untie_embeddings_and_output_weights = true, or init_method = normal");
  EXPECT_EQ(refused([](ModelConfig& c) { c.mlp.silu = true; }),
            "silu = true and swiglu = true are two activations; of these keys set one (SwiGLU is swiglu = true alone)");
  EXPECT_EQ(refused([](ModelConfig& c) {
              c.norm.normalization = "LayerNorm";
              c.norm.norm_bias = true;
              c.norm.norm_weight = false;
            }),
            "norm_weight = false and norm_bias = true: a norm without a weight has no bias; set norm_bias = false");
}

TEST(ModelConfig, DenseModelsMayHaveBiases) {
  ModelConfig config;
  config.vocab_size = 8;
  config.moe.num_experts = 0;
  config.add_bias_linear = true;
  config.validate();
  EXPECT_EQ(config.linear_bias(), Bias::zeros);
  EXPECT_EQ(config.mlp_bias(), Bias::zeros);
  config.add_bias_linear = false;
  config.add_mlp_bias = true;
  EXPECT_EQ(config.linear_bias(), Bias::none);
  EXPECT_EQ(config.mlp_bias(), Bias::zeros);
}

TEST(ModelConfig, FieldsHaveBounds) {
  ModelConfig config;
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"num_layers", "0"},
                                                        {"num_layers", "100001"},
                                                        {"hidden_size", "0"},
                                                        {"ffn_hidden_size", "0"},
                                                        {"moe_ffn_hidden_size", "-1"},
                                                        {"vocab_size", "-1"},
                                                        {"make_vocab_size_divisible_by", "0"},
                                                        {"hidden_dropout", "-0.1"},
                                                        {"attention_dropout", "-0.1"},
                                                        {"max_position_embeddings", "-1"},
                                                        {"position_embedding_type", "learned"},
                                                        {"init_method_std", "0"},
                                                        {"dtype", "int8"},
                                                        {"recompute_granularity", "some"}})
    EXPECT_THROW(set_field(config.fields(), key, text, "test"), ConfigError) << key << " = " << text;
}

TEST(ModelConfig, ParsesNamesOfTypes) {
  ModelConfig config;
  for (const auto& [name, dtype] :
       {std::pair{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float64", DType::f64}}) {
    config.dtype = name;
    EXPECT_EQ(config.compute_dtype(), dtype);
  }
  for (const auto& [name, recompute] :
       {std::pair{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}}) {
    config.recompute_granularity = name;
    EXPECT_EQ(config.recompute(), recompute);
  }
}

TEST(LoraOf, RefusesADropoutOfOne) {
  ModelConfig config;
  config.lora_rank = 2;
  config.lora_dropout = 1;
  EXPECT_EQ(message_of<ConfigError>([&] { lora_of(config); }),
            "lora_dropout = 1 drops everything; use a probability below 1, such as 0.05");
}

RecomputeModules recomputed(const std::string& granularity, const std::string& modules) {
  ModelConfig config;
  config.recompute_granularity = granularity;
  config.recompute_modules = modules;
  return read_recompute_modules(config);
}

TEST(RecomputeModules, ListsApplyOnlyToSelective) {
  const RecomputeModules usual = recomputed("selective", "");
  EXPECT_TRUE(usual.layernorm && usual.mlp_act && usual.moe_act);
  EXPECT_FALSE(usual.mlp || usual.moe);
  const RecomputeModules listed = recomputed("selective", "moe, layernorm,core_attn,shared_experts");
  EXPECT_TRUE(listed.moe && listed.layernorm && listed.shared_experts);
  EXPECT_FALSE(listed.mlp_act || listed.moe_act || listed.mlp);
  for (const char* granularity : {"none", "full"}) {
    const RecomputeModules none = recomputed(granularity, "moe,mlp");
    EXPECT_FALSE(none.layernorm || none.mlp_act || none.moe_act || none.mlp || none.moe);
  }
  const RecomputeModules only_attention = recomputed("selective", "core_attn");
  EXPECT_FALSE(only_attention.layernorm || only_attention.moe_act);
}

TEST(RecomputeModules, ErrorsNameUnknownModules) {
  EXPECT_EQ(message_of<ConfigError>([] { recomputed("none", "moe,router"); }),
            "recompute_modules: \"router\" cannot be recomputed by itself; use some of layernorm, mlp_act, moe_act, "
            "shared_experts, mlp, moe, mla_up_proj and core_attn, or recompute_granularity = full");
}

TEST(RecomputeModules, OnlyLatentAttentionHasUpProjections) {
  EXPECT_NE(message_of<ConfigError>([] {
              recomputed("selective", "mla_up_proj");
            }).find("mla_up_proj recomputes queries, keys and values that are made from latents"),
            std::string::npos);
  ModelConfig config;
  config.attention.multi_latent_attention = true;
  config.recompute_granularity = "selective";
  config.recompute_modules = "mla_up_proj,layernorm";
  EXPECT_TRUE(read_recompute_modules(config).mla_up_proj);
  config.recompute_granularity = "full";
  EXPECT_FALSE(read_recompute_modules(config).mla_up_proj);
}

// Indexers without a loss are not trained, and in their warm-up nothing else is.
TEST(ModelConfig, StagesOfSparseAttentionFreeze) {
  ModelConfig config;
  config.vocab_size = 64;
  testing::add_latent_attention(config, {12, 16, 6, 4, 6});
  testing::add_sparse_attention(config);
  ParameterSpec indexer, other;
  indexer.name = "layers.0.attention.indexer.wk.weight";
  other.name = "layers.0.attention.o_proj.weight";
  const auto frozen = [&] { return std::pair(Freeze(config).takes(indexer), Freeze(config).takes(other)); };
  EXPECT_EQ(frozen(), std::pair(false, false));
  config.sparse_attention.dsa_indexer_loss_coeff = 0;
  EXPECT_EQ(frozen(), std::pair(true, false));
  config.sparse_attention.dsa_indexer_loss_coeff = 1;
  config.sparse_attention.dsa_dense_warmup = true;
  EXPECT_EQ(frozen(), std::pair(false, true));
}

}  // namespace
}  // namespace witan
