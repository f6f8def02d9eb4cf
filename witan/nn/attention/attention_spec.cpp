#include "witan/nn/attention/attention_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/nn/attention/grouped_query.h"
#include "witan/nn/attention/latent.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

std::string rotation_text(const kernels::RopeArgs& rope) {
  if (rope.dims == 0) return ", no RoPE";
  if (rope.scaling.type == kernels::RopeScaling::Type::none) return "";
  return fmt::format(", positions stretched {:g} times", rope.scaling.factor);
}

}  // namespace

std::string AttentionSpec::describe() const {
  return (window > 0 ? cat("sliding window of ", window, " tokens") : full_text()) + rotation_text(rope);
}

double AttentionSpec::mixing_flops(int64_t seq_length) const {
  const auto length = static_cast<double>(seq_length), seen = static_cast<double>(window);
  const double positions = window == 0 || window >= seq_length ? length / 2 : seen - seen * seen / (2 * length);
  return 2 * positions * static_cast<double>(query_channels());
}

double AttentionSpec::decoding_flops(int64_t position) const {
  const int64_t seen = window > 0 ? std::min(window, position + 1) : position + 1;
  return 2 * static_cast<double>(seen * query_channels());
}

double AttentionSpec::kept_channels() const {
  return static_cast<double>(query_channels() + key_channels());
}

// The sizes of the cache that KvCache allocates.
StateBytes AttentionSpec::state_bytes(const StateSize& size, DType dtype) const {
  const bool ring = window > 0 && !size.all_positions;
  return {.per_position = cached_bytes(num_query_groups, key_channels(), size.cache, dtype),
          .positions = ring ? std::min(size.positions, 2 * window) : size.positions};
}

// A group has a scale for its key, and one for its value.
int64_t AttentionSpec::cached_bytes(int64_t groups, int64_t channels, const CacheFormat& format, DType dtype) {
  if (!format.fp8) return channels * size_of(dtype);
  return channels * size_of(DType::f8) + 2 * groups * size_of(DType::f32);
}

ContextUse AttentionSpec::context_use(ContextExchange exchange, int64_t tensor, int64_t context) const {
  ContextUse use;
  use.exchanges_channels = exchanges_heads(exchange, *this, tensor, context);
  const auto ranks = static_cast<double>(tensor), parts = static_cast<double>(context);
  if (!use.exchanges_channels) {
    use.ring_channels = static_cast<double>(key_channels()) / ranks;
    use.work = window > 0 ? ContextWork::none : ContextWork::alternate;
    return use;
  }
  const double groups = std::max(static_cast<double>(num_query_groups) / ranks, parts);  // several ranks may share one
  use.exchanged_channels =
      (static_cast<double>(query_channels()) / ranks + groups * static_cast<double>(qk_head_dim + v_head_dim)) / parts;
  return use;
}

bool AttentionSpec::context_ranks_divide(int64_t tensor, int64_t context) const {
  return ranks_divide_heads(*this, tensor, context);
}

int64_t AttentionSpec::most_context_ranks(int64_t tensor) const {
  return std::max<int64_t>(num_attention_heads / tensor, 1);
}

std::string AttentionSpec::context_parts(int64_t tensor) const {
  return counted(num_attention_heads / tensor, "head");
}

const kernels::RopeArgs* AttentionSpec::shared_rotation(bool /*generation*/) const {
  return rope.dims > 0 ? &rope : nullptr;
}

bool ranks_divide_heads(const AttentionSpec& spec, int64_t tensor, int64_t context) {
  const int64_t heads = spec.num_attention_heads / tensor,
                groups = std::max<int64_t>(spec.num_query_groups / tensor, 1);
  return heads % context == 0 && (groups % context == 0 || context % groups == 0);
}

bool exchanges_heads(ContextExchange exchange, const AttentionSpec& spec, int64_t tensor, int64_t context) {
  if (context == 1 || exchange == ContextExchange::ring) return false;
  return exchange == ContextExchange::heads || ranks_divide_heads(spec, tensor, context);
}

std::string MultiHeadSpec::describe() const {
  return cat(AttentionSpec::describe(), value_table > 0 ? cat(", value embedding ", value_table) : "",
             borrows() ? cat(", keys and values of layer ", sharing->of) : "");
}

