// Random configurations of small models with their optimizer and batch, drawn key by key from a seed.
#pragma once

#include <initializer_list>
#include <string>

#include "train/step/layouts/laid_out.h"
#include "witan/base/numbers/rng.h"

namespace witan::testing {

class RandomModel {
 public:
  explicit RandomModel(uint64_t seed) : rng_(2026, seed) {
    config_.model.vocab_size = 64;
    set("num_layers", "2");
    set("global_batch_size", "4");
    set("micro_batch_size", pick({"1", "2"}));
    if (chance(0.12)) draw_single_parts();
    draw_mixer();
    draw_blocks();
    const std::string& parts = config_.model.mamba.hybrid_override_pattern;
    if (parts != "none" ? parts.find('E') != std::string::npos : chance(0.75))
      draw_experts();
    else
      draw_dense();
    draw_training();
    config_ = laid_out(config_, {});
    config_.parallel.deterministic = chance(0.2);
  }

  const RunConfig& config() const { return config_; }
  const std::string& keys() const { return keys_; }  // "key=value key=value", in the order in which they were drawn
  // Roots and eigenvectors of nearly singular factors amplify rounding.
  bool preconditions() const {
    return config_.optimizer.optimizer == "shampoo" || config_.optimizer.optimizer == "soap";
  }
  LaidOut layout() {
    const std::string mesh = pick({"replicate=2",
                                   "shard=2",
                                   "shard=4",
                                   "replicate=2,shard=2",
                                   "context=2",
                                   "context=4",
                                   "shard=2,context=2",
                                   "tensor=2,expert_tensor=1",
                                   "tensor=2,expert_tensor=2",
                                   "tensor=4,expert_tensor=1",
                                   "pipeline=2",
                                   "shard=2,pipeline=2",
                                   "context=2,pipeline=2",
                                   "tensor=2,pipeline=2,expert_tensor=1",
                                   "context=2,tensor=2,expert_tensor=1",
                                   "context=4,tensor=2,expert_tensor=1",
                                   "shard=2,context=2,pipeline=2",
                                   "shard=2,tensor=2,expert=2,expert_tensor=1",
                                   "replicate=2,expert=2",
                                   "shard=4,expert=2",
                                   "replicate=4,expert=2,expert_tensor=2",
                                   "context=2,expert=2",
                                   "tensor=2,expert=2,expert_tensor=1"});
    LaidOut layout{mesh};
    if (mesh.find("shard") != std::string::npos) layout.strategy = pick({"auto", "optim_grads", kFsdp});
    if (mesh.find("context") != std::string::npos) layout.comm = pick({"auto", "p2p"});
    layout.loss_parallel = chance(0.7);
    if (layout.strategy == kFsdp) layout.reshard_after_forward = chance(0.6);
    return layout;
  }

 private:
  bool chance(double share) { return rng_.uniform(index_++) < share; }
  std::string pick(std::initializer_list<const char*> values) {
    return values.begin()[rng_.below(values.size(), index_++)];
  }
  void set(const std::string& key, const std::string& value) {
    set_field(config_.fields(), key, value, "a random model");
    keys_ += (keys_.empty() ? "" : " ") + key + "=" + value;
  }
  // Sets the key to one of the values in this share of all models.
  void maybe(double share, const char* key, std::initializer_list<const char*> values) {
    if (chance(share)) set(key, pick(values));
  }

