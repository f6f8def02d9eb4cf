// Tiny models, random micro-batches, and one forward and backward pass of them, on any device.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/model_variants.h"
#include "support/module.h"
#include "witan/model/transformer.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routers/router.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan::testing {

inline ModelConfig tiny_config(int64_t experts) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 16;
  config.vocab_size = 23;
  config.init_method_std = 0.3;  // large enough to keep every gradient far from zero
  config.dtype = "float64";
  config.mlp.ffn_hidden_size = 12;
  config.moe.num_experts = experts;
  config.moe.moe_aux_loss_coeff = "0.1";
  config.moe.moe_z_loss_coeff = 0.01;
  return config;
}

// LayerNorm with bias, GELU, interleaved rotation of half of each head, an untied head.
inline ModelConfig other_config(int64_t experts) {
  ModelConfig config = tiny_config(experts);
  config.norm.normalization = "LayerNorm";
  config.norm.norm_bias = true;
  config.mlp.swiglu = false;
  config.attention.rotary_interleaved = true;
  config.attention.rotary_percent = 0.5;
  config.attention.num_query_groups = 1;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

// Everything that Megatron-LM enables by default: learned positions, biases, dropout, LayerNorm with bias, GELU.
inline ModelConfig gpt_config() {
  ModelConfig config = tiny_config(0);
  config.norm.normalization = "LayerNorm";
  config.norm.norm_bias = true;
  config.mlp.swiglu = false;
  config.add_bias_linear = true;
  config.attention.num_query_groups = config.attention.num_attention_heads;
  config.attention.position_embedding_type = "learned_absolute";
  config.attention.max_position_embeddings = 41;
  config.hidden_dropout = 0.2;
  config.attention.attention_dropout = 0.3;
  return config;
}

// Experts, with dropout and learned positions.
inline ModelConfig dropping_config(int64_t experts) {
  ModelConfig config = tiny_config(experts);
  config.hidden_dropout = 0.3;
  config.attention.attention_dropout = 0.2;
  config.attention.position_embedding_type = "learned_absolute";
  config.attention.max_position_embeddings = 50;
  return config;
}

// Layers that all differ: dense, then MoE with experts of their own width; windows of 3 tokens except in the second
// layer, which has no rotary positions; values wider than queries and keys.
inline ModelConfig mixed_config(int64_t experts = 4) {
  ModelConfig config = tiny_config(experts);
  config.num_layers = 3;
  config.attention.kv_channels = 6;
  config.attention.v_head_dim = 10;
  config.attention.window_size = "2,0";
  config.attention.window_attn_skip_freq = "2";
  config.attention.no_rope_freq = "[0,1,0]";
  config.moe.moe_layer_freq = "([0]*1+[1]*2)";
  config.moe.moe_ffn_hidden_size = 8;
  return config;
}

// Attention as in OLMoE: norms over the full width, and clipping; norms after attention and MLP, as in OLMo 2.
inline ModelConfig full_width_config(int64_t experts = 4) {
  ModelConfig config = tiny_config(experts);
  config.attention.qk_layernorm = config.attention.qk_layernorm_full_width = true;
  config.attention.clip_qkv = 1.5;
  config.attention.add_attention_bias = true;
  config.norm_placement = "post";
  return config;
}

// Norms of heads, biases of their projections, and sinks, in layers that differ; norms before and after both halves.
inline ModelConfig sinks_config(int64_t experts = 4) {
  ModelConfig config = mixed_config(experts);
  config.norm_placement = "both";
  config.attention.qk_layernorm = config.attention.add_qkv_bias = true;
  config.attention.softmax_type = "learnable";
  return config;
}

// All features of modded-nanogpt, and bounded logits.
inline ModelConfig nanogpt_config(int64_t experts) {
  ModelConfig config = tiny_config(experts);
  add_nanogpt_variants(config);
  config.init_method_std = 0.8;
  config.attention.kv_channels = 8;
  config.attention.num_attention_heads = config.attention.num_query_groups = 2;
  config.attention.rotary_base = 16;
  config.attention.softmax_scale = 0.3;
  config.logit_soft_cap = 1.5;
  return config;
}

struct MicroBatch {
  ModelInput input;
  Tensor targets, weights;  // [T] int32, [T] accumulator dtype
};

inline void fill_with_tokens(const Tensor& to, int64_t vocabulary, const std::string& name) {
  const Philox rng(3, Philox::stream_of(name));
  for (int64_t i = 0; i < to.elements(); ++i)
    to.data<int32_t>()[i] =
        static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocabulary), static_cast<uint64_t>(i)));
}

