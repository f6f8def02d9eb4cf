// Which parts of a layer selective recomputation computes again, by the names of Megatron-LM's --recompute-modules.
#pragma once

#include "witan/model/config.h"

namespace witan {

struct RecomputeModules {
  bool layernorm = false;       // norms: their inputs are kept instead of their outputs
  bool mlp_act = false;         // activations of dense MLPs and of shared experts
  bool moe_act = false;         // activations of experts
  bool shared_experts = false;  // shared experts as a whole
  bool mlp = false;             // dense MLPs as a whole, of which the input is kept
  bool moe = false;             // MoE layers as a whole: router, dispatch, experts and combine
  bool mla_up_proj = false;     // queries, keys and values of latent attention, of which the latents are kept
};

// Those of recompute_modules; without a list norms and activations. None unless recompute_granularity is selective.
// Attention keeps no scores, so that core_attn, which Megatron-LM recomputes if nothing is listed, is none. Throws
// ConfigError for a name that is none of them, whatever the granularity, and for mla_up_proj without latent attention.
RecomputeModules read_recompute_modules(const ModelConfig& config);

}  // namespace witan
