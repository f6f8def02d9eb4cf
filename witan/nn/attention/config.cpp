#include "witan/nn/attention/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/kernels/attention/rope.h"

namespace witan {
namespace {

constexpr const char* kNone = "none";

// Reads "4096", "4096,0", "(4096, 0)" or "[4096,0]" as (left, right), the numbers of tokens that a token sees before
// and after itself; -1: all of them.
std::optional<std::pair<int64_t, int64_t>> read_window(const std::string& text) {
  std::string plain = text;
  std::erase(plain, ' ');
  for (const auto& [open, close] : {std::pair{'(', ')'}, std::pair{'[', ']'}})
    if (plain.size() >= 2 && plain.front() == open && plain.back() == close) plain = plain.substr(1, plain.size() - 2);
  const char *at = plain.data(), *const end = at + plain.size();
  int64_t left = 0, right = 0;
  auto read = std::from_chars(at, end, left);
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == ',') read = std::from_chars(read.ptr + 1, end, right);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return std::pair{left, right};
}

// The window as in AttentionSpec::window.
int64_t window_of(const std::string& window_size) {
  if (window_size == kNone) return 0;
  const auto refuse = [&](const char* why) { throw ConfigError(cat("window_size = ", window_size, ": ", why)); };
  const auto window = read_window(window_size);
  if (!window) refuse("must be how many earlier tokens a token sees, as in 4095 or 4095,0, or none for all of them");
  const auto [left, right] = *window;
  if (right != 0) refuse("tokens never see later ones: the second number must be 0, as in 4095,0");
  if (left == -1) return 0;
  if (left < 1) refuse("a window must reach back to at least 1 earlier token; set it to none for full attention");
  if (left > (int64_t{1} << 40)) refuse("no sequence is that long; set it to none for full attention");
  return left + 1;
}

// The layers that an optional pattern selects: those whose entry of a list is 1, or each N-th; none without a pattern.
std::vector<bool> singled_out(const char* key, const std::string& pattern, int64_t num_layers) {
  if (pattern == kNone) return std::vector<bool>(static_cast<size_t>(num_layers), false);
  return choose_layers(key, pattern, num_layers, OfPeriod::last);
}

bool all(const std::vector<bool>& layers) {
  return std::ranges::find(layers, false) == layers.end();
}

// For an integer N, each N-th layer has full attention; for a list, those with a 0.
std::vector<bool> windowed_layers(const AttentionConfig& config, int64_t num_layers) {
  const std::string& freq = config.window_attn_skip_freq;
  std::vector<bool> chosen = singled_out("window_attn_skip_freq", freq, num_layers);
  if (freq.find('[') == std::string::npos) chosen.flip();
  return chosen;
}

using RopeScaling = kernels::RopeScaling;

constexpr const char* kYarn = "yarn";
constexpr const char* kUnroundedYarn = "yarn_unrounded";

bool is_yarn(const AttentionConfig& config) {
  return config.rope_scaling_type == kYarn || config.rope_scaling_type == kUnroundedYarn;
}

// YaRN's multiplier of queries and keys, since attention over a longer context is less sharp.
double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// The ramp begins and ends at whole pairs, which is the default of DeepSeek, Megatron-LM and Hugging Face.
void round_ramp(kernels::RopeArgs& rope) {
  rope.scaling.beta_fast = rope_turns_of(rope, std::floor(rope_pair_of(rope, rope.scaling.beta_fast)));
  rope.scaling.beta_slow = rope_turns_of(rope, std::ceil(rope_pair_of(rope, rope.scaling.beta_slow)));
}

constexpr const char *kLongRope = "longrope", *kDynamic = "dynamic";

void scale_longrope(kernels::RopeArgs& rope, const AttentionConfig& config) {
  rope.scaling.type = RopeScaling::Type::longrope;
  rope.scaling.factors = config.rope_long_context ? read_rope_factors("rope_long_factors", config.rope_long_factors)
                                                  : read_rope_factors("rope_short_factors", config.rope_short_factors);
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  rope.scaling.magnitude = config.rope_attention_factor > 0
                               ? config.rope_attention_factor
                               : std::sqrt(1 + std::log(config.rotary_scaling_factor) / std::log(original));
}

// The pairs of `dims` channels that turn. The share is rounded down, as in transformers.
int64_t turning_pairs(const AttentionConfig& config, int64_t dims) {
  if (!config.rotary_proportional) return dims / 2;
  return static_cast<int64_t>(std::floor(config.rotary_percent * static_cast<double>(dims) / 2));
}

// For heads of which `dims` channels rotate.
kernels::RopeArgs rope_args(const AttentionConfig& config, int64_t dims) {
  kernels::RopeArgs rope{config.rotary_base, dims, config.rotary_interleaved, false};
  rope.half_truncated = config.rotary_half_truncated;
  if (const int64_t turning = turning_pairs(config, dims); turning < dims / 2) rope.turning_pairs = turning;
  if (config.rope_scaling_type == kNone || config.rope_scaling_type == kDynamic || dims == 0) return rope;
  rope.scaling.factor = config.rotary_scaling_factor;
  if (config.rope_scaling_type == "linear") {
    rope.scaling.type = RopeScaling::Type::linear;
    return rope;
  }
  rope.scaling.original_positions = config.original_max_position_embeddings;
  if (config.rope_scaling_type == kLongRope) {
    scale_longrope(rope, config);
    return rope;
  }
  if (config.rope_scaling_type == "llama3") {
    rope.scaling.type = RopeScaling::Type::llama3;
    rope.scaling.low_freq_factor = config.rope_low_freq_factor;
    rope.scaling.high_freq_factor = config.rope_high_freq_factor;
    return rope;
  }
  rope.scaling.type = RopeScaling::Type::yarn;
  rope.scaling.beta_fast = config.beta_fast;
  rope.scaling.beta_slow = config.beta_slow;
  rope.scaling.magnitude = yarn_magnitude(config.rotary_scaling_factor, config.mscale) /
                           yarn_magnitude(config.rotary_scaling_factor, config.mscale_all_dim);
  if (config.rope_scaling_type == kYarn) round_ramp(rope);
  return rope;
}

void validate_rope_scaling(const AttentionConfig& config) {
  const std::string& type = config.rope_scaling_type;
  if (type == kNone) {
    require<ConfigError>(config.rotary_scaling_factor == 1, "rotary_scaling_factor = ", config.rotary_scaling_factor,
                         " stretches nothing, as rope_scaling_type = none; set it to yarn, llama3, linear, longrope or "
                         "dynamic");
    return;
  }
  require<ConfigError>(config.rotates(), "rope_scaling_type = ", type,
                       " changes rotary positions, and position_embedding_type = ", config.position_embedding_type,
                       " has none: set it to rope, or rope_scaling_type to none");
  require<ConfigError>(!is_yarn(config) || config.beta_fast >= config.beta_slow, "beta_fast = ", config.beta_fast,
                       " must not be below beta_slow = ", config.beta_slow,
                       ": dimensions with more rotations than beta_fast keep their frequency; YaRN uses 32 and 1");
  require<ConfigError>(type != "llama3" || config.rope_high_freq_factor > config.rope_low_freq_factor,
                       "rope_high_freq_factor = ", config.rope_high_freq_factor,
                       " must be above rope_low_freq_factor = ", config.rope_low_freq_factor,
                       "; Llama 3.1 uses 4 and 1");
}

// For heads of which `dims` channels rotate.
void validate_longrope(const AttentionConfig& config, double dims) {
  if (config.rope_scaling_type != kLongRope) return;
  require<ConfigError>(config.original_max_position_embeddings > 1,
                       "original_max_position_embeddings = 1: rope_scaling_type = longrope needs the positions of the "
                       "context before; set at least 2");
  for (const auto& [key, list] :
       {std::pair{"rope_short_factors", &config.rope_short_factors}, {"rope_long_factors", &config.rope_long_factors}})
    require<ConfigError>(static_cast<double>(read_rope_factors(key, *list).size()) * 2 == dims, key, " = ",
                         clipped(*list), ": rope_scaling_type = longrope needs a factor for each of ", dims / 2,
                         " pairs of channels, as in [1.0,1.5]");
}

// Gemma 3 (arXiv:2503.19786) and OLMo 3 give windowed layers other rotary positions.
void validate_windowed_rope(const AttentionConfig& config) {
  const double base = config.window_rotary_base;
  require<ConfigError>(base == 0 || base > 1, "window_rotary_base = ", base,
                       " must be above 1, as rotary_base; 0 takes rotary_base itself");
  require<ConfigError>(!config.rotary_proportional || !config.rotary_half_truncated,
                       "rotary_proportional = true and rotary_half_truncated = true choose the pairs that turn twice; "
                       "set one of them");
}

constexpr const char* kLatent = "multi_latent_attention = true: ";

void validate_latent(const AttentionConfig& config) {
  const auto need = [](bool fine, const auto&... why) { require<ConfigError>(fine, kLatent, why...); };
  need(config.kv_channels == 0, "kv_channels = ", config.kv_channels,
       " has no meaning; set qk_head_dim and qk_pos_emb_head_dim");
  need(config.rotary_percent == 1, "rotary_percent = ", config.rotary_percent,
       " has no meaning: qk_pos_emb_head_dim channels of each head rotate");
  need(config.qk_pos_emb_head_dim % 2 == 0, "qk_pos_emb_head_dim = ", config.qk_pos_emb_head_dim,
       " must be even: rope rotates pairs of channels");
  need(!config.qk_layernorm_full_width, "latents are normalised, and no heads are; drop qk_layernorm_full_width");
  need(!config.qk_layernorm_after_rope, "latents are normalised, and no heads are; drop qk_layernorm_after_rope");
  need(!config.qk_l2_norm, "latents are normalised, and no heads are; drop qk_l2_norm");
  need(!config.v_l2_norm, "latents are normalised, and no heads are; drop v_l2_norm");
  need(!config.attention_k_eq_v, "keys and values come from one latent; drop attention_k_eq_v");
  need(!config.rotary_proportional, "all of qk_pos_emb_head_dim rotate; drop rotary_proportional");
  need(config.window_kv_channels == 0 && config.window_num_query_groups == 0 && config.window_rotary_percent == 0,
       "its layers have heads of one size; drop window_kv_channels, window_num_query_groups and window_rotary_percent");
  need(config.clip_qkv == 0, "clip_qkv = ", config.clip_qkv, " does not apply to latent attention; set it to 0");
  need(config.softmax_type == "vanilla", "softmax_type = ", config.softmax_type,
       " does not apply to latent attention; set it to vanilla");
  need(config.no_attention_freq == kNone, "no_attention_freq = ", config.no_attention_freq,
       " does not apply to latent attention; set it to none");
  need(!config.attention_output_gate, "its output has no gate; set attention_output_gate = false");
  need(!config.add_qkv_bias, "its projections have no biases; set add_qkv_bias = false");
  need(!config.add_attention_bias, "its projections have no biases; set add_attention_bias = false");
}

// The spec of a layer with rotary positions.
LatentSpec latent_layer(const AttentionConfig& config) {
  const int64_t still = config.latent_qk_head_dim, turning = config.qk_pos_emb_head_dim;
  LatentSpec spec;
  spec.num_attention_heads = spec.num_query_groups = config.num_attention_heads;
  spec.qk_head_dim = still + turning;
  spec.v_head_dim = config.v_head_dim > 0 ? config.v_head_dim : still;
  spec.rope = rope_args(config, config.rotates() ? turning : 0);
  const double unscaled =
      config.softmax_scale > 0 ? config.softmax_scale : 1 / std::sqrt(static_cast<double>(spec.qk_head_dim));
  const double sharper = is_yarn(config) ? yarn_magnitude(config.rotary_scaling_factor, config.mscale_all_dim) : 1;
  spec.scale = unscaled * sharper * sharper;
  spec.q_rank = config.q_lora_rank;
  spec.kv_rank = config.kv_lora_rank;
  spec.nope_head_dim = still;
  spec.rope_head_dim = turning;
  return spec;
}

QkNorm qk_norm_of(const AttentionConfig& config) {
  if (config.qk_l2_norm) return QkNorm::l2;
  if (!config.qk_layernorm) return QkNorm::none;
  if (config.qk_layernorm_after_rope) return QkNorm::per_head_rotated;
  return config.qk_layernorm_full_width ? QkNorm::full_width : QkNorm::per_head;
}

// The channels of a head that rotate, not yet known to be a whole number.
double rotated_channels(const AttentionConfig& config, int64_t hidden_size) {
  if (config.multi_latent_attention) return static_cast<double>(config.qk_pos_emb_head_dim);
  const auto channels = static_cast<double>(config.qk_head_dim(hidden_size));
  return config.rotary_proportional ? channels : channels * config.rotary_percent;
}

MultiHeadSpec multi_head_layer(const AttentionConfig& config, int64_t hidden_size) {
  MultiHeadSpec spec;
  spec.num_attention_heads = config.num_attention_heads;
  spec.num_query_groups = config.num_query_groups;
  spec.qk_head_dim = config.qk_head_dim(hidden_size);
  spec.v_head_dim = config.value_head_dim(hidden_size);
  spec.rope = rope_args(config, config.rotates() ? std::llround(rotated_channels(config, hidden_size)) : 0);
  spec.scale = config.softmax_scale;
  spec.qk_norm = qk_norm_of(config);
  spec.v_norm = config.v_l2_norm;
  spec.values_from_keys = config.attention_k_eq_v;
  spec.clip_qkv = config.clip_qkv;
  spec.sinks = config.softmax_type == "learnable";
  spec.output_gate = config.attention_output_gate;
  spec.qkv_bias = config.add_qkv_bias || config.add_attention_bias;
  spec.output_bias = config.add_attention_bias;
  return spec;
}

// Rules that apply to one layer.
struct LayerRules {
  int64_t window = 0;
  bool no_rope = false;
  int64_t scale_divisor = 0;  // of logits; 0: none
};

template <class Spec>
Spec with_rules(Spec spec, const AttentionConfig& config, const LayerRules& rules) {
  spec.dropout = config.attention_dropout;
  spec.window = rules.window;
  if (rules.no_rope) spec.rope.dims = 0;
  if (rules.scale_divisor == 0) return spec;
  if (spec.scale == 0) spec.scale = 1 / std::sqrt(static_cast<double>(spec.qk_head_dim));
  spec.scale /= static_cast<double>(rules.scale_divisor);
  return spec;
}

// Checks the heads of attention that is not latent.
void validate_groups(const AttentionConfig& config, int64_t hidden_size) {
  const int64_t heads = config.num_attention_heads, groups = config.num_query_groups;
  require<ConfigError>(heads % groups == 0, "num_query_groups = ", groups,
                       " does not divide num_attention_heads = ", heads);
  require<ConfigError>(config.kv_channels != 0 || hidden_size % heads == 0, "num_attention_heads = ", heads,
                       " does not divide hidden_size = ", hidden_size, "; set kv_channels");
  require<ConfigError>(config.rotary_percent <= 1, "rotary_percent = ", config.rotary_percent,
                       ": a share is at most 1");
  const double rotated = rotated_channels(config, hidden_size);
  require<ConfigError>(!config.rotates() || (std::fmod(rotated, 2) == 0 && rotated >= 2),
                       "rope rotates pairs of channels: the head size ", config.qk_head_dim(hidden_size),
                       config.rotary_proportional ? "" : cat(" times rotary_percent ", config.rotary_percent),
                       " must be even");
  require<ConfigError>(
      !config.rotates() || turning_pairs(config, std::llround(rotated)) > 0, "rotary_percent = ", config.rotary_percent,
      " with rotary_proportional = true turns no pair of a head of ", config.qk_head_dim(hidden_size), " channels");
  require<ConfigError>(
      !config.attention_k_eq_v || config.value_head_dim(hidden_size) == config.qk_head_dim(hidden_size),
      "attention_k_eq_v = true makes values as large as keys, of ", config.qk_head_dim(hidden_size),
      " channels, and v_head_dim = ", config.v_head_dim, " not; set it to 0");
}

// Checks the variants from modded-nanogpt (Jordan et al., 2024).
void validate_variants(const AttentionConfig& config, int64_t hidden_size, int64_t num_layers) {
  const double rotated = rotated_channels(config, hidden_size);
  require<ConfigError>(!config.qk_l2_norm || !config.qk_layernorm,
                       "qk_l2_norm = true and qk_layernorm = true normalise queries and keys twice; set one of them");
  const std::string& absent = config.no_attention_freq;
  require<ConfigError>(!all(singled_out("no_attention_freq", absent, num_layers)), "no_attention_freq = ", absent,
                       " leaves no layer with attention, so that no token would see another; keep it in some layer");
  require<ConfigError>(
      !config.rotary_half_truncated || (config.rotates() && std::fmod(rotated, 4) == 0 && rotated >= 8),
      "rotary_half_truncated = true rotates half of the pairs of channels, at least two: it needs "
      "position_embedding_type = rope and a multiple of 4 channels that rotate, at least 8, but there "
      "are ",
      config.rotates() ? rotated : 0);
  require<ConfigError>(!config.rotary_half_truncated || config.rope_scaling_type == kNone,
                       "rotary_half_truncated = true has its own frequencies, which rope_scaling_type = ",
                       config.rope_scaling_type, " cannot scale; set rope_scaling_type = none");
}

}  // namespace

