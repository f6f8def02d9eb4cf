#include "witan/nn/gated_delta/gated_delta_spec.h"

#include "witan/nn/gated_delta/gated_delta.h"
#include "witan/nn/lora.h"

namespace witan {

std::unique_ptr<TokenMixer> GatedDeltaSpec::make(const Builder& builder, const MixerModel& model,
                                                 const ContextAxis& context) const {
  return std::make_unique<GatedDelta>(builder, *this, model, context);
}

MixerCounts GatedDeltaSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, k = heads().key_channels(), v = heads().value_channels();
  MixerCounts counts{.weights = D * (2 * k + 2 * v + num_value_heads),
                     .vectors = heads().channels() * conv_kernel_dim + num_value_heads + decays() + value_head_dim};
  if (channel_decays)
    counts.weights += key_head_dim * (D + k) + value_head_dim * (D + v);
  else
    counts.weights += D * (v + num_value_heads);
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
  };
  add("q_proj", D, k);
  add("k_proj", D, k);
  add("v_proj", D, v);
  if (channel_decays) {
    add("f_a_proj", D, key_head_dim);
    add("f_b_proj", key_head_dim, k);
    add("g_a_proj", D, value_head_dim);
    add("g_b_proj", value_head_dim, v);
  } else {
    add("z_proj", D, v);
  }
  add("o_proj", v, D);
  return counts;
}

// Per head, three products with the state; per chunk, the lower triangles of two products of keys and two of values;
// then the convolution.
double GatedDeltaSpec::mixing_flops(int64_t seq_length) const {
  const auto dk = static_cast<double>(key_head_dim), dv = static_cast<double>(value_head_dim);
  const auto chunk = static_cast<double>(std::min(seq_length, kernels::kDeltaChunk));
  return static_cast<double>(num_value_heads) * (6 * dk * dv + 2 * chunk * (dk + dv)) +
         2 * static_cast<double>(heads().channels() * conv_kernel_dim);
}

// Reading, writing and decaying the state: 7 FLOPs for each of its numbers.
double GatedDeltaSpec::decoding_flops(int64_t /*position*/) const {
  return 7 * static_cast<double>(num_value_heads * key_head_dim * value_head_dim) +
         2 * static_cast<double>(heads().channels() * conv_kernel_dim);
}

// Queries, keys and values before and after their convolution; the output before and after its norm, and the gate; the
// decay and the strength of each head, and what they are computed from.
double GatedDeltaSpec::kept_channels() const {
  return static_cast<double>(2 * heads().channels() + 3 * heads().value_channels() + 3 * num_value_heads +
                             3 * decays());
}

StateBytes GatedDeltaSpec::state_bytes(const StateSize& size, DType dtype) const {
  const int64_t chunk = size.chunks ? kernels::kDeltaChunk : 0;
  const int64_t numbers =
      num_value_heads * key_head_dim * value_head_dim + chunk * (num_value_heads + decays() + heads().value_channels());
  const int64_t inputs = heads().channels() * (conv_kernel_dim - 1 + chunk);
  return {.fixed = numbers * static_cast<int64_t>(size_of(accumulator(dtype))) +
                   inputs * static_cast<int64_t>(size_of(dtype))};
}

// Queries, keys, values and both gates' inputs go to their heads' rank, and outputs come back.
ContextUse GatedDeltaSpec::context_use(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const {
  if (context == 1) return {};
  const int64_t keys = HeadSection{num_key_heads / tensor, 1}.own_heads(context),
                values = HeadSection{num_value_heads / tensor, 1}.own_heads(context);
  return {.exchanges_channels = true,
          .exchanged_channels = static_cast<double>(2 * keys * key_head_dim + 2 * values * value_head_dim +
                                                    values * (1 + decays() / num_value_heads))};
}

std::string GatedDeltaSpec::context_refusal(ContextExchange /*exchange*/, int64_t tensor, int64_t context) const {
  return refusal_of_heads(
      {layers(), {"linear_num_value_heads", num_value_heads}, {"linear_num_key_heads", num_key_heads}}, tensor,
      context);
}

}  // namespace witan