// The randomness of iteration `iteration`.
inline Randomness randomness_of(Stream& stream, int64_t iteration, int64_t micro_batch = 2) {
  const Tensor step = stream.zeros({kernels::kStepValues}, DType::f64);
  if (!stream.is_meta()) step.data<double>()[kernels::step_value::iteration] = static_cast<double>(iteration);
  return {11, step, micro_batch};
}

// Each row holds two documents, the second `second` tokens long, or one document without sequence ids if that is 0.
inline MicroBatch micro_batch(Stream& stream, const ModelConfig& config, int64_t B, int64_t S, int64_t second = 0) {
  const DType wide = accumulator(config.compute_dtype());
  MicroBatch batch{{stream.empty({B, S}, DType::i32), {stream.empty({B, S}, DType::i32), {}}, randomness_of(stream, 7)},
                   stream.empty({B * S}, DType::i32),
                   stream.empty({B * S}, wide)};
  if (second > 0) batch.input.where.sequence_ids = stream.empty({B, S}, DType::i32);
  if (stream.is_meta()) return batch;
  fill_with_tokens(batch.input.tokens, config.vocab_size, "tokens");
  fill_with_tokens(batch.targets, config.vocab_size, "targets");
  dispatch_floating(wide, [&]<class T>() { std::ranges::fill(batch.weights.span<T>(), T(1.0 / double(B * S))); });
  for (int64_t i = 0; i < B * S; ++i) {
    batch.input.where.positions.data<int32_t>()[i] = static_cast<int32_t>(i % S);
    if (second > 0) batch.input.where.sequence_ids.data<int32_t>()[i] = i % S < S - second ? 0 : 1;
  }
  return batch;
}

// Cross entropy and the auxiliary losses, weighted as in training.
inline Var loss_of(Tape& tape, Transformer& model, const MicroBatch& batch) {
  const ModelOutput out = model.forward(tape, batch.input);
  const MoeConfig& moe = model.config().moe;
  std::vector<std::pair<Var, double>> terms = {{model.loss(tape, out.logits, batch.targets, batch.weights).loss, 1}};
  for (const RouterRecord& router : out.routers)
    terms.emplace_back(router.loss(kBalanceLoss), moe.balance_losses().front().coefficient);
  for (const RouterRecord& router : out.routers) terms.emplace_back(router.loss(kZLoss), moe.moe_z_loss_coeff);
  return ops::weighted_sum(tape, terms);
}

// Logits [T, V] of a forward pass only.
inline std::vector<double> logits_of(Stream& stream, Transformer& model, const ModelInput& input) {
  Tape off(stream, Tape::Mode::off);
  return values(model.forward(off, input).logits.value());
}

// The model of public Megatron-LM runs: 24 layers of width 512, 4 heads of 128, one group, ffn 1792, vocabulary 128256;
// with experts: 64, top-1.
inline ModelConfig megatron_reference(int64_t experts) {
  ModelConfig config;
  config.num_layers = 24;
  config.hidden_size = 512;
  config.vocab_size = 128256;
  config.untie_embeddings_and_output_weights = true;
  config.attention.num_query_groups = 1;
  config.attention.rotary_base = 100000;
  config.mlp.ffn_hidden_size = 1792;
  config.moe.num_experts = experts;
  config.moe.moe_router_topk = 1;
  config.moe.moe_router_pre_softmax = true;
  return config;
}

}  // namespace witan::testing
