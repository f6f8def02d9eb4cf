#include "witan/model/megatron_formulas.h"

#include <algorithm>

#include "witan/model/counts.h"
#include "witan/model/mtp.h"
#include "witan/moe/layer/experts.h"

namespace witan {
namespace {

// Values and gradients of a mixed-precision run, then what the distributed optimizer divides: master and two moments.
double bytes_per_parameter(int64_t replicas, bool distributed_optimizer) {
  return 6.0 + 12.0 / static_cast<double>(distributed_optimizer ? replicas : 1);
}

}  // namespace

double megatron_iteration_flops(const ModelConfig& config, int64_t seq_length, int64_t global_batch_size) {
  const auto H = static_cast<double>(config.hidden_size), S = static_cast<double>(seq_length);
  const auto ahead = static_cast<double>(config.mtp_num_layers);
  // Weights that a token meets, pairs of attention too.
  double weights = (1 + ahead) * H * static_cast<double>(config.padded_vocab_size()) + ahead * (2 * H * H + 3 * H);
  const MixerModel around = config.around_mixers();
  for (const LayerSpec& layer : layers_with_mtp(config)) {
    const auto features = static_cast<double>(layer.mlp.first_rows() + layer.mlp.ffn_hidden_size);
    const double experts = layer.moe ? static_cast<double>(config.moe.moe_router_topk) : 1;
    const double latent = layer.moe ? static_cast<double>(config.moe.moe_latent_size) : 0,
                 width = layer.moe ? static_cast<double>(expert_width(config.moe, config.hidden_size)) : H;
    const MlpConfig shared = shared_experts_mlp(config.moe, layer.mlp);
    const auto shared_features = layer.moe ? static_cast<double>(shared.first_rows() + shared.ffn_hidden_size) : 0.0;
    weights += mixer_kind(layer.mixer).megatron_weights(around, seq_length) + width * experts * features +
               H * (shared_features + 2 * latent);
  }
  return 6 * static_cast<double>(global_batch_size) * S * weights;
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
