#include "witan/model/counts.h"

#include <algorithm>

#include "witan/model/config.h"
#include "witan/model/frozen.h"
#include "witan/moe/layer/experts.h"

namespace witan {
namespace {

struct Matrices {
  int64_t weights, biases;
};

// The adapter parameters of a layer, without its mixer: of its MLP or of one expert, and of shared experts and an MLP
// beside experts.
struct AdapterCounts {
  int64_t mlp = 0, shared = 0;
};

int64_t adapters_of_mlp(const LoraConfig& lora, const MlpConfig& mlp, int64_t width, bool experts) {
  const int64_t F = mlp.ffn_hidden_size;
  int64_t count = lora.adapts("down_proj") ? lora.parameters(F, width) : 0;
  if (!mlp.gated() || experts) return count + (lora.adapts("up_proj") ? lora.parameters(width, mlp.first_rows()) : 0);
  for (const char* half : {"gate_proj", "up_proj"}) count += lora.adapts(half) ? lora.parameters(width, F) : 0;
  return count;
}

AdapterCounts adapters_of(const ModelConfig& config, const LayerSpec& layer) {
  const auto lora = lora_of(config);
  if (!lora) return {};
  const int64_t D = config.hidden_size;
  AdapterCounts counts;
  if (layer.has_mlp())
    counts.mlp = adapters_of_mlp(*lora, layer.mlp, layer.moe ? expert_width(config.moe, D) : D, layer.moe);
  const MlpConfig shared = shared_experts_mlp(config.moe, layer.mlp);
  if (layer.moe && shared.ffn_hidden_size > 0) counts.shared = adapters_of_mlp(*lora, shared, D, false);
  if (layer.parallel_mlp) counts.shared += adapters_of_mlp(*lora, *layer.parallel_mlp, D, false);
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
  const auto lora = lora_of(config);
  const auto adapters_of_matrix = [&](const char* name, int64_t in, int64_t out) {
    return lora && lora->adapts(name) ? lora->parameters(in, out) : 0;
  };
  // Embeddings for each layer: d channels of P in the table.
  const int64_t d = config.hidden_size_per_layer_input, P = config.num_layers * d;
  const int64_t layer_inputs =
      d == 0 ? 0 : P * D + norm / D * d + adapters_of_matrix("per_layer_model_projection", D, P);
  const int64_t layer_input = d == 0 ? 0
                                     : 2 * d * D + norm + adapters_of_matrix("per_layer_input_gate", D, d) +
                                           adapters_of_matrix("per_layer_projection", d, D);
  counts.looked_up =
      config.value_embedding_tables() * V * config.attention.num_query_groups * config.attention.value_head_dim(D) +
      V * P;
  counts.exact = counts.active =
      norm + (config.embedding_norm ? norm : 0) + (tables * V + positions) * D + counts.looked_up + layer_inputs;
  const int64_t mtp = config.mtp_num_layers * (2 * D * D + 3 * norm);  // of MTP modules beside their blocks
  counts.exact += mtp + config.streams.head_parameters(D);
  counts.active += mtp + config.streams.head_parameters(D);
  counts.megatron_layers = 2 * D;
  counts.megatron_embeddings = tables * D * V;
  const MixerModel around = config.around_mixers();
  for (const LayerSpec& layer : layers_with_mtp(config)) {
    const MixerCounts mixer = mixer_kind(layer.mixer).parameters(around);
    const int64_t latent = layer.moe ? config.moe.moe_latent_size : 0;
    const Matrices mlp = mlp_of(layer.mlp, layer.moe ? expert_width(config.moe, D) : D);
    const AdapterCounts adapters = adapters_of(config, layer);
    const int64_t each = adapters.mlp + mlp.weights + (layer.moe && config.moe.moe_expert_add_bias ? mlp.biases : 0);
    const bool dense = !layer.moe && layer.has_mlp();
    const int64_t biases = dense && config.mlp_bias() != Bias::none ? mlp.biases : 0;
    const int64_t shared = layer.moe ? mlp_of(shared_experts_mlp(config.moe, layer.mlp), D).weights : 0;
    const int64_t gate = layer.moe && config.moe.moe_shared_expert_gate ? D : 0;
    const int64_t router_vectors = (config.moe.moe_router_add_bias ? E : 0) +
                                   (config.moe.moe_router_expert_scale ? E : 0) +
                                   (config.moe.moe_router_input_norm ? D : 0);
    const Matrices beside = layer.parallel_mlp ? mlp_of(*layer.parallel_mlp, D) : Matrices{};
    const int64_t parallel = beside.weights + (config.mlp_bias() != Bias::none ? beside.biases : 0);
    const int64_t scalars = (layer.skip_from ? 1 : 0) + (layer.embedding_residual ? 2 : 0);
    const int64_t halves = (std::holds_alternative<NoMixer>(layer.mixer) ? 0 : 1) + (layer.has_mlp() ? 1 : 0);
    const int64_t norms = halves * (config.norm_placement == "both" ? 2 : 1) + (layer.parallel_mlp ? 3 : 0);
    const int64_t always = mixer.weights + mixer.vectors + mixer.adapters + adapters.shared + biases + norms * norm +
                           halves * config.streams.half_parameters(D) + scalars + parallel + layer_input +
                           (layer.moe ? E * D + router_vectors + shared + gate + 2 * D * latent : 0);
    counts.exact += always + (layer.moe ? E : 1) * each;
    counts.active += always + (layer.moe ? config.moe.moe_router_topk : 1) * each;
    counts.experts += layer.moe ? E * each : 0;
    counts.megatron_layers +=
        mixer.weights + shared + beside.weights + 2 * D * latent + (layer.moe ? E : 1) * mlp.weights + 4 * D;
  }
  return counts;
}

namespace {

// 6 bytes for value and gradient in mixed precision, and 12, which the distributed optimizer divides, for the master
// and two moments.
double bytes_per_parameter(int64_t replicas, bool distributed_optimizer) {
  return 6.0 + 12.0 / static_cast<double>(distributed_optimizer ? replicas : 1);
}

}  // namespace

double megatron_iteration_flops(const ModelConfig& config, int64_t seq_length, int64_t global_batch_size) {
  const auto H = static_cast<double>(config.hidden_size), S = static_cast<double>(seq_length);
  const auto ahead = static_cast<double>(config.mtp_num_layers);
  // The multiply-adds of a token's forward, pairs of attention included.
  double weights = (1 + ahead) * H * static_cast<double>(config.padded_vocab_size()) + ahead * (2 * H * H + 3 * H);
  const MixerModel around = config.around_mixers();
  for (const LayerSpec& layer : layers_with_mtp(config)) {
    const auto features = static_cast<double>(layer.mlp.first_rows() + layer.mlp.ffn_hidden_size);
    const double experts = layer.moe ? static_cast<double>(config.moe.moe_router_topk) : 1;
    const double latent = layer.moe ? static_cast<double>(config.moe.moe_latent_size) : 0,
                 width = layer.moe ? static_cast<double>(expert_width(config.moe, config.hidden_size)) : H;
    const MlpConfig shared = shared_experts_mlp(config.moe, layer.mlp);
    auto shared_features = layer.moe ? static_cast<double>(shared.first_rows() + shared.ffn_hidden_size) : 0.0;
    if (layer.parallel_mlp)
      shared_features += static_cast<double>(layer.parallel_mlp->first_rows() + layer.parallel_mlp->ffn_hidden_size);
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
