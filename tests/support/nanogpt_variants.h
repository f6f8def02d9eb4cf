// The variants of modded-nanogpt (Jordan et al., 2024) in a model of four layers: norms without weights, also behind the
// embedding and of queries and keys; rotation of half the pairs; value embeddings, of which two layers share one; a layer
// without attention; skips and the embedding in every layer; SiLU; scaled logits.
#pragma once

#include "witan/model/config.h"

namespace witan::testing {

inline void add_nanogpt_variants(ModelConfig& config) {
  config.num_layers = 4;
  config.untie_embeddings_and_output_weights = true;
  config.init_method = "fan_in";
  config.attention.rotary_half_truncated = config.attention.qk_l2_norm = true;
  config.attention.no_attention_freq = "[0,0,1,0]";
  config.value_embedding_freq = "[1,2,0,1]";
  config.skip_connections = config.embedding_residual = config.embedding_norm = true;
  config.logit_scale = 0.25;
  config.norm.norm_weight = false;
  config.mlp.swiglu = false;
  config.mlp.silu = true;
  config.moe.moe_router_topk = 1;
  config.moe.moe_router_pre_softmax = true;
}

}  // namespace witan::testing