Fields AttentionConfig::fields() {
  return {
      Field{"num_attention_heads", &num_attention_heads, "Number of attention heads (of queries)"}.at_least(1),
      Field{"num_query_groups", &num_query_groups,
            "Number of key/value heads (grouped-query attention); must divide num_attention_heads"}
          .at_least(1),
      Field{"multi_latent_attention", &multi_latent_attention,
            "Multi-head latent attention: keys and values of all heads come from one latent; num_query_groups has no "
            "meaning then"},
      Field{"q_lora_rank", &q_lora_rank, "Latent attention: size of the latent of queries; 0: queries have no latent"}
          .between(0, 1 << 20),
      Field{"kv_lora_rank", &kv_lora_rank, "Latent attention: size of the latent of keys and values"}.between(1,
                                                                                                              1 << 20),
      Field{"qk_head_dim", &latent_qk_head_dim,
            "Latent attention: channels of each query and key head that do not rotate"}
          .between(1, 1 << 20),
      Field{"qk_pos_emb_head_dim", &qk_pos_emb_head_dim,
            "Latent attention: channels of each query head that rotate, and of the key that all heads share"}
          .between(2, 1 << 20),
      Field{"kv_channels", &kv_channels, "Channels of each query and key head; 0: hidden_size / num_attention_heads"}
          .between(0, 1 << 20),
      Field{"v_head_dim", &v_head_dim,
            "Channels of each value head; 0: as many as kv_channels, or as qk_head_dim of latent attention"}
          .between(0, 1 << 20),
      Field{"window_size", &window_size,
            "Sliding window attention: how many earlier tokens each token sees, as in 4095 or 4095,0; none: all of "
            "them"},
      Field{"window_attn_skip_freq", &window_attn_skip_freq,
            "Layers with full attention although window_size is set: N for every N-th layer, or a list, 1 for windowed "
            "and 0 for full, as in ([1]*3+[0])*2; none: no layer"},
      Field{"position_embedding_type", &position_embedding_type,
            "Positions: rotary (RoPE), learned and added to the token embedding, or none"}
          .one_of({"rope", "learned_absolute", "none"}),
      Field{"max_position_embeddings", &max_position_embeddings, "Number of learned positions; 0: seq_length"}.between(
          0, 1 << 24),
      Field{"attention_dropout", &attention_dropout, "Dropout probability of attention probabilities"}.at_least(0),
      Field{"qk_layernorm", &qk_layernorm,
            "Normalize each head of queries and of keys, as normalization says, before they rotate"},
      Field{"qk_layernorm_full_width", &qk_layernorm_full_width,
            "With qk_layernorm: normalize all heads of a token together, with a weight of their full width"},
      Field{"qk_layernorm_after_rope", &qk_layernorm_after_rope,
            "With qk_layernorm: normalize heads after they rotate instead of before"},
      Field{"clip_qkv", &clip_qkv, "Clamp queries, keys and values to [-clip_qkv, clip_qkv]; 0: no clamp"}.at_least(0),
      Field{"softmax_type", &softmax_type,
            "Softmax of attention: over the keys (vanilla), or with a learnable logit for each head that adds no value "
            "(attention sinks)"}
          .one_of({"vanilla", "learnable"}),
      Field{"attention_output_gate", &attention_output_gate,
            "Multiply the output of attention by a gate, the sigmoid of a projection of the layer's input"},
      Field{"add_qkv_bias", &add_qkv_bias,
            "Give the projections of queries, keys and values a bias, even if add_bias_linear = false"},
      Field{"add_attention_bias", &add_attention_bias,
            "Give all projections of attention, the output's too, a bias, even if add_bias_linear = false"},
      Field{"rotary_base", &rotary_base, "Base of the rotary frequencies"}.above(1),
      Field{"rotary_percent", &rotary_percent, "Fraction of the channels of a query or key head that rotate"}.above(0),
      Field{"rotary_proportional", &rotary_proportional,
            "Pair all channels of a head, of which the first rotary_percent of the pairs turn, by frequencies of the "
            "whole head (proportional RoPE)"},
      Field{"rotary_interleaved", &rotary_interleaved, "Rotate pairs of neighbouring channels instead of halves"},
      Field{"no_rope_freq", &no_rope_freq,
            "Layers without rotary positions: N for every N-th layer, or a list, 1 for a layer without, as in "
            "([0]*3+[1])*2; none: all layers have them"},
      Field{"rope_scaling_type", &rope_scaling_type,
            "Scaling of rotary frequencies to longer contexts: linear, as in Llama 3.1, YaRN, YaRN with a ramp whose "
            "ends are not rounded to whole pairs (gpt-oss), LongRoPE (Phi-3), or dynamic, which changes nothing within "
            "the original context and supports no longer one"}
          .one_of({kNone, "linear", "llama3", kYarn, kUnroundedYarn, kLongRope, kDynamic}),
      Field{"rotary_scaling_factor", &rotary_scaling_factor,
            "Ratio of the extended to the original context length, for rope_scaling_type"}
          .at_least(1),
      Field{"original_max_position_embeddings", &original_max_position_embeddings,
            "Length of the original context, for llama3, yarn, longrope and dynamic"}
          .between(1, int64_t{1} << 40),
      Field{"beta_fast", &beta_fast,
            "yarn: dimensions with more rotations than this in the original context are not interpolated"}
          .above(0),
      Field{"beta_slow", &beta_slow,
            "yarn: dimensions with fewer rotations than this in the original context are fully interpolated"}
          .above(0),
      Field{"mscale", &mscale,
            "yarn: scales sines and cosines by (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1)"}
          .at_least(0),
      Field{"mscale_all_dim", &mscale_all_dim,
            "yarn: see mscale; multi-head latent attention multiplies logits by the square of the divisor"}
          .at_least(0),
      Field{"rope_low_freq_factor", &rope_low_freq_factor,
            "llama3: dimensions with fewer rotations than this in the original context are fully interpolated"}
          .above(0),
      Field{"rope_high_freq_factor", &rope_high_freq_factor,
            "llama3: dimensions with more rotations than this in the original context are not interpolated"}
          .above(0),
      Field{"rope_short_factors", &rope_short_factors,
            "longrope: divisor of each pair's frequency within the original context, as in [1.0,1.5]"},
      Field{"rope_long_factors", &rope_long_factors,
            "longrope: divisor of each pair's frequency in longer sequences (rope_long_context)"},
      Field{"rope_attention_factor", &rope_attention_factor,
            "longrope: multiplier of sines and cosines; 0: sqrt(1 + ln rotary_scaling_factor / ln "
            "original_max_position_embeddings)"}
          .at_least(0),
      Field{"rope_long_context", &rope_long_context,
            "longrope: use rope_long_factors, for sequences longer than original_max_position_embeddings, which are "
            "refused otherwise"},
      Field{"window_kv_channels", &window_kv_channels,
            "Channels of each query, key and value head in layers with a sliding window; 0: kv_channels"}
          .between(0, 1 << 20),
      Field{"window_num_query_groups", &window_num_query_groups,
            "Number of key/value heads in layers with a sliding window; 0: num_query_groups"}
          .at_least(0),
      Field{"window_rotary_percent", &window_rotary_percent,
            "Fraction of the channels that rotate in layers with a sliding window; 0: rotary_percent"}
          .at_least(0),
      Field{"window_rotary_base", &window_rotary_base,
            "Base of the rotary frequencies of layers with a sliding window; 0: rotary_base"}
          .at_least(0),
      Field{"window_rope_scaling", &window_rope_scaling, "Apply rope_scaling_type to layers with a sliding window too"},
      Field{"rotary_half_truncated", &rotary_half_truncated,
            "Rotate only half of the pairs of channels, by frequencies from 1 down to 1 / rotary_base"},
      Field{"qk_l2_norm", &qk_l2_norm,
            "Divide each head's queries and keys by their root mean square, without a learned weight"},
      Field{"v_l2_norm", &v_l2_norm, "Divide each head's values by their root mean square, without a learned weight"},
      Field{"attention_k_eq_v", &attention_k_eq_v,
            "Make values from the projection of keys, before their norm and rotation, in layers without a sliding "
            "window"},
      Field{"softmax_scale", &softmax_scale, "Multiplier of the products of queries and keys; 0: 1 / sqrt(kv_channels)"}
          .at_least(0),
      Field{"scale_attn_by_inverse_layer_idx", &scale_attn_by_inverse_layer_idx,
            "Also divide the products of queries and keys by the layer's number, counted from 1"},
      Field{"no_attention_freq", &no_attention_freq,
            "Layers without attention: N for every N-th layer, or a list, 1 for a layer without; none: all layers have "
            "it"},
  };
}

