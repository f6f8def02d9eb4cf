// The figures that Megatron-LM derives from a configuration by formulas of its own and prints, so that its users find
// the numbers they know (training.py: num_floating_point_operations; theoretical_memory_usage.py). What Witan really
// does is counted by the cost twins of its kernels, and stands in `witan plan`.
#pragma once

#include "witan/model/config.h"

namespace witan {

// FLOPs of one iteration on B sequences of S tokens, all ranks (its "throughput" is this over seconds, ranks and 10¹²):
//   12 B S H² [ sum over layers of (1 + G/A + S/H) A hd/H + 1.5 k F/H, + V/(2 H) ]
// 1.5: SwiGLU, else 1; F the layer's own FFN hidden size, k = 1 in dense layers. It counts no router, and attention as
// if it were neither causal nor windowed. Latent attention's term is another: its matrices with their norms, and half
// of the pairs. A module of multi-token prediction is a layer more, logits more, and 2 H² + 3 H.
double megatron_iteration_flops(const ModelConfig& config, int64_t seq_length, int64_t global_batch_size);

// Bytes of weights, gradients, masters and two moments on a rank: 18 a parameter, or 6 + 12/DP with its distributed
// optimizer. Counted over all parameters as Megatron-LM prints them, as if experts were on every rank.
double megatron_weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size,
                                           bool distributed_optimizer);

// The same for what is really on a rank, exactly counted: experts are divided by EP, and replicated DP/EP times.
double weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size, int64_t expert_parallel_size,
                                  bool distributed_optimizer);

}  // namespace witan
