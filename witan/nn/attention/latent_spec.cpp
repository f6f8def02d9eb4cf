#include "witan/nn/attention/latent_spec.h"

#include "witan/nn/attention/latent.h"
#include "witan/nn/lora.h"

namespace witan {

std::unique_ptr<TokenMixer> LatentSpec::make(const Builder& builder, const MixerModel& model,
                                             const ContextAxis& context) const {
  auto attention = std::make_unique<LatentAttention>(builder, *this, model.width, context);
  if (model.recompute_up_projections) attention->recompute_up_projections();
  return attention;
}

// Megatron-LM counts the norms of latents with the matrices.
MixerCounts LatentSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, H = num_attention_heads, q = H * qk_head_dim, y = H * v_head_dim;
  const int64_t queries = q_rank > 0 ? q_rank * (D + q + 1) : D * q;
  const int64_t keys_and_values = D * rope_head_dim + kv_rank * (D + H * (nope_head_dim + v_head_dim) + 1);
  MixerCounts counts{.weights = queries + keys_and_values + y * D};
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->rank * (in + out);
  };
  if (q_rank == 0) add("q_proj", D, q);
  if (q_rank > 0) add("q_a_proj", D, q_rank);
  if (q_rank > 0) add("q_b_proj", q_rank, q);
  add("kv_a_proj_with_mqa", D, kv_rank + rope_head_dim);
  add("kv_b_proj", kv_rank, H * (nope_head_dim + v_head_dim));
  add("o_proj", y, D);
  return counts;
}

// Megatron-LM counts half of the pairs of queries and keys here: the mask hides the others.
double LatentSpec::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  const double pairs = static_cast<double>(seq_length) * static_cast<double>(query_channels()) / 2;
  return static_cast<double>(parameters(model).weights) + pairs;
}

}  // namespace witan