std::unique_ptr<TokenMixer> MultiHeadSpec::make(const Builder& builder, const MixerModel& model,
                                                const ContextAxis& context) const {
  return std::make_unique<GroupedQueryAttention>(builder, *this, model.width, model.bias, context, model.norm);
}

MixerCounts MultiHeadSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, q = num_attention_heads * qk_head_dim,
                k = borrows() ? 0 : num_query_groups * qk_head_dim,
                v = borrows() || values_from_keys ? 0 : num_query_groups * v_head_dim,
                y = num_attention_heads * v_head_dim;
  MixerCounts counts{.weights = D * (q + k + v + y + (output_gate ? y : 0))};
  const bool biases = model.bias != Bias::none;
  if (biases || qkv_bias) counts.vectors += q + k + v;
  if (biases || output_bias) counts.vectors += D;
  if ((biases || qkv_bias) && output_gate) counts.vectors += y;
  if (sinks) counts.vectors += num_attention_heads;
  const int64_t vectors = (model.norm.norm_weight ? 1 : 0) + (model.norm.norm_bias ? 1 : 0);
  if (qk_norm == QkNorm::full_width) counts.vectors += (q + k) * vectors;
  if (qk_norm == QkNorm::per_head || qk_norm == QkNorm::per_head_rotated)
    counts.vectors += (borrows() ? 1 : 2) * qk_head_dim * vectors;
  counts.vectors += (value_scale ? 1 : 0) + (value_table > 0 ? 1 : 0);
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
  };
  add("q_proj", D, q);
  if (k > 0) add("k_proj", D, k);
  if (v > 0) add("v_proj", D, v);
  add("o_proj", y, D);
  if (output_gate) add("g_proj", D, y);
  return counts;
}

// Megatron-LM also counts the pairs of queries and keys that the mask hides.
double MultiHeadSpec::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  const auto H = static_cast<double>(model.width), S = static_cast<double>(seq_length),
             A = static_cast<double>(num_attention_heads), G = static_cast<double>(num_query_groups),
             channels = static_cast<double>(qk_head_dim + v_head_dim);
  const double gate = output_gate ? H * A * static_cast<double>(v_head_dim) : 0;
  const double of_keys = H * G * static_cast<double>(qk_head_dim), of_values = H * G * static_cast<double>(v_head_dim);
  const double shared = borrows() ? of_keys + of_values : values_from_keys ? of_values : 0;
  return H * (A + G) * channels - shared + gate + S * A * channels;
}

// Queries, keys and values are also kept as they were before their norms; the gate, and what it multiplies.
double MultiHeadSpec::kept_channels() const {
  const int64_t groups = borrows() ? 0 : num_query_groups;
  const int64_t normed = qk_norm == QkNorm::none ? 0 : (num_attention_heads + groups) * qk_head_dim;
  const int64_t gated = output_gate ? 2 * num_attention_heads * v_head_dim : 0;
  const int64_t of_values = v_norm ? groups * v_head_dim : 0, borrowed = borrows() ? key_channels() : 0;
  return AttentionSpec::kept_channels() + static_cast<double>(normed + of_values + gated - borrowed);
}

