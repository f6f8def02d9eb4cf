#include "witan/nn/attention/multi_head_spec.h"

#include <algorithm>
#include <numeric>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/nn/attention/grouped_query.h"
#include "witan/nn/lora.h"

namespace witan {

std::string MultiHeadSpec::describe() const {
  return AttentionSpec::describe() + (value_table > 0 ? cat(", value embedding ", value_table) : "");
}

std::unique_ptr<TokenMixer> MultiHeadSpec::make(const Builder& builder, const MixerModel& model,
                                                const ContextAxis& context) const {
  return std::make_unique<GroupedQueryAttention>(builder, *this, model.width, model.bias, context, model.norm);
}

MixerCounts MultiHeadSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, q = num_attention_heads * qk_head_dim, k = num_query_groups * qk_head_dim,
                v = num_query_groups * v_head_dim, y = num_attention_heads * v_head_dim;
  MixerCounts counts{.weights = D * (q + k + v + y)};
  const bool biases = model.bias != Bias::none;
  if (biases || qkv_bias) counts.vectors += q + k + v;
  if (biases || output_bias) counts.vectors += D;
  if (sinks) counts.vectors += num_attention_heads;
  const int64_t vectors = (model.norm.norm_weight ? 1 : 0) + (model.norm.norm_bias ? 1 : 0);
  if (qk_norm == QkNorm::full_width) counts.vectors += (q + k) * vectors;
  if (qk_norm == QkNorm::per_head) counts.vectors += 2 * qk_head_dim * vectors;
  counts.vectors += (value_scale ? 1 : 0) + (value_table > 0 ? 1 : 0);
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->rank * (in + out);
  };
  add("q_proj", D, q);
  add("k_proj", D, k);
  add("v_proj", D, v);
  add("o_proj", y, D);
  return counts;
}

// Megatron-LM counts pairs of queries and keys that the mask hides, too.
double MultiHeadSpec::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  const auto H = static_cast<double>(model.width), S = static_cast<double>(seq_length),
             A = static_cast<double>(num_attention_heads), G = static_cast<double>(num_query_groups),
             channels = static_cast<double>(qk_head_dim + v_head_dim);
  return H * (A + G) * channels + S * A * channels;
}

// Queries and keys are kept before their norms too.
double MultiHeadSpec::kept_channels() const {
  const int64_t normed = qk_norm == QkNorm::none ? 0 : (num_attention_heads + num_query_groups) * qk_head_dim;
  return AttentionSpec::kept_channels() + static_cast<double>(normed);
}

std::string MultiHeadSpec::tensor_refusal(int64_t ranks) const {
  const int64_t groups = num_query_groups, channels = groups * std::gcd(qk_head_dim, v_head_dim);
  if (groups % ranks == 0 || (ranks % groups == 0 && channels % ranks == 0)) return "";
  return cat("num_query_groups = ", groups, " is not divisible by tensor_model_parallel_size = ", ranks,
             ", and ranks cannot split the ", channels / groups, " channels of each group evenly");
}

std::string MultiHeadSpec::context_parts(int64_t tensor) const {
  return cat(AttentionSpec::context_parts(tensor), " in ",
             counted(std::max<int64_t>(num_query_groups / tensor, 1), "query group"));
}

const kernels::RopeArgs* MultiHeadSpec::shared_rotation(bool generation) const {
  return generation || !prepares_heads() ? AttentionSpec::shared_rotation(generation) : nullptr;
}

}  // namespace witan
