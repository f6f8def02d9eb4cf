#include "witan/model/counts.h"

#include <algorithm>

#include "witan/model/freeze.h"
#include "witan/model/mtp.h"
#include "witan/moe/experts.h"
#include "witan/moe/shared_experts.h"

namespace witan {
namespace {

struct Matrices {
  int64_t weights, biases;
};

// With the norms of latents, which Megatron-LM counts too.
Matrices latent_attention_of(const AttentionSpec& spec, int64_t width) {
  const auto& [q_rank, kv_rank, still, turning] = spec.latent;
  const int64_t H = spec.num_attention_heads, q = H * spec.qk_head_dim;
  const int64_t queries = q_rank > 0 ? q_rank * (width + q + 1) : width * q;
  const int64_t keys_and_values = width * turning + kv_rank * (width + H * (still + spec.v_head_dim) + 1);
  return {queries + keys_and_values + H * spec.v_head_dim * width, 0};
}

Matrices attention_of(const AttentionSpec& spec, int64_t width) {
  if (spec.latent.kv_rank > 0) return latent_attention_of(spec, width);
  const int64_t q = spec.num_attention_heads * spec.qk_head_dim, k = spec.num_query_groups * spec.qk_head_dim,
                v = spec.num_query_groups * spec.v_head_dim, y = spec.num_attention_heads * spec.v_head_dim;
  return {width * (q + k + v + y), spec.absent ? 0 : q + k + v + width};
}

// Of queries and keys the norms, and sinks; of projections the biases that they have although others have none.
int64_t attention_vectors(const AttentionSpec& spec, const ModelConfig& config) {
  const int64_t q = spec.num_attention_heads * spec.qk_head_dim, k = spec.num_query_groups * spec.qk_head_dim,
                v = spec.num_query_groups * spec.v_head_dim;
  if (spec.absent) return 0;
  int64_t count = spec.sinks ? spec.num_attention_heads : 0;
  if (spec.qkv_bias && !config.add_bias_linear) count += q + k + v;
  if (spec.output_bias && !config.add_bias_linear) count += config.hidden_size;
  const int64_t vectors = (config.norm.norm_weight ? 1 : 0) + (config.norm.norm_bias ? 1 : 0);
  if (spec.qk_norm == QkNorm::full_width) count += (q + k) * vectors;
  if (spec.qk_norm == QkNorm::per_head) count += 2 * spec.qk_head_dim * vectors;
  return count;
}

// Adapters of a layer: of attention, of its MLP or one expert, and of shared experts.
struct AdapterCounts {
  int64_t attention = 0, mlp = 0, shared = 0;
};

int64_t adapters_of_mlp(const LoraConfig& lora, const MlpConfig& mlp, int64_t width, bool experts) {
  const int64_t F = mlp.ffn_hidden_size;
  int64_t sides = lora.adapts("down_proj") ? width + F : 0;  // inputs and outputs
  if (!mlp.gated() || experts) return lora.rank * (sides + (lora.adapts("up_proj") ? width + mlp.first_rows() : 0));
  for (const char* half : {"gate_proj", "up_proj"}) sides += lora.adapts(half) ? width + F : 0;
  return lora.rank * sides;
}

int64_t adapters_of_attention(const LoraConfig& lora, const AttentionSpec& spec, int64_t width) {
  if (spec.absent) return 0;
  const auto& [q_rank, kv_rank, still, turning] = spec.latent;
  const int64_t H = spec.num_attention_heads, G = spec.num_query_groups, q = H * spec.qk_head_dim;
  int64_t sides = 0;
  const auto add = [&](const char* name, int64_t in, int64_t out) { sides += lora.adapts(name) ? in + out : 0; };
  add("o_proj", H * spec.v_head_dim, width);
  if (kv_rank == 0) {
    add("q_proj", width, q);
    add("k_proj", width, G * spec.qk_head_dim);
    add("v_proj", width, G * spec.v_head_dim);
    return lora.rank * sides;
  }
  if (q_rank == 0) add("q_proj", width, q);
  if (q_rank > 0) add("q_a_proj", width, q_rank);
  if (q_rank > 0) add("q_b_proj", q_rank, q);
  add("kv_a_proj_with_mqa", width, kv_rank + turning);
  add("kv_b_proj", kv_rank, H * (still + spec.v_head_dim));
  return lora.rank * sides;
}

AdapterCounts adapters_of(const ModelConfig& config, const LayerSpec& layer) {
  const auto lora = lora_of(config);
  if (!lora) return {};
  const int64_t D = config.hidden_size;
  AdapterCounts counts{adapters_of_attention(*lora, layer.attention, D),
                       adapters_of_mlp(*lora, layer.mlp, layer.moe ? expert_width(config.moe, D) : D, layer.moe), 0};
  const MlpConfig shared = shared_experts_mlp(config.moe, layer.mlp);
  if (layer.moe && shared.ffn_hidden_size > 0) counts.shared = adapters_of_mlp(*lora, shared, D, false);
  return counts;
}

Matrices mlp_of(const MlpConfig& mlp, int64_t width) {
  return {(mlp.first_rows() + mlp.ffn_hidden_size) * width, mlp.first_rows() + width};
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_size, V = config.padded_vocab_size(), E = config.moe.num_experts;
  const int64_t norm = D * ((config.norm.norm_weight ? 1 : 0) + (config.norm.norm_bias ? 1 : 0));
  const int64_t tables = config.untie_embeddings_and_output_weights ? 2 : 1;
  const int64_t positions = config.attention.learned_positions() ? config.attention.max_position_embeddings : 0;

  ParameterCounts counts;
  counts.value_embeddings =
      config.value_embedding_tables() * V * config.attention.num_query_groups * config.attention.value_head_dim(D);
  counts.exact = counts.active =
      norm + (config.embedding_norm ? norm : 0) + (tables * V + positions) * D + counts.value_embeddings;
  const int64_t behind = config.mtp_num_layers * (2 * D * D + 3 * norm);  // of MTP modules beside their blocks
  counts.exact += behind;
  counts.active += behind;
  counts.megatron_layers = 2 * D;
  counts.megatron_embeddings = tables * D * V;
  for (const LayerSpec& layer : layers_with_mtp(config)) {
    const int64_t latent = layer.moe ? config.moe.moe_latent_size : 0;
    const Matrices attention = attention_of(layer.attention, D),
                   mlp = mlp_of(layer.mlp, layer.moe ? expert_width(config.moe, D) : D);
    const AdapterCounts adapters = adapters_of(config, layer);
    const int64_t each = adapters.mlp + mlp.weights + (layer.moe && config.moe.moe_expert_add_bias ? mlp.biases : 0);
    const int64_t biases = (config.add_bias_linear ? attention.biases : 0) +
                           (!layer.moe && config.mlp_bias() != Bias::none ? mlp.biases : 0);
    const int64_t shared = layer.moe ? mlp_of(shared_experts_mlp(config.moe, layer.mlp), D).weights : 0;
    const int64_t gate = layer.moe && config.moe.moe_shared_expert_gate ? D : 0;
    const int64_t router_bias = config.moe.moe_router_add_bias ? 1 : 0;
    const int64_t scalars = (layer.skip_from ? 1 : 0) + (layer.embedding_residual ? 2 : 0) +
                            (layer.attention.value_scale ? 1 : 0) + (layer.attention.value_embedding > 0 ? 1 : 0);
    const int64_t always = adapters.attention + adapters.shared + attention.weights +
                           attention_vectors(layer.attention, config) + biases +
                           (layer.attention.absent ? 1 : 2) * norm + scalars +
                           (layer.moe ? E * (D + router_bias) + shared + gate + 2 * D * latent : 0);
    counts.exact += always + (layer.moe ? E : 1) * each;
    counts.active += always + (layer.moe ? config.moe.moe_router_topk : 1) * each;
    counts.experts += layer.moe ? E * each : 0;
    counts.megatron_layers += attention.weights + shared + 2 * D * latent + (layer.moe ? E : 1) * mlp.weights + 4 * D;
  }
  return counts;
}

}  // namespace witan