StateBytes MultiHeadSpec::state_bytes(const StateSize& size, DType dtype) const {
  if (borrows()) return {};
  StateSize kept = size;
  kept.all_positions = size.all_positions || lends();
  return AttentionSpec::state_bytes(kept, dtype);
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

std::unique_ptr<TokenMixer> LatentSpec::make(const Builder& builder, const MixerModel& model,
                                             const ContextAxis& context) const {
  auto attention = std::make_unique<LatentAttention>(builder, *this, model.width, context);
  if (model.recompute_up_projections) attention->recompute_up_projections();
  return attention;
}

std::string LatentSpec::full_text() const {
  if (!indexer.any()) return "full latent attention";
  if (indexer.warm_up) return "full latent attention, from which an indexer learns";
  return cat("latent attention to ", indexer.topk, " keys",
             indexer.own() ? std::string() : cat(" that layer ", indexer.from, " chooses"));
}

double LatentSpec::mixing_flops(int64_t seq_length) const {
  const auto length = static_cast<double>(seq_length);
  const double scores =
      indexer.own() ? length * static_cast<double>(indexer.heads * indexer.head_dim) : 0;  // 2 of length / 2 pairs
  if (!indexer.chooses() || indexer.topk >= seq_length) return scores + AttentionSpec::mixing_flops(seq_length);
  const auto most = static_cast<double>(indexer.topk);
  return scores + 2 * (most - most * most / (2 * length)) * static_cast<double>(query_channels());
}

double LatentSpec::decoding_flops(int64_t position) const {
  if (!indexer.chooses()) return AttentionSpec::decoding_flops(position);
  const int64_t seen = position + 1, scores = indexer.own() ? seen * indexer.heads * indexer.head_dim : 0;
  return 2 * static_cast<double>(scores + std::min(seen, indexer.topk) * query_channels());
}

// The gradients of the indexer's queries, weights and keys are kept from the forward on; chosen keys are counted as
// numbers of two channels.
double LatentSpec::kept_channels() const {
  double channels = AttentionSpec::kept_channels();
  if (indexer.learns())
    channels += static_cast<double>(2 * indexer.heads * (indexer.head_dim + 1) + 3 * indexer.head_dim);
  if (indexer.chooses() && indexer.own()) channels += static_cast<double>(2 * indexer.topk);
  return channels;
}

StateBytes LatentSpec::state_bytes(const StateSize& size, DType dtype) const {
  StateBytes bytes = AttentionSpec::state_bytes(size, dtype);
  if (size.cache.latents) bytes.per_position = cached_bytes(1, latent_channels(), size.cache, dtype);
  if (indexer.chooses() && indexer.own()) bytes.per_position += indexer.head_dim * static_cast<int64_t>(size_of(dtype));
  return bytes;
}

std::string LatentSpec::cache_refusal(const CacheFormat& format, const MixerModel& model) const {
  if (indexer.chooses() && (format.latents || format.fp8))
    return "attention to chosen keys (experimental_attention_variant = dsa) reads the heads' keys in the model's dtype";
  if (format.latents && model.lora && model.lora->adapts("kv_b_proj"))
    return "adapters of kv_b_proj (lora_target_modules) multiply each latent, which is not expanded then: merge them "
           "by an export";
  return "";
}

std::string LatentSpec::context_refusal(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t context) const {
  if (context == 1 || !indexer.any()) return "";
  return "the indexer of experimental_attention_variant = dsa needs whole sequences, because a token chooses among all "
         "earlier keys; ";
}

// Megatron-LM counts the norms of latents with the matrices.
MixerCounts LatentSpec::parameters(const MixerModel& model) const {
  const int64_t D = model.width, H = num_attention_heads, q = H * qk_head_dim, y = H * v_head_dim;
  const int64_t queries = q_rank > 0 ? q_rank * (D + q + 1) : D * q;
  const int64_t keys_and_values = D * rope_head_dim + kv_rank * (D + H * (nope_head_dim + v_head_dim) + 1);
  MixerCounts counts{.weights = queries + keys_and_values + y * D};
  const int64_t of_indexer = indexer.heads * indexer.head_dim;
  if (indexer.own()) {
    counts.weights += q_rank * of_indexer + D * (indexer.head_dim + indexer.heads);
    counts.vectors += 2 * indexer.head_dim;
  }
  if (!model.lora) return counts;
  const auto add = [&](const char* matrix, int64_t in, int64_t out) {
    if (model.lora->adapts(matrix)) counts.adapters += model.lora->parameters(in, out);
  };
  if (q_rank == 0) add("q_proj", D, q);
  if (q_rank > 0) add("q_a_proj", D, q_rank);
  if (q_rank > 0) add("q_b_proj", q_rank, q);
  add("kv_a_proj_with_mqa", D, kv_rank + rope_head_dim);
  add("kv_b_proj", kv_rank, H * (nope_head_dim + v_head_dim));
  add("o_proj", y, D);
  if (!indexer.learns()) return counts;
  add("wq_b", q_rank, of_indexer);
  add("wk", D, indexer.head_dim);
  add("weights_proj", D, indexer.heads);
  return counts;
}

// Megatron-LM counts half of the pairs of queries and keys here: the mask hides the others.
double LatentSpec::megatron_weights(const MixerModel& model, int64_t seq_length) const {
  const double pairs = static_cast<double>(seq_length) * static_cast<double>(query_channels()) / 2;
  return static_cast<double>(parameters(model).weights) + pairs;
}

}  // namespace witan