void AttentionConfig::validate(int64_t hidden_size, int64_t num_layers) const {
  require<ConfigError>(num_attention_heads > 0 && num_query_groups > 0, "num_attention_heads = ", num_attention_heads,
                       " and num_query_groups = ", num_query_groups, " must be at least 1");
  require<ConfigError>(attention_dropout < 1, "attention_dropout = ", attention_dropout,
                       " drops everything; use a probability below 1, such as 0.1");
  require<ConfigError>(qk_layernorm || !qk_layernorm_full_width,
                       "qk_layernorm_full_width = true says how queries and keys are normalized, and qk_layernorm = "
                       "false that they are not: set qk_layernorm = true");
  require<ConfigError>(!qk_layernorm_after_rope || (qk_layernorm && !qk_layernorm_full_width),
                       "qk_layernorm_after_rope = true needs qk_layernorm = true, and heads that are normalized one by "
                       "one: leave qk_layernorm_full_width out");
  const bool has_window = window_of(window_size) != 0;
  if (multi_latent_attention)
    validate_latent(*this);
  else
    validate_groups(*this, hidden_size);
  if (has_window && !multi_latent_attention) validate_groups(of_windowed_layers(), hidden_size);
  require<ConfigError>(has_window || window_attn_skip_freq == kNone, "window_attn_skip_freq = ", window_attn_skip_freq,
                       " chooses among layers with a window, and window_size = ", window_size,
                       " gives none: set window_size, as 4095,0");
  std::vector<bool> full = windowed_layers(*this, num_layers);
  full.flip();
  require<ConfigError>(!has_window || !all(full), "window_attn_skip_freq = ", window_attn_skip_freq,
                       " leaves no layer a window; full attention in every layer is window_size = none");
  require<ConfigError>(rotates() || no_rope_freq == kNone, "no_rope_freq = ", no_rope_freq,
                       " chooses among layers with rotary positions, and position_embedding_type = ",
                       position_embedding_type, " has none: set it to rope, or no_rope_freq to none");
  require<ConfigError>(!all(singled_out("no_rope_freq", no_rope_freq, num_layers)), "no_rope_freq = ", no_rope_freq,
                       " leaves no layer its rotary positions; that is position_embedding_type = none");
  validate_rope_scaling(*this);
  for (const AttentionConfig& of_layers : {*this, has_window ? of_windowed_layers() : *this}) {
    validate_longrope(of_layers, rotated_channels(of_layers, hidden_size));
    validate_variants(of_layers, hidden_size, num_layers);
  }
  validate_windowed_rope(*this);
}

