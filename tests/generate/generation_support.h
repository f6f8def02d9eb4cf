// Small models of many architectures, requests to them, and the log probabilities that training computes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/model_variants.h"
#include "support/module.h"
#include "witan/generate/generation_batch.h"

namespace witan::testing {

using Tokens = std::vector<int32_t>;

inline ModelConfig base_config(const std::string& dtype, int64_t experts = 0) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 24;
  config.vocab_size = 50;
  config.init_method_std = 0.5;
  config.dtype = dtype;
  config.mlp.ffn_hidden_size = 20;
  config.moe.num_experts = experts;
  return config;
}

inline ModelConfig latent_config(const std::string& dtype) {
  ModelConfig config = base_config(dtype, 4);
  add_latent_attention(config, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
  add_stretched_positions(config);
  return config;
}

inline ModelConfig gpt_oss_config(const std::string& dtype) {
  ModelConfig config = base_config(dtype, 4);
  add_gpt_oss_features(config, "6,0");
  add_stretched_positions(config);
  return config;
}

inline ModelConfig grouped_router_config(const std::string& dtype) {
  ModelConfig config = base_config(dtype, 8);
  add_grouped_router(config, "[0,1]", 12);
  config.moe.moe_router_topk_scaling_factor = 2.5;
  return config;
}

inline ModelConfig learned_config(const std::string& dtype) {
  ModelConfig config = base_config(dtype);
  config.add_bias_linear = true;
  config.norm.normalization = "LayerNorm";
  config.norm.norm_bias = true;
  config.mlp.swiglu = false;
  config.attention.position_embedding_type = "learned_absolute";
  config.attention.max_position_embeddings = 90;
  return config;
}

inline std::vector<std::pair<std::string, ModelConfig>> architectures(const std::string& dtype) {
  std::vector<std::pair<std::string, ModelConfig>> all = {{"dense", base_config(dtype)},
                                                          {"experts", base_config(dtype, 4)},
                                                          {"latent", latent_config(dtype)},
                                                          {"gpt-oss", gpt_oss_config(dtype)},
                                                          {"groups", grouped_router_config(dtype)},
                                                          {"learned positions", learned_config(dtype)}};
  const auto add = [&](const std::string& name, ModelConfig config) -> ModelConfig& {
    return all.emplace_back(name, std::move(config)).second;
  };
  ModelConfig& olmoe = add("full-width norms", base_config(dtype, 4));
  olmoe.attention.qk_layernorm = olmoe.attention.qk_layernorm_full_width = true;
  olmoe.attention.clip_qkv = 1.5;
  olmoe.norm_placement = "post";
  ModelConfig& qwen = add("head norms", base_config(dtype, 4));
  qwen.attention.qk_layernorm = true;
  qwen.norm_placement = "both";
  qwen.attention.kv_channels = 10;
  qwen.attention.num_query_groups = 1;
  ModelConfig& windows = add("windows", base_config(dtype, 4));
  windows.attention.window_size = "4,0";
  windows.attention.v_head_dim = 9;
  windows.attention.num_query_groups = 4;
  ModelConfig& olmo3 = add("windows that rotate apart", base_config(dtype));
  olmo3.attention.qk_layernorm = olmo3.attention.qk_layernorm_full_width = true;
  olmo3.norm_placement = "post";
  olmo3.attention.window_size = "4,0";
  olmo3.attention.window_attn_skip_freq = "2";
  olmo3.attention.rope_scaling_type = "yarn";
  olmo3.attention.rotary_scaling_factor = 4;
  olmo3.attention.original_max_position_embeddings = 16;
  olmo3.attention.window_rope_scaling = false;
  ModelConfig& gemma4 = add("heads of two sizes", base_config(dtype, 4));
  add_gemma4_features(gemma4, "4,0");
  add_small_gemma4_features(add("borrowed keys, embeddings for layers", base_config(dtype, 4)), "4,0");
  ModelConfig& joined = add("joined layers", base_config(dtype));
  joined.embedding_norm = joined.embedding_residual = joined.skip_connections = true;
  joined.logit_soft_cap = 8;
  joined.attention.qk_l2_norm = true;
  ModelConfig& mixed = add("running means beside windows", base_config(dtype, 4));
  mixed.num_layers = 3;
  mixed.attention.window_size = "4,0";
  give_running_means(mixed, {0, 2}, 20);
  ModelConfig& none = add("a layer without attention", base_config(dtype));
  none.attention.no_attention_freq = "[0,1]";
  ModelConfig& sparse = add("sparse attention", latent_config(dtype));
  add_sparse_attention(sparse);
  add_compressed_attention(add("compressed attention", base_config(dtype, 4)));
  add_residual_streams(add("parallel residual streams", base_config(dtype, 4)));
  add_linear_attention(add("Gated DeltaNet", base_config(dtype, 4)));
  add_hybrid_olmo(add("OLMo Hybrid", base_config(dtype)));
  add_hybrid_layers(add("Mamba-2", base_config(dtype, 4)));
  add_short_convolutions(add("short convolutions", base_config(dtype, 4)));
  return all;
}

inline GenerationRequest request_of(const Tokens& prompt, int64_t max_tokens, double temperature, uint64_t seed) {
  GenerationRequest request;
  request.prompt = prompt;
  request.options.max_tokens = max_tokens;
  request.options.sampler.temperature = temperature;
  request.options.sampler.seed = seed;
  request.top_logprobs = 0;
  request.prompt_logprobs = true;
  return request;
}

// Prompts shorter and longer than a window and than a tile of keys or a chunk of a recurrence, also while they are
// continued.
inline std::vector<GenerationRequest> requests_of(int64_t max_tokens = 9) {
  std::vector<GenerationRequest> requests;
  uint64_t seed = 3;
  for (const int64_t length : {5, 1, 70, 13, 60}) {
    Tokens prompt;
    for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>((i * i * 7 + length) % 50));
    requests.push_back(request_of(prompt, max_tokens, 1.5, seed++));
  }
  return requests;
}