  void draw_mixer() {
    if (chance(0.25)) {
      set("multi_latent_attention", "true");
      set("q_lora_rank", pick({"0", "12"}));
      set("kv_lora_rank", "10");
      set("qk_head_dim", "6");
      set("qk_pos_emb_head_dim", "4");
      set("v_head_dim", pick({"6", "8"}));
      maybe(0.3, "qk_layernorm", {"true"});
      if (config_.model.attention.q_lora_rank > 0 && chance(0.5)) return draw_sparse_attention();
    } else {
      set("num_query_groups", pick({"4", "8"}));
      set("kv_channels", pick({"4", "6", "8"}));
      maybe(0.2, "v_head_dim", {"6", "10"});
      if (chance(0.4)) {
        set("qk_layernorm", "true");
        maybe(0.4, pick({"qk_layernorm_full_width", "qk_layernorm_after_rope"}).c_str(), {"true"});
      } else {
        maybe(0.15, "qk_l2_norm", {"true"});
      }
      maybe(0.25, "attention_output_gate", {"true"});
      maybe(0.2, "add_qkv_bias", {"true"});
      maybe(0.1, "add_attention_bias", {"true"});
      maybe(0.15, "clip_qkv", {"1.2"});
      if (config_.model.attention.kv_channels != 6) maybe(0.2, "rotary_percent", {"0.5"});
      maybe(0.2, "softmax_type", {"learnable"});
      maybe(0.15, "v_l2_norm", {"true"});
      if (config_.model.attention.v_head_dim == 0) maybe(0.2, "attention_k_eq_v", {"true"});
    }
    if (chance(0.35)) {
      set("window_size", pick({"5,0", "3,0"}));
      maybe(0.7, "window_attn_skip_freq", {"2"});
      maybe(0.3, "window_rotary_base", {"100"});
      if (!config_.model.attention.multi_latent_attention) {
        maybe(0.3, "window_kv_channels", {"4", "8"});
        maybe(0.3, "window_num_query_groups", {"4", "8"});
      }
    }
    maybe(0.2, "softmax_scale", {"0.3"});
    if (chance(0.15))
      set("position_embedding_type", pick({"learned_absolute", "none"}));
    else
      draw_rotation();
    if (config_.model.mamba.any()) return;
    if (chance(0.15)) {
      set("experimental_attention_variant", pick({"short_convolution", "mamba2"}));
      set("linear_attention_freq", pick({"[1,0]", "[0,1]"}));
      if (config_.model.has_mamba())
        draw_mamba_sizes();
      else
        maybe(0.5, "linear_conv_bias", {"true"});
    } else if (chance(0.25)) {
      set("experimental_attention_variant", "gated_delta_net");
      set("linear_attention_freq", pick({"[1,0]", "[0,1]", "[1,1]"}));
      set("linear_conv_kernel_dim", pick({"2", "4"}));
      maybe(0.2, "linear_allow_neg_eigval", {"true"});
      set("linear_key_head_dim", pick({"4", "6"}));
      set("linear_value_head_dim", pick({"4", "8"}));
      set("linear_num_key_heads", pick({"2", "4"}));
      set("linear_num_value_heads", pick({"4", "8"}));
    }
  }

  void draw_rotation() {
    if (!config_.model.attention.multi_latent_attention) {
      maybe(0.15, "rotary_proportional", {"true"});
      if (config_.model.attention.rotary_proportional) set("rotary_percent", "0.5");
      maybe(0.1, "window_rotary_percent", {"1"});
    }
    if (!config_.model.mamba.any()) maybe(0.15, "no_rope_freq", {"[0,1]"});
    maybe(0.2, "rotary_interleaved", {"true"});
    if (chance(0.2)) {
      set("rope_scaling_type", pick({"yarn", "linear", "llama3"}));
      set("rotary_scaling_factor", "4");
      set("original_max_position_embeddings", "8");
    }
  }

  void draw_sparse_attention() {
    set("experimental_attention_variant", "dsa");
    set("dsa_indexer_n_heads", "6");
    set("dsa_indexer_head_dim", "8");
    set("dsa_indexer_topk", pick({"3", "5", "99"}));
    maybe(0.4, "dsa_indexer_freq", {"[1,0]"});
    maybe(0.7, "dsa_indexer_loss_coeff", {"0.3"});
    if (config_.model.sparse_attention.dsa_indexer_loss_coeff > 0)
      maybe(0.5, pick({"dsa_indexer_use_sparse_loss", "dsa_dense_warmup"}).c_str(), {"true"});
  }

  // Layers of one part each, as Nemotron-H has them.
  void draw_single_parts() {
    const std::string parts = pick({"ME*-", "M*ME", "M-*-", "M*M-", "E*EM"});
    set("num_layers", std::to_string(parts.size()));
    set("hybrid_override_pattern", parts);
    draw_mamba_sizes();
  }

