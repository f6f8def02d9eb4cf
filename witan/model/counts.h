// Counts from the configuration, without building a model: Witan's parameters, and the figures that Megatron-LM derives
// by formulas and prints, so that its users find the numbers they know.
#pragma once

#include "witan/model/config.h"

namespace witan {

struct ParameterCounts {
  int64_t exact = 0;      // all, MTP modules included, which are trained but not used by generation
  int64_t active = 0;     // those that one token uses
  int64_t experts = 0;    // those in experts
  int64_t looked_up = 0;  // those in tables of value embeddings and of embeddings for each layer
  // The numbers that Megatron-LM prints: 2 H² [(1 + G/A) + 1.5 F/H + 2/H] for each layer (1.5: SwiGLU, else 1; F of all
  // experts and shared experts of the layer together), plus 2 H, and 2 H V (H V when tied). They count norms too often,
  // and routers, biases and learned positions not at all. Latent attention is counted exactly.
  int64_t megatron_layers = 0;
  int64_t megatron_embeddings = 0;
  int64_t megatron_total() const { return megatron_layers + megatron_embeddings; }
};

ParameterCounts count_parameters(const ModelConfig& config);

// Megatron-LM's formulas (training.py: num_floating_point_operations; theoretical_memory_usage.py). The cost functions
// of the kernels count the work that Witan really does, which `witan plan` shows.

// FLOPs of one iteration on B sequences of S tokens, by all ranks (its "throughput" divides this by seconds, ranks and
// 10¹²):
//   12 B S H² [ sum over layers of (1 + G/A + S/H) A hd/H + 1.5 k F/H, + V/(2 H) ]
// 1.5: SwiGLU, else 1; F: the layer's own FFN hidden size; k: 1 in dense layers. Routers are not counted, and attention
// is counted as if it were neither causal nor windowed. Latent attention counts its matrices with their norms, and half
// of the pairs. A module of multi-token prediction adds a layer, logits, and 2 H² + 3 H.
double megatron_iteration_flops(const ModelConfig& config, int64_t seq_length, int64_t global_batch_size);

// Bytes of weights, gradients, masters and two moments on a rank, by Megatron-LM's formula: 18 for each parameter that
// it prints, or 6 + 12/DP with its distributed optimizer, as if every rank had all experts.
double megatron_weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size,
                                           bool distributed_optimizer);

// The exact bytes of the same on a rank: experts are divided by EP, and replicated DP/EP times.
double weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size, int64_t expert_parallel_size,
                                  bool distributed_optimizer);

}  // namespace witan