// The log probabilities that training computes for a text: the negative loss of each token but the first.
inline std::vector<float> trained_logprobs(Rank& rank, Transformer& model, const Tokens& text) {
  const auto T = static_cast<int64_t>(text.size());
  Tokens positions, targets(text.begin() + 1, text.end());
  for (int32_t t = 0; t < T; ++t) positions.push_back(t);
  targets.push_back(0);
  Tape tape(rank.stream);
  ModelOutput out =
      model.forward(tape, {rank.tensor<int32_t>({1, T}, text), {rank.tensor<int32_t>({1, T}, positions), {}}});
  const Tensor weights = rank.stream.empty({T}, accumulator(out.logits.dtype()));
  dispatch_floating(weights.dtype(), [&]<class A>() { std::ranges::fill(weights.span<A>(), A(1.0f)); });
  const auto losses = values(
      model.loss(tape, std::move(out.logits), rank.tensor<int32_t>({T}, targets), weights, ops::LossGradient::one)
          .token_losses);
  std::vector<float> logprobs;
  for (int64_t t = 0; t + 1 < T; ++t) logprobs.push_back(-static_cast<float>(losses[size_t(t)]));
  return logprobs;
}

inline Tokens text_of(const GenerationRequest& request, const witan::Generation& generation) {
  Tokens text = request.prompt;
  for (const GeneratedToken& token : generation.tokens) text.push_back(token.token);
  return text;
}

inline std::vector<float> logprobs_of(const witan::Generation& generation) {
  std::vector<float> logprobs;
  for (size_t i = 1; i < generation.prompt.size(); ++i) logprobs.push_back(generation.prompt[i].logprob.value());
  for (const GeneratedToken& token : generation.tokens) logprobs.push_back(token.logprob.value());
  return logprobs;
}

class SmallBatch : public ::testing::Test {
 protected:
  std::vector<witan::Generation> all(const std::vector<GenerationRequest>& requests,
                                     const GenerationBatch::OnToken& on_token = {}) {
    return generate(rank_.stream, model_, requests, on_token);
  }

  Rank rank_;
  Alone alone_;
  Transformer model_{rank_.stream, base_config("float32", 4), 8, alone_};
};

}  // namespace witan::testing
