#include "witan/nn/compressed_attention/compressed_spec.h"

#include <algorithm>

#include "witan/base/text.h"
#include "witan/nn/compressed_attention/compressed_attention.h"
#include "witan/nn/lora.h"

namespace witan {

std::string CompressedSpec::describe() const {
  const std::string tokens = cat("a window of ", window, " tokens");
  if (ratio == 0) return cat("shared-key attention, ", tokens);
  return cat("compressed attention, ", tokens, " and ", sparse ? cat(index_topk, " chosen") : std::string("all"),
             " entries of ", ratio);
}

std::unique_ptr<TokenMixer> CompressedSpec::make(const Builder& builder, const MixerModel& model,
                                                 const ContextAxis& /*context*/) const {
  return std::make_unique<CompressedAttention>(builder, *this, model);
}

MixerCounts CompressedSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, N = num_attention_heads, d = head_dim;
  MixerCounts counts{.weights = (q_rank + d) * D + N * d * q_rank + o_rank * N * d + o_groups * o_rank * D,
                     .vectors = q_rank + d + N};
  const auto entries = [&](int64_t values, int64_t channels) {
    counts.weights += 2 * values * D;
    counts.vectors += ratio * values + channels;
  };
  if (ratio > 0) entries(entry_values(), d);
  if (sparse) {
    entries(index_values(), index_head_dim);
    counts.weights += index_heads * index_head_dim * q_rank + index_heads * D;
  }
  if (!model.lora) return counts;
  const auto adapter = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
  };
  adapter("q_a_proj", D, q_rank);
  adapter("q_b_proj", q_rank, N * d);
  return counts;
}

double CompressedSpec::attended(double position) const {
  const double seen = ratio > 0 ? (position + 1) / static_cast<double>(ratio) : 0;
  return std::min(position + 1, static_cast<double>(window)) +
         (sparse ? std::min(seen, static_cast<double>(index_topk)) : seen);
}

double CompressedSpec::decoding_flops(int64_t position) const {
  const auto at = static_cast<double>(position);
  const double index =
      sparse ? 2 * static_cast<double>(index_heads * index_head_dim) * (at + 1) / static_cast<double>(ratio) : 0;
  return 4 * static_cast<double>(num_attention_heads * head_dim) * attended(at) + index;
}

// The mean over positions, of which a sample of evenly spaced ones is taken.
double CompressedSpec::mixing_flops(int64_t seq_length) const {
  constexpr int64_t kSamples = 64;
  const int64_t samples = std::min(seq_length, kSamples);
  double sum = 0;
  for (int64_t i = 0; i < samples; ++i) sum += decoding_flops((2 * i + 1) * seq_length / (2 * samples));
  return samples > 0 ? sum / static_cast<double>(samples) : 0;
}

// Queries before and after their norm and rotation, the output before and after its rotation, keys, latents, values and
// gates.
double CompressedSpec::kept_channels() const {
  return static_cast<double>(5 * num_attention_heads * head_dim + 3 * head_dim + 2 * q_rank + o_groups * o_rank +
                             (ratio > 0 ? 2 * entry_values() : 0));
}

StateBytes CompressedSpec::state_bytes(const StateSize& size, DType dtype) const {
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  StateBytes state{.fixed = 0, .per_position = head_dim * bytes, .positions = size.positions};
  const auto entries = [&](int64_t values, int64_t channels) {
    state.fixed += (4 * ratio * values + kernels::entry_slots(size.positions, ratio) * channels) * bytes;
  };
  if (ratio > 0) entries(entry_values(), head_dim);
  if (sparse) entries(index_values(), index_head_dim);
  return state;
}

std::string CompressedSpec::tensor_refusal(int64_t ranks) const {
  if (ranks == 1) return "";
  return cat("tensor_model_parallel_size = ", ranks,
             ": heads of compressed attention share a key, whose projections and entries ranks do not divide");
}

std::string CompressedSpec::context_refusal(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t context) const {
  if (context == 1) return "";
  return "layers of compressed attention need whole sequences, because entries are made of neighbouring tokens; ";
}

}  // namespace witan
