#include "train/step/layouts/random_model.h"

#include <algorithm>

namespace witan::testing {

RandomModel::RandomModel(uint64_t seed) : seed_(seed), rng_(2026, seed) {
  config_.model.vocab_size = 64;
  draw_sizes();
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

void RandomModel::set(const std::string& key, const std::string& value) {
  set_field(config_.fields(), key, value, "a random model");
  keys_ += (keys_.empty() ? "" : " ") + key + "=" + value;
}

void RandomModel::maybe(double share, const char* key, std::initializer_list<const char*> values) {
  if (chance(share)) set(key, pick(values));
}

// A list with a 1 for at least one layer and, if there are several, a 0 for at least one.
std::string RandomModel::some_layers() {
  const auto layers = static_cast<uint64_t>(config_.model.num_layers);
  if (layers == 1) return "[1]";
  const uint64_t bits = 1 + rng_.below((uint64_t{1} << layers) - 2, index_++);
  std::string list;
  for (uint64_t i = 0; i < layers; ++i) list += cat(i > 0 ? "," : "[", bits >> i & 1);
  return list + "]";
}

std::string RandomModel::numbers_of_layers(std::initializer_list<const char*> values) {
  std::string list;
  for (int64_t i = 0; i < config_.model.num_layers; ++i) list += cat(i > 0 ? "," : "[", pick(values));
  return list + "]";
}

// Most sequences are short. Some are longer than a chunk of a recurrence, and some are divided by few numbers.
void RandomModel::draw_sizes() {
  set("num_layers", pick({"2", "2", "2", "4"}));
  set("seq_length", pick({"16", "16", "16", "16", "16", "24", "13", "72", "136"}));
  set("global_batch_size", "4");
  set("micro_batch_size", pick({"1", "2"}));
}

void RandomModel::draw_mixer() {
  if (!config_.model.mamba.any() && chance(0.07)) return draw_compressed_attention();
  if (chance(0.25)) {
    draw_latent_attention();
    if (config_.model.attention.q_lora_rank > 0 && chance(0.5)) return draw_sparse_attention();
  } else {
    draw_heads();
  }
  if (chance(0.35)) draw_windows();
  maybe(0.2, "softmax_scale", {"0.3"});
  maybe(0.1, "scale_attn_by_inverse_layer_idx", {"true"});
  if (chance(0.15))
    set("position_embedding_type", pick({"learned_absolute", "none"}));
  else
    draw_rotation();
  if (config_.model.mamba.any()) return;
  draw_other_mixers();
  if (!config_.model.linear_attention.any() && chance(0.07)) set("no_attention_freq", some_layers());
}

void RandomModel::draw_latent_attention() {
  set("multi_latent_attention", "true");
  set("q_lora_rank", pick({"0", "12"}));
  set("kv_lora_rank", "10");
  set("qk_head_dim", "6");
  set("qk_pos_emb_head_dim", "4");
  set("v_head_dim", pick({"6", "8"}));
  maybe(0.3, "qk_layernorm", {"true"});
}

void RandomModel::draw_heads() {
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

void RandomModel::draw_windows() {
  set("window_size", pick({"5,0", "3,0", "1,0"}));
  if (chance(0.7)) set("window_attn_skip_freq", chance(0.5) ? "2" : some_layers());
  maybe(0.3, "window_rotary_base", {"100"});
  maybe(0.3, "window_rope_scaling", {"false"});
  if (config_.model.attention.multi_latent_attention) return;
  maybe(0.3, "window_kv_channels", {"4", "8"});
  maybe(0.3, "window_num_query_groups", {"4", "8"});
}

void RandomModel::draw_rotation() {
  if (!config_.model.attention.multi_latent_attention) {
    maybe(0.15, "rotary_proportional", {"true"});
    if (config_.model.attention.rotary_proportional) set("rotary_percent", "0.5");
    maybe(0.1, "window_rotary_percent", {"1"});
    if (config_.model.attention.kv_channels == 8) maybe(0.1, "rotary_half_truncated", {"true"});
  }
  if (!config_.model.mamba.any() && chance(0.15)) set("no_rope_freq", some_layers());
  maybe(0.2, "rotary_interleaved", {"true"});
  if (chance(0.2)) {
    set("rope_scaling_type", pick({"yarn", "yarn_unrounded", "linear", "llama3"}));
    set("rotary_scaling_factor", "4");
    set("original_max_position_embeddings", "8");
    maybe(0.3, "mscale_all_dim", {"0.7"});
  }
}

// Mixers that replace attention in some layers or in all of them.
void RandomModel::draw_other_mixers() {
  if (chance(0.15)) {
    set("experimental_attention_variant", pick({"short_convolution", "mamba2"}));
    set("linear_attention_freq", some_layers());
    if (config_.model.has_mamba()) return draw_mamba_sizes();
    set("linear_conv_kernel_dim", pick({"2", "3", "4"}));
    maybe(0.5, "linear_conv_bias", {"true"});
  } else if (chance(0.3)) {
    set("experimental_attention_variant", pick({"gated_delta_net", "kimi_delta"}));
    set("linear_attention_freq", chance(0.7) ? some_layers() : numbers_of_layers({"1"}));
    draw_delta_sizes();
  }
}

void RandomModel::draw_delta_sizes() {
  set("linear_conv_kernel_dim", pick({"2", "4"}));
  maybe(0.2, "linear_allow_neg_eigval", {"true"});
  maybe(0.2, "linear_norm_epsilon", {"0.01"});
  set("linear_key_head_dim", pick({"4", "6"}));
  set("linear_value_head_dim", pick({"4", "8"}));
  set("linear_num_value_heads", pick({"4", "8"}));
  if (config_.model.linear_attention.kimi_delta())
    set("linear_num_key_heads", std::to_string(config_.model.linear_attention.linear_num_value_heads));
  else
    set("linear_num_key_heads", pick({"2", "4"}));
}

// As in DeepSeek-V4. Documents are shorter and longer than windows and entries.
void RandomModel::draw_compressed_attention() {
  set("experimental_attention_variant", "dsv4_hybrid");
  set("multi_latent_attention", "true");
  set("q_lora_rank", "12");
  set("qk_pos_emb_head_dim", "4");
  set("v_head_dim", pick({"6", "8"}));
  set("csa_compress_ratios", numbers_of_layers({"0", "4", "8", "2"}));
  maybe(0.3, "csa_sparse_ratio", {"2", "8"});
  set("csa_window_size", pick({"1", "3", "6"}));
  set("o_groups", pick({"1", "2", "4"}));
  set("o_lora_rank", "6");
  set("dsa_indexer_n_heads", pick({"2", "3"}));
  set("dsa_indexer_head_dim", pick({"4", "8"}));
  set("dsa_indexer_topk", pick({"1", "2", "99"}));
  maybe(0.2, "softmax_scale", {"0.3"});
  if (!chance(0.3)) return;
  set("rope_scaling_type", "yarn");
  set("rotary_scaling_factor", "4");
  set("original_max_position_embeddings", "8");
}

void RandomModel::draw_sparse_attention() {
  set("experimental_attention_variant", "dsa");
  set("dsa_indexer_n_heads", pick({"3", "6"}));
  set("dsa_indexer_head_dim", "8");
  set("dsa_indexer_topk", pick({"1", "3", "5", "99"}));
  maybe(0.3, "dsa_indexer_rope_interleaved", {"true"});
  if (chance(0.4)) {
    std::string own = some_layers();
    own[1] = '1';
    set("dsa_indexer_freq", own);
  }
  maybe(0.7, "dsa_indexer_loss_coeff", {"0.3"});
  if (config_.model.sparse_attention.dsa_indexer_loss_coeff > 0)
    maybe(0.5, pick({"dsa_indexer_use_sparse_loss", "dsa_dense_warmup"}).c_str(), {"true"});
}

// Layers of one part each, as Nemotron-H has them.
void RandomModel::draw_single_parts() {
  const std::string parts = pick({"ME*-", "M*ME", "M-*-", "M*M-", "E*EM", "M", "*E"});
  set("num_layers", std::to_string(parts.size()));
  set("hybrid_override_pattern", parts);
  draw_mamba_sizes();
}

void RandomModel::draw_mamba_sizes() {
  set("mamba_num_heads", "8");
  set("mamba_num_groups", pick({"1", "2", "4", "8"}));
  set("mamba_head_dim", pick({"4", "6"}));
  set("mamba_state_dim", pick({"3", "5"}));
  maybe(0.3, "mamba_conv_kernel_dim", {"2"});
  maybe(0.3, "mamba_conv_bias", {"false"});
  maybe(0.3, "mamba_dt_min", {"0.01"});
}

void RandomModel::draw_blocks() {
  if (chance(0.25)) {
    set("normalization", "LayerNorm");
    maybe(0.5, "norm_bias", {"true"});
  }
  if (!config_.model.norm.norm_bias) maybe(0.1, "norm_weight", {"false"});
  if (config_.model.norm.norm_weight) maybe(0.2, "apply_layernorm_1p", {"true"});
  maybe(0.35, "norm_placement", {"post", "both", "post_attention"});
  maybe(0.15, "layer_scalar", {"true"});
  draw_activation();
  maybe(0.15, "add_mlp_bias", {"true"});
  maybe(0.4, "untie_embeddings_and_output_weights", {"true"});
  if (config_.model.untie_embeddings_and_output_weights) maybe(0.15, "init_method", {"fan_in"});
  maybe(0.2, "make_vocab_size_divisible_by", {"24"});
  maybe(0.15, "embedding_multiplier", {"3"});
  maybe(0.15, "residual_multiplier", {"0.5"});
  maybe(0.15, "logit_scale", {"0.5"});
  maybe(0.15, "logit_soft_cap", {"2"});
  maybe(0.1, "embedding_norm", {"true"});
  draw_joined_layers();
  if (chance(0.3)) {
    set("recompute_granularity", pick({"selective", "full"}));
    if (config_.model.recompute_granularity == "selective")
      maybe(0.5, "recompute_modules", {"layernorm", "moe_act", "mlp", "moe", "shared_experts"});
  }
  draw_frozen();
  maybe(0.15, "hidden_dropout", {"0.1"});
  maybe(0.1, "neftune_noise_alpha", {"5"});
  if (!config_.model.has_sparse_attention() && !config_.model.has_compressed_attention())
    maybe(0.15, "attention_dropout", {"0.2"});
}

void RandomModel::draw_activation() {
  if (chance(0.4)) {
    set("swiglu", "false");
    maybe(0.8, pick({"geglu", "squared_relu", "squared_reglu", "silu", "gelu_tanh"}).c_str(), {"true"});
    return;
  }
  maybe(0.2, "activation_func_clamp_value", {"0.5"});
  maybe(0.1, "glu_linear_offset", {"1"});
  maybe(0.1, "glu_activation_scale", {"1.7"});
}

// Draws the keys that let layers read more than one residual stream.
void RandomModel::draw_joined_layers() {
  if (!config_.model.mamba.any()) {
    if (chance(0.1)) set("value_embedding_freq", chance(0.5) ? some_layers() : numbers_of_layers({"1"}));
    maybe(0.1, "embedding_residual", {"true"});
    maybe(0.15, "mtp_num_layers", {"1", "2"});
  }
  if (config_.model.mtp_num_layers == 0) maybe(0.1, "skip_connections", {"true"});
  maybe(0.15, "num_kv_shared_layers", {"1", "2"});
  maybe(0.1, "use_double_wide_mlp", {"true"});
  if (config_.model.mlp.gated()) maybe(0.15, "hidden_size_per_layer_input", {"3", "8"});
  if (!config_.model.embedding_residual && config_.model.mtp_num_layers == 0 && chance(0.2)) {
    set("num_residual_streams", pick({"2", "4"}));
    set("mhc_sinkhorn_iterations", pick({"3", "20"}));
    maybe(0.5, "mhc_init_gating_factor", {"1"});
  }
}

void RandomModel::draw_frozen() {
  if (!chance(0.15)) return maybe(0.1, "freeze", {"norms", "embeddings", "*layers.0.*"});
  set("lora_rank", "3");
  maybe(0.3, "lora_dropout", {"0.2"});
  maybe(0.3, "lora_target_modules", {"q_proj,v_proj", "o_proj,down_proj", "all"});
  if (config_.model.lora_dropout == 0) maybe(0.3, "lora_use_dora", {"true"});
}

void RandomModel::draw_experts() {
  set("num_experts", pick({"4", "8", "12"}));
  draw_router();
  draw_balance();
  if (config_.model.norm_placement == "both" && !config_.model.mamba.any()) maybe(0.5, "moe_parallel_mlp", {"true"});
  if (chance(0.25)) {
    set("moe_expert_capacity_factor", pick({"0.7", "1", "1.5"}));
    maybe(0.4, "moe_token_drop_policy", {"position"});
    maybe(0.4, "moe_pad_expert_input_to_capacity", {"true"});
  }
  if (!config_.model.mamba.any() && chance(0.3)) set("moe_layer_freq", some_layers());
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

void RandomModel::draw_router() {
  const MoeConfig& moe = config_.model.moe;
  set("moe_router_topk", pick({"1", "2", "3"}));
  set("moe_router_score_function", pick({"softmax", "softmax", "sigmoid", "sqrtsoftplus"}));
  const bool softmax = moe.moe_router_score_function == "softmax";
  if (softmax && (moe.moe_router_topk == 1 || chance(0.3))) set("moe_router_pre_softmax", "true");
  if (!softmax || moe.moe_router_pre_softmax) maybe(0.4, "moe_router_norm_topk_prob", {"true", "false"});
  const bool by_scores = chance(0.7);
  if (!by_scores)
    set("moe_router_selection", pick({"uniform", "skew", "zipf", "hot", "hash", "sinkhorn", "expert_choice"}));
  if (by_scores && moe.moe_router_topk > 1) maybe(0.12, "moe_n_hash_layers", {"1"});
  maybe(0.2, "moe_router_topk_scaling_factor", {"2.5"});
  maybe(0.15, "moe_router_add_bias", {"true"});
  maybe(0.15, "moe_router_input_norm", {"true"});
  maybe(0.15, "moe_router_expert_scale", {"true"});
  maybe(0.15, "moe_input_jitter_eps", {"0.2"});
  if (by_scores && moe.moe_router_topk > 1 && chance(0.25)) {
    set("moe_router_num_groups", "4");
    set("moe_router_group_topk", "2");
    if (moe.num_experts > 4) maybe(0.3, "moe_router_group_score_topk", {"2"});
  }
  if (by_scores && (!softmax || moe.moe_router_pre_softmax) && chance(0.4)) {
    set("moe_router_enable_expert_bias", "true");
    set("moe_router_bias_update_rate", "0.02");
  }
}

void RandomModel::draw_balance() {
  const MoeConfig& moe = config_.model.moe;
  const bool quantiles = moe.moe_router_selection == "topk" && moe.moe_router_num_groups == 0 &&
                         !moe.moe_router_enable_expert_bias && moe.moe_n_hash_layers == 0;
  std::string type = pick({"aux_loss", "seq_aux_loss", "global_aux_loss", "none", "aux_loss,global_aux_loss"});
  if (quantiles && chance(0.2)) type = "quantile_balancing";
  set("moe_router_load_balancing_type", type);
  set("moe_aux_loss_coeff", type.find(',') == std::string::npos ? "0.3" : "0.3,0.2");
  maybe(0.4, "moe_z_loss_coeff", {"0.01"});
}

void RandomModel::draw_dense() {
  set("num_experts", "0");
  if (!config_.model.attention.multi_latent_attention) maybe(0.3, "add_bias_linear", {"true"});
}

void RandomModel::draw_training() {
  set("optimizer", pick({"adam", "adam", "adam", "sgd", "muon", "ademamix", "normuon", "soap", "shampoo"}));
  maybe(0.3, "weight_decay", {"0"});
  set("clip_grad", pick({"0.1", "0", "1"}));
  maybe(0.2, "decay_norms_and_biases", {"true"});
  if (config_.optimizer.optimizer == "muon" && chance(0.3)) {
    set("qk_clip", "true");
    set("qk_clip_threshold", "0.01");
  }
  if (chance(0.6)) {
    set("reset_attention_mask", "true");
    maybe(0.7, "reset_position_ids", {"true"});
    documents_ = static_cast<Documents>(rng_.below(4, index_++));
    keys_ += cat(" (documents ", static_cast<int>(documents_), ")");
  }
  // Embeddings for layers are so narrow that roots of their factors amplify rounding beyond any bound.
  if (preconditions() && config_.model.hidden_size_per_layer_input > 0) set("optimizer", "adam");
  if (preconditions()) set("precondition_frequency", pick({"1", "2"}));
}

LaidOut RandomModel::layout() {
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
  const bool chunks = mesh.find("pipeline") != std::string::npos && config_.model.num_layers == 4;
  if (chunks && chance(0.4)) layout.chunks = 2;
  layout.loss_parallel = chance(0.7);
  if (layout.strategy == kFsdp) layout.reshard_after_forward = chance(0.6);
  return layout;
}

RunConfig RandomModel::in(const LaidOut& layout) {
  RunConfig config = laid_out(config_, layout);
  const bool overlaps = config.parallel.tensor_model_parallel_size > 1 && chance(0.15);
  if (overlaps) config.parallel.tp_comm_overlap = true, keys_ += " tp_comm_overlap=true";
  if (chance(0.2)) config.parallel.overlap_grad_reduce = false, keys_ += " overlap_grad_reduce=false";
  return config;
}

namespace {

// Lengths are drawn from one stream for each row, so that a row is the same in every layout.
void divide_row(Batch& batch, int64_t row, const Philox& rng, uint64_t longest, int64_t padding) {
  const int64_t length = batch.sequence_length, begin = row * length;
  uint64_t draw = static_cast<uint64_t>(row) << 32;
  const auto real = length - static_cast<int64_t>(rng.below(static_cast<uint64_t>(padding) + 1, draw++));
  int32_t document = 0;
  for (int64_t first = 0; first < real; ++document) {
    const auto size = static_cast<int64_t>(1 + rng.below(longest, draw++));
    for (int64_t s = first; s < std::min(first + size, real); ++s)
      batch.sequence_ids[static_cast<size_t>(begin + s)] = document;
    first += size;
  }
  for (int64_t s = real; s < length; ++s) {
    const auto at = static_cast<size_t>(begin + s);
    batch.sequence_ids[at] = kPadding;
    batch.loss_mask[at] = 0;
    batch.tokens[at] = batch.targets[at] = 0;
  }
}

// Positions restart where the document changes.
void restart_positions(Batch& batch) {
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const bool begins =
        i % static_cast<size_t>(batch.sequence_length) == 0 || batch.sequence_ids[i] != batch.sequence_ids[i - 1];
    batch.positions[i] = begins ? 0 : batch.positions[i - 1] + 1;
  }
}

}  // namespace

MakeBatches RandomModel::batches() const {
  if (!config_.data.reset_attention_mask || documents_ == Documents::of_five_tokens) return own_batches;
  return [seed = seed_, documents = documents_](const RunConfig& config, const Layout& layout, int rank, int64_t step) {
    std::vector<Batch> batches = own_batches(config, layout, rank, step);
    const auto own = static_cast<int64_t>(batches.size());
    int64_t number = step * config.micro_batches() + layout.data_rank(rank) * own;
    for (Batch& batch : batches) {
      const Philox rng(seed, static_cast<uint64_t>(number++));
      const auto length = static_cast<uint64_t>(batch.sequence_length);
      for (int64_t row = 0; row < batch.sequences; ++row)
        divide_row(batch, row, rng, documents == Documents::short_ones ? 2 : length,
                   documents == Documents::padded ? batch.sequence_length / 2 : 0);
      if (config.data.reset_position_ids) restart_positions(batch);
      batch.loss_tokens = std::ranges::count(batch.loss_mask, 1.0F);
    }
    return batches;
  };
}

}  // namespace witan::testing
