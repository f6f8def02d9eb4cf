#include "witan/model/megatron_formulas.h"

#include <algorithm>

#include "witan/model/counts.h"

namespace witan {
namespace {

// Values and gradients of a mixed-precision run, then what the distributed optimizer divides: master and two moments.
double bytes_per_parameter(int64_t replicas, bool distributed_optimizer) {
  return 6.0 + 12.0 / static_cast<double>(distributed_optimizer ? replicas : 1);
}

}  // namespace

double megatron_iteration_flops(const ModelConfig& config, int64_t seq_length, int64_t global_batch_size) {
  const auto L = static_cast<double>(config.num_layers), H = static_cast<double>(config.hidden_size);
  const auto S = static_cast<double>(seq_length), V = static_cast<double>(config.padded_vocab_size());
  const auto A = static_cast<double>(config.attention.num_attention_heads);
  const auto G = static_cast<double>(config.attention.num_query_groups);
  const auto F = static_cast<double>(config.mlp.ffn_hidden_size);
  const double projection = A * static_cast<double>(config.attention.head_dim(config.hidden_size)) / H;
  const double experts = config.moe.num_experts > 0 ? static_cast<double>(config.moe.moe_router_topk) : 1;
  const double gated = config.mlp.gated() ? 1.5 : 1.0;
  return 12 * static_cast<double>(global_batch_size) * S * L * H * H *
         ((1 + G / A + S / H) * projection + F / H * experts * gated + V / (2 * L * H));
}

double megatron_weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size,
                                           bool distributed_optimizer) {
  return static_cast<double>(count_parameters(config).megatron_total()) *
         bytes_per_parameter(data_parallel_size, distributed_optimizer);
}

double weight_and_optimizer_bytes(const ModelConfig& config, int64_t data_parallel_size, int64_t expert_parallel_size,
                                  bool distributed_optimizer) {
  const ParameterCounts counts = count_parameters(config);
  const int64_t expert_replicas = std::max<int64_t>(data_parallel_size / expert_parallel_size, 1);
  return static_cast<double>(counts.exact - counts.experts) *
             bytes_per_parameter(data_parallel_size, distributed_optimizer) +
         static_cast<double>(counts.experts) / static_cast<double>(expert_parallel_size) *
             bytes_per_parameter(expert_replicas, distributed_optimizer);
}

}  // namespace witan