  void draw_mamba_sizes() {
    set("mamba_num_heads", "8");
    set("mamba_num_groups", pick({"2", "4", "8"}));
    set("mamba_head_dim", pick({"4", "6"}));
    set("mamba_state_dim", pick({"3", "5"}));
    maybe(0.3, "mamba_conv_kernel_dim", {"2"});
    maybe(0.3, "mamba_conv_bias", {"false"});
    maybe(0.3, "mamba_dt_min", {"0.01"});
  }

  void draw_blocks() {
    if (chance(0.25)) {
      set("normalization", "LayerNorm");
      maybe(0.5, "norm_bias", {"true"});
    }
    maybe(0.2, "apply_layernorm_1p", {"true"});
    maybe(0.35, "norm_placement", {"post", "both"});
    maybe(0.15, "layer_scalar", {"true"});
    if (chance(0.4)) {
      set("swiglu", "false");
      maybe(0.8, pick({"geglu", "squared_relu", "squared_reglu", "silu", "gelu_tanh"}).c_str(), {"true"});
    } else {
      maybe(0.2, "activation_func_clamp_value", {"0.5"});
    }
    maybe(0.15, "add_mlp_bias", {"true"});
    maybe(0.4, "untie_embeddings_and_output_weights", {"true"});
    maybe(0.2, "make_vocab_size_divisible_by", {"24"});
    maybe(0.15, "embedding_multiplier", {"3"});
    maybe(0.15, "residual_multiplier", {"0.5"});
    maybe(0.15, "logit_scale", {"0.5"});
    maybe(0.15, "logit_soft_cap", {"2"});
    maybe(0.1, "embedding_norm", {"true"});
    if (!config_.model.mamba.any()) {
      maybe(0.1, "value_embedding_freq", {"[1,0]", "[1,2]"});
      maybe(0.1, "embedding_residual", {"true"});
      maybe(0.15, "mtp_num_layers", {"1"});
    }
    maybe(0.15, "num_kv_shared_layers", {"1"});
    maybe(0.1, "use_double_wide_mlp", {"true"});
    if (config_.model.mlp.gated()) maybe(0.15, "hidden_size_per_layer_input", {"3", "8"});
    if (!config_.model.embedding_residual && config_.model.mtp_num_layers == 0 && chance(0.2)) {
      set("num_residual_streams", pick({"2", "4"}));
      set("mhc_sinkhorn_iterations", pick({"3", "20"}));
      maybe(0.5, "mhc_init_gating_factor", {"1"});
    }
    if (chance(0.3)) {
      set("recompute_granularity", pick({"selective", "full"}));
      if (config_.model.recompute_granularity == "selective")
        maybe(0.5, "recompute_modules", {"layernorm", "moe_act", "mlp", "moe", "shared_experts"});
    }
    if (chance(0.15)) {
      set("lora_rank", "3");
      maybe(0.3, "lora_dropout", {"0.2"});
    } else {
      maybe(0.1, "freeze", {"norms", "embeddings", "*layers.0.*"});
    }
    maybe(0.15, "hidden_dropout", {"0.1"});
    maybe(0.1, "neftune_noise_alpha", {"5"});
    maybe(0.15, "attention_dropout", {"0.2"});
  }