std::vector<MixerSpec> AttentionConfig::layers(int64_t hidden_size, int64_t num_layers) const {
  const int64_t window = window_of(window_size);
  const std::vector<bool> windowed = windowed_layers(*this, num_layers),
                          no_rope = singled_out("no_rope_freq", no_rope_freq, num_layers),
                          absent = singled_out("no_attention_freq", no_attention_freq, num_layers);
  const AttentionConfig with_window = of_windowed_layers();
  std::vector<MixerSpec> layers;
  for (size_t i = 0; i < static_cast<size_t>(num_layers); ++i) {
    const bool sees_window = window > 0 && windowed[i];
    const AttentionConfig& config = sees_window ? with_window : *this;
    const LayerRules rules{.window = sees_window ? window : 0,
                           .no_rope = no_rope[i],
                           .scale_divisor = scale_attn_by_inverse_layer_idx ? static_cast<int64_t>(i) + 1 : 0};
    if (absent[i])
      layers.emplace_back(NoMixer());
    else if (multi_latent_attention)
      layers.emplace_back(with_rules(latent_layer(config), config, rules));
    else
      layers.emplace_back(with_rules(multi_head_layer(config, hidden_size), config, rules));
  }
  return layers;
}

std::vector<double> read_rope_factors(const char* key, const std::string& list) {
  if (list == kNone) return {};
  const auto check = [&](bool fine) {
    require<ConfigError>(fine, key, " = ", clipped(list), ": must be a list of positive numbers, as in [1.0,1.5]");
  };
  std::string plain = list;
  std::erase(plain, ' ');
  check(plain.size() > 2 && plain.front() == '[' && plain.back() == ']');
  std::vector<double> factors;
  const char *at = plain.data(), *const end = at + plain.size();
  do {  // after a bracket or a comma
    const auto read = std::from_chars(at + 1, end, factors.emplace_back());
    check(read.ec == std::errc() && factors.back() > 0 && std::isfinite(factors.back()));
    at = read.ptr;
  } while (*at == ',');
  check(at + 1 == end);
  return factors;
}

std::optional<int64_t> AttentionConfig::most_positions() const {
  if (learned_positions()) return max_position_embeddings;
  if (rope_scaling_type == kDynamic || (rope_scaling_type == kLongRope && !rope_long_context))
    return original_max_position_embeddings;
  return std::nullopt;
}

const char* AttentionConfig::most_positions_reason() const {
  if (learned_positions()) return "the number of positions that the model has learned";
  return rope_scaling_type == kDynamic ? "beyond which dynamic scaling gives each sequence frequencies of its own"
                                       : "beyond which longrope rotates by other factors: those of a run that is "
                                         "trained with rope_long_context = true";
}

AttentionConfig AttentionConfig::of_windowed_layers() const {
  AttentionConfig config = *this;
  config.attention_k_eq_v = false;
  if (window_kv_channels > 0) config.kv_channels = window_kv_channels;
  if (window_num_query_groups > 0) config.num_query_groups = window_num_query_groups;
  if (window_rotary_percent > 0) config.rotary_percent = window_rotary_percent;
  if (window_rotary_base > 0) config.rotary_base = window_rotary_base;
  if (!window_rope_scaling) {
    config.rope_scaling_type = kNone;
    config.rotary_scaling_factor = 1;
  }
  return config;
}

}  // namespace witan
