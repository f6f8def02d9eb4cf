#include "witan/model/counts.h"

#include <algorithm>
#include <cmath>

namespace witan {

ParameterCounts count_parameters(const ModelConfig& config) {
  const int64_t L = config.num_layers, D = config.hidden_size, V = config.padded_vocab_size();
  const int64_t A = config.attention.num_attention_heads, G = config.attention.num_query_groups;
  const int64_t hd = config.attention.head_dim(D), F = config.mlp.ffn_hidden_size, E = config.moe.num_experts;
  const int64_t norm = D * (config.norm.norm_bias ? 2 : 1);
  const int64_t expert = (config.mlp.first_rows() + F) * D;
  const int64_t heads = config.untie_embeddings_and_output_weights ? 2 : 1;

  ParameterCounts counts;
  const bool bias = config.add_bias_linear;
  const int64_t attention = 2 * D * A * hd + 2 * D * G * hd + (bias ? (A + 2 * G) * hd + D : 0);
  const int64_t mlp = expert + (bias ? config.mlp.first_rows() + D : 0);
  const int64_t positions = config.attention.learned_positions() ? config.attention.max_position_embeddings : 0;
  counts.exact = counts.active = L * (attention + 2 * norm) + norm + (heads * V + positions) * D;
  for (int64_t layer = 0; layer < L; ++layer) {
    if (!config.moe.is_moe_layer(layer, L)) {
      counts.exact += mlp;
      counts.active += mlp;
      continue;
    }
    counts.experts += E * expert;
    counts.exact += E * expert + E * D;
    counts.active += config.moe.moe_router_topk * expert + E * D;
  }
  const auto l = static_cast<double>(L), h = static_cast<double>(D);
  const double gated = config.mlp.gated() ? 1.5 : 1.0;
  const double projection = static_cast<double>(A * hd) / h;  // 1 unless kv_channels says otherwise
  const double per_layer = projection * (1 + static_cast<double>(G) / static_cast<double>(A)) +
                           gated * static_cast<double>(std::max<int64_t>(E, 1)) * static_cast<double>(F) / h + 2 / h +
                           1 / (l * h);
  counts.megatron_layers = std::llround(2 * l * h * h * per_layer);
  counts.megatron_embeddings = heads * D * V;
  return counts;
}

}  // namespace witan