  void draw_experts() {
    set("num_experts", pick({"4", "8", "12"}));
    set("moe_router_topk", pick({"1", "2", "3"}));
    set("moe_router_score_function", pick({"softmax", "softmax", "sigmoid", "sqrtsoftplus"}));
    const bool softmax = config_.model.moe.moe_router_score_function == "softmax";
    if (softmax && (config_.model.moe.moe_router_topk == 1 || chance(0.3))) set("moe_router_pre_softmax", "true");
    if (!softmax || config_.model.moe.moe_router_pre_softmax)
      maybe(0.4, "moe_router_norm_topk_prob", {"true", "false"});
    const bool by_scores = chance(0.7);
    if (!by_scores)
      set("moe_router_selection", pick({"uniform", "skew", "zipf", "hot", "hash", "sinkhorn", "expert_choice"}));
    if (by_scores && config_.model.moe.moe_router_topk > 1) maybe(0.12, "moe_n_hash_layers", {"1"});
    maybe(0.2, "moe_router_topk_scaling_factor", {"2.5"});
    maybe(0.15, "moe_router_add_bias", {"true"});
    maybe(0.15, "moe_router_input_norm", {"true"});
    maybe(0.15, "moe_router_expert_scale", {"true"});
    if (config_.model.norm_placement == "both" && !config_.model.mamba.any()) maybe(0.5, "moe_parallel_mlp", {"true"});
    maybe(0.15, "moe_input_jitter_eps", {"0.2"});
    if (by_scores && config_.model.moe.moe_router_topk > 1 && chance(0.25)) {
      set("moe_router_num_groups", "4");
      set("moe_router_group_topk", "2");
    }
    if (by_scores && !softmax && chance(0.5)) {
      set("moe_router_enable_expert_bias", "true");
      set("moe_router_bias_update_rate", "0.02");
    }
    const MoeConfig& moe = config_.model.moe;
    const bool quantiles =
        by_scores && moe.moe_router_num_groups == 0 && !moe.moe_router_enable_expert_bias && moe.moe_n_hash_layers == 0;
    set("moe_router_load_balancing_type", quantiles && chance(0.2)
                                              ? "quantile_balancing"
                                              : pick({"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}));
    set("moe_aux_loss_coeff", "0.3");
    maybe(0.4, "moe_z_loss_coeff", {"0.01"});
    if (chance(0.25)) {
      set("moe_expert_capacity_factor", pick({"0.7", "1", "1.5"}));
      maybe(0.4, "moe_token_drop_policy", {"position"});
      maybe(0.4, "moe_pad_expert_input_to_capacity", {"true"});
    }
    if (!config_.model.mamba.any()) maybe(0.3, "moe_layer_freq", {"[0,1]", "[1,0]"});
    maybe(0.3, "moe_ffn_hidden_size", {"16", "20"});
    if (chance(0.35)) {
      set("moe_shared_expert_intermediate_size", pick({"12", "24"}));
      maybe(0.4, "moe_shared_expert_gate", {"true"});
      maybe(0.3, "moe_shared_expert_overlap", {"true"});
    }
    maybe(0.15, "moe_expert_add_bias", {"true"});
    maybe(0.15, "moe_latent_size", {"12"});
    maybe(0.2, "moe_token_dispatcher_type", {"allgather"});
    maybe(0.2, "moe_expert_backend", {"block_sparse", "sequential"});
    maybe(0.2, "moe_pool_factor", {"1.5"});
    maybe(0.2, "moe_exchange_factor", {"2"});
    maybe(0.1, "moe_replicated_experts", {"1"});
  }

  void draw_dense() {
    set("num_experts", "0");
    if (!config_.model.attention.multi_latent_attention) maybe(0.3, "add_bias_linear", {"true"});
  }

  void draw_training() {
    set("optimizer", pick({"adam", "adam", "adam", "sgd", "muon", "ademamix", "normuon", "soap", "shampoo"}));
    maybe(0.3, "weight_decay", {"0"});
    set("clip_grad", pick({"0.1", "0", "1"}));
    maybe(0.2, "decay_norms_and_biases", {"true"});
    if (chance(0.5)) {
      set("reset_attention_mask", "true");
      maybe(0.7, "reset_position_ids", {"true"});
    }
    // Embeddings for layers are so narrow that roots of their factors amplify rounding beyond any bound.
    if (preconditions() && config_.model.hidden_size_per_layer_input > 0) set("optimizer", "adam");
    if (preconditions()) set("precondition_frequency", pick({"1", "2"}));
  }

  RunConfig config_ = divisible_config();
  Philox rng_;
  uint64_t index_ = 0;
  std::string keys_;
};

}  // namespace witan::testing
