// Parameters counted from the configuration, without building anything.
#pragma once

#include "witan/model/config.h"

namespace witan {

struct ParameterCounts {
  int64_t exact = 0;             // with MTP modules, which a step trains and generation leaves out
  int64_t active = 0;            // of them, those that one token uses
  int64_t experts = 0;           // of them, those in experts
  int64_t value_embeddings = 0;  // of them, those in tables of value embeddings
  // As Megatron-LM prints them: 2 H² [(1 + G/A) + 1.5 F/H + 2/H] for each layer (1.5: SwiGLU, else 1; F of all experts
  // together, and of shared experts, where the layer has some) and 2 H, and 2 H V (H V when tied). Its norms are
  // counted too often, its routers, biases and learned positions not at all. Latent attention is counted as it is.
  int64_t megatron_layers = 0;
  int64_t megatron_embeddings = 0;
  int64_t megatron_total() const { return megatron_layers + megatron_embeddings; }
};

ParameterCounts count_parameters(const ModelConfig& config);

}  // namespace witan
