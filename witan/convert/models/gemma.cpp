// Gemma 3: norms on both sides of attention and MLP, whose weights are centred at zero, an embedding times the square
// root of its width, and rotations that differ between layers with a window and the others. Gemma 4: other weights of
// norms, heads that differ between these layers too, and experts beside a dense MLP or, in its small models, keys and
// values that late layers borrow and embeddings of tokens for each layer.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kSliding = "sliding_attention", *kGlobal = "full_attention";
constexpr int64_t kGemmaPeriod = 6;            // every sixth layer has full attention, unless a file says otherwise
constexpr int64_t kGemmaGlobalChannels = 512;  // of heads of layers with full attention, unless a file says otherwise

constexpr TensorRule kBothNormRules[] = {
    {"attention_norm.weight", "layers.{l}.input_layernorm.weight"},
    {"attention_post_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"mlp_norm.weight", "layers.{l}.pre_feedforward_layernorm.weight"},
    {"mlp_post_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"},
};

// ---- config.json

double embedding_scale(int64_t width) {
  return std::sqrt(static_cast<double>(width));
}

void read_gemma_activation(HfReader& in) {
  read_hf_activation(in.keys, in.to, "hidden_activation", "gelu_pytorch_tanh", true);
}

void read_final_cap(HfReader& in) {
  if (in.keys.find("final_logit_softcapping")) in.to.set("logit_soft_cap", in.bound("final_logit_softcapping"));
}

void write_gemma_sizes(HfWriter& to) {
  to.sizes();
  to.out["hidden_activation"] = to.out["hidden_act"];
  to.out.erase("hidden_act");
  to.out["attention_bias"] = to.has_attention_biases();
  to.layer_types();
  to.sliding_window();
  const double cap = to.model.logit_soft_cap;
  to.out["final_logit_softcapping"] = cap > 0 ? HfWriter::Out(cap) : HfWriter::Out();
}

void read_gemma3(HfReader& in) {
  in.sizes();
  read_gemma_activation(in);
  in.dense();
  in.to.set("norm_placement", "both");
  in.to.set("apply_layernorm_1p", true);
  in.to.set("qk_layernorm", true);
  in.to.set("embedding_multiplier", embedding_scale(in.hidden));
  const int64_t scalar = in.keys.integer("query_pre_attn_scalar");
  if (scalar == 0) in.keys.refuse("query_pre_attn_scalar", "logits are divided by its square root");
  if (scalar != in.to.model().attention.qk_head_dim(in.hidden))
    in.to.set("softmax_scale", 1 / std::sqrt(static_cast<double>(scalar)));
  const int64_t period = in.keys.integer("sliding_window_pattern", kGemmaPeriod);
  in.keys.find("_sliding_window_pattern");  // of the layer_types that stand beside it
  if (period == 0) in.keys.refuse("sliding_window_pattern", "must be a whole number above 0");
  const std::vector<bool> windowed = in.windowed_layers([&](int64_t layer) { return (layer + 1) % period != 0; });
  in.window(in.keys.nullable_integer("sliding_window").value_or(0), windowed);
  read_hf_rope_of_layer_types(in.keys, in.to, in.model.positions, windowed, in.keys.number("rope_local_base_freq"));
  read_final_cap(in);
  in.keys.only("attn_logit_softcapping", nullptr, "transformers' Gemma 3 passes over it");
  in.keys.only("use_bidirectional_attention", false, "tokens see earlier tokens only");
  in.attention_bias();
  in.no_mlp_bias();
}

void write_gemma3(HfWriter& to) {
  write_gemma_sizes(to);
  to.out["rope_parameters"] = hf_rope_of_layer_types(to.model.attention);
  const double scale = to.model.attention.softmax_scale;
  to.out["query_pre_attn_scalar"] = scale > 0 ? std::llround(1 / (scale * scale)) : to.out["head_dim"].get<int64_t>();
}

// ---- Gemma 4

constexpr TensorRule kGemma4Rules[] = {
    {"layer_scalar", "layers.{l}.layer_scalar"},
    {"mlp_out_norm.weight", "layers.{l}.post_feedforward_layernorm_1.weight"},
    {"moe_norm.weight", "layers.{l}.pre_feedforward_layernorm_2.weight"},
    {"moe_out_norm.weight", "layers.{l}.post_feedforward_layernorm_2.weight"},
    {"moe.router.weight", "layers.{l}.router.proj.weight"},
    {"moe.router.input_norm.weight", "layers.{l}.router.scale"},
    {"moe.router.expert_scale", "layers.{l}.router.per_expert_scale"},
    {.witan = "moe.experts.gate_up_proj", .other = "layers.{l}.experts.gate_up_proj", .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.experts.down_proj", .storage = ExpertStorage::fused},
    {"per_layer_embedding.weight", "embed_tokens_per_layer.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_projection.weight"},
    {"per_layer_projection_norm.weight", "per_layer_projection_norm.weight"},
    {"per_layer_input_gate.weight", "layers.{l}.per_layer_input_gate.weight"},
    {"per_layer_projection.weight", "layers.{l}.per_layer_projection.weight"},
    {"per_layer_norm.weight", "layers.{l}.post_per_layer_input_norm.weight"},
};

constexpr const char *kOverrides = "per_layer_config", *kRotations = "rope_parameters";
constexpr const char *kOwnChannels = "hidden_size_per_layer_input", *kOwnRows = "vocab_size_per_layer_input";

struct GemmaHeads {
  int64_t channels, groups;
  bool operator==(const GemmaHeads&) const = default;
};

// The heads of each layer. Published files have global_head_dim and num_global_key_value_heads, for layers with full
// attention; transformers writes these keys as an object with the keys of each such layer.
std::vector<GemmaHeads> heads_of_layers(HfReader& in, const std::vector<bool>& windowed) {
  const GemmaHeads plain{in.keys.integer("head_dim"), in.keys.integer("num_key_value_heads")};
  std::vector<GemmaHeads> heads(windowed.size(), plain);
  const bool overrides = in.keys.has(kOverrides) || in.keys.is_null(kOverrides);
  GemmaHeads global{in.keys.integer("global_head_dim", kGemmaGlobalChannels), plain.groups};
  if (const auto groups = in.keys.nullable_integer("num_global_key_value_heads");
      groups && in.keys.flag("attention_k_eq_v"))
    global.groups = *groups;
  for (size_t layer = 0; layer < heads.size(); ++layer)
    if (!overrides && !windowed[layer]) heads[layer] = global;
  const Json* const of_layers = in.keys.find(kOverrides);
  if (of_layers == nullptr) return heads;
  if (!of_layers->is_object()) in.keys.refuse(kOverrides, "must be an object with the keys of layers");
  for (const auto& [number, object] : of_layers->items()) {
    size_t layer = 0;  // transformers pads numbers with zeros
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), layer);
    if (error != std::errc() || end != number.data() + number.size() || layer >= heads.size())
      in.keys.refuse(kOverrides, cat(clipped(number), " is not the number of a layer"));
    HfKeys keys(object, cat(in.keys.where(), ": ", kOverrides, ": ", clipped(number)));
    heads[layer] = {keys.integer("head_dim", plain.channels), keys.integer("num_key_value_heads", plain.groups)};
    keys.finish();
  }
  return heads;
}

// Sets the heads of the two types of layers, each of which must be alike. The last layer has no window.
void read_gemma_heads(HfReader& in, const std::vector<bool>& windowed) {
  const std::vector<GemmaHeads> heads = heads_of_layers(in, windowed);
  const GemmaHeads full = heads.back();
  std::optional<GemmaHeads> of_window;
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    if (windowed[layer] && !of_window) of_window = heads[layer];
    if (heads[layer] != (windowed[layer] ? *of_window : full))
      in.keys.refuse(kOverrides, "layers of one type, with a window or without, have heads of one size in Witan");
  }
  in.to.set("kv_channels", full.channels);
  in.to.set("num_query_groups", full.groups);
  if (!of_window) return;
  if (of_window->channels != full.channels) in.to.set("window_kv_channels", of_window->channels);
  if (of_window->groups != full.groups) in.to.set("window_num_query_groups", of_window->groups);
}

// The rotation of one type of layers.
struct GemmaRotation {
  double base = 0, share = 1, factor = 1;
};
GemmaRotation read_rotation(HfKeys& types, const char* type) {
  const Json* const object = types.find(type);
  if (object == nullptr) types.refuse(type, "transformers needs the rotation of these layers here");
  HfKeys keys(*object, cat(types.where(), ": ", type));
  GemmaRotation rotation{.base = keys.number("rope_theta")};
  const std::string kind = keys.text("rope_type");
  if (kind == "proportional") {
    rotation.share = keys.number("partial_rotary_factor", 1.0);
    rotation.factor = keys.number("factor", 1.0);
  } else if (kind == "default") {
    keys.only("partial_rotary_factor", 1.0, "a rotation of type default turns every channel of a head");
  } else {
    keys.refuse("rope_type", "Witan has Gemma 4's rotations of types default and proportional");
  }
  keys.finish();
  return rotation;
}

void read_gemma4_rotations(HfReader& in, bool some_windowed) {
  const Json* const object = in.keys.find(kRotations);
  HfKeys types(*object, cat(in.keys.where(), ": ", kRotations));
  const GemmaRotation full = read_rotation(types, kGlobal);
  const GemmaRotation windowed = some_windowed ? read_rotation(types, kSliding) : full;
  types.find(kSliding);
  types.finish();
  in.to.set("rotary_base", full.base);
  if (full.share != 1 || windowed.share != 1) in.to.set("rotary_proportional", true);
  if (full.share != 1) in.to.set("rotary_percent", full.share);
  if (full.factor != 1) {
    in.to.set("rope_scaling_type", "linear");
    in.to.set("rotary_scaling_factor", full.factor);
  }
  if (windowed.base != full.base) in.to.set("window_rotary_base", windowed.base);
  if (windowed.share != full.share) in.to.set("window_rotary_percent", windowed.share);
  if (windowed.factor == full.factor) return;
  require<ConfigError>(windowed.factor == 1, types.where(), ": ", kSliding, ": factor = ", windowed.factor,
                       ": frequencies of layers with a window are stretched in Witan as those of ", kGlobal,
                       " or not at all");
  in.to.set("window_rope_scaling", false);
}

void read_gemma4_experts(HfReader& in) {
  if (!in.keys.flag("enable_moe_block")) {
    in.dense();
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) in.keys.find(key);
    return;
  }
  in.experts(in.keys.integer("num_experts"), in.keys.integer("top_k_experts"));
  in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
  for (const char* key :
       {"moe_parallel_mlp", "moe_router_input_norm", "moe_router_expert_scale", "moe_router_pre_softmax"})
    in.to.set(key, true);
  in.to.set("moe_router_norm_topk_prob", "true");
}

void read_borrowed_keys(HfReader& in) {
  const int64_t borrow = in.keys.integer("num_kv_shared_layers");
  const bool wide = in.keys.flag("use_double_wide_mlp");
  if (borrow == 0) return;
  in.to.set("num_kv_shared_layers", borrow);
  if (wide) in.to.set("use_double_wide_mlp", true);
}

// Null is read as 0, as older versions of transformers write it.
void read_embeddings_of_layers(HfReader& in) {
  const int64_t channels = in.keys.is_null(kOwnChannels) ? 0 : in.keys.integer(kOwnChannels);
  const int64_t rows = in.keys.integer(kOwnRows);
  if (channels == 0) return;
  if (rows != in.keys.integer("vocab_size"))
    in.keys.refuse(kOwnRows, "in Witan each of vocab_size tokens has an embedding for each layer");
  in.to.set("hidden_size_per_layer_input", channels);
}

void refuse_gemma4_parts(HfReader& in) {
  // With "vision" only tokens of images see later ones.
  if (const Json* const both = in.keys.find("use_bidirectional_attention"); both != nullptr && *both != "vision")
    in.keys.refuse("use_bidirectional_attention", "tokens see earlier tokens only");
}

void read_gemma4(HfReader& in) {
  in.sizes();
  read_gemma_activation(in);
  refuse_gemma4_parts(in);
  in.to.set("norm_placement", "both");
  for (const char* key : {"qk_layernorm", "v_l2_norm", "layer_scalar"}) in.to.set(key, true);
  in.to.set("softmax_scale", 1.0);
  in.to.set("embedding_multiplier", embedding_scale(in.hidden));
  std::vector<bool> windowed = in.windowed_layers([](int64_t layer) { return (layer + 1) % kGemmaPeriod != 0; });
  if (windowed.empty()) in.keys.refuse("num_hidden_layers", "a model has layers");
  windowed.back() = false;  // as transformers has it, whatever layer_types says
  in.window(in.keys.integer("sliding_window"), windowed);
  if (in.keys.flag("attention_k_eq_v")) in.to.set("attention_k_eq_v", true);
  read_gemma_heads(in, windowed);
  read_gemma4_rotations(in, std::ranges::find(windowed, true) != windowed.end());
  read_gemma4_experts(in);
  read_borrowed_keys(in);
  read_embeddings_of_layers(in);
  if (in.keys.find("final_logit_softcapping")) in.to.set("logit_soft_cap", in.bound("final_logit_softcapping"));
  in.attention_bias();
  in.no_mlp_bias();
}

void read_gemma4_unified(HfReader& in) {
  in.keys.only(kOwnChannels, 0, "transformers' models of this type have no embeddings for each layer");
  read_gemma4(in);
}

HfWriter::Out rotation_out(const AttentionConfig& attention) {
  HfWriter::Out rotation = {{"rope_theta", attention.rotary_base}, {"rope_type", "default"}};
  if (attention.rotary_percent == 1 && attention.rope_scaling_type == "none") return rotation;
  rotation["rope_type"] = "proportional";
  rotation["partial_rotary_factor"] = attention.rotary_percent;
  if (attention.rope_scaling_type != "none") rotation["factor"] = attention.rotary_scaling_factor;
  return rotation;
}

void write_gemma4(HfWriter& to) {
  write_gemma_sizes(to);
  const AttentionConfig &attention = to.model.attention, windowed = attention.of_windowed_layers();
  to.out["head_dim"] = windowed.qk_head_dim(to.model.hidden_size);
  to.out["num_key_value_heads"] = windowed.num_query_groups;
  to.out["global_head_dim"] = attention.qk_head_dim(to.model.hidden_size);
  to.out["num_global_key_value_heads"] = attention.num_query_groups;
  to.out["attention_k_eq_v"] = attention.attention_k_eq_v;
  if (to.out["sliding_window"].is_null()) to.out.erase("sliding_window");
  to.out[kRotations] = {{kGlobal, rotation_out(attention)}, {kSliding, rotation_out(windowed)}};
  to.out["num_kv_shared_layers"] = to.model.num_kv_shared_layers;
  to.out["use_double_wide_mlp"] = to.model.use_double_wide_mlp;
  to.out[kOwnChannels] = to.model.hidden_size_per_layer_input;
  if (to.model.hidden_size_per_layer_input > 0) to.out[kOwnRows] = to.model.vocab_size;
  const MoeConfig& moe = to.model.moe;
  to.out["enable_moe_block"] = moe.num_experts > 0;
  if (moe.num_experts == 0) return;
  to.out["num_experts"] = moe.num_experts;
  to.out["top_k_experts"] = moe.moe_router_topk;
  to.out["moe_intermediate_size"] = to.width_of_expert();
}

// ---- GGUF files

constexpr GgufRule centred_norm(std::string_view witan, std::string_view other) {
  return {.witan = witan, .other = other, .values = GgufValues::plus_one};
}
constexpr GgufRule kGgufGemma3[] = {
    {"embedding.weight", "token_embd.weight"},
    {"head.weight", "output.weight"},
    centred_norm("final_norm.weight", "output_norm.weight"),
    centred_norm("attention_norm.weight", "attn_norm.weight"),
    centred_norm("attention_post_norm.weight", "post_attention_norm.weight"),
    centred_norm("mlp_norm.weight", "ffn_norm.weight"),
    centred_norm("mlp_post_norm.weight", "post_ffw_norm.weight"),
    centred_norm("attention.q_norm.weight", "attn_q_norm.weight"),
    centred_norm("attention.k_norm.weight", "attn_k_norm.weight"),
    {"attention.q_proj.weight", "attn_q.weight"},
    {"attention.k_proj.weight", "attn_k.weight"},
    {"attention.v_proj.weight", "attn_v.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

// The 27B model has this many layers, by which llama.cpp knows that its logits have another divisor.
constexpr int64_t kLayersOf27B = 62;

// The rotations of the two types of layers, of which llama.cpp stretches that with full attention.
void read_gguf_rotations(GgufReader& in) {
  const Json windowed = {{"rope_theta", in.number("rope.freq_base_swa", 10000.0)}, {"rope_type", "default"}};
  in.out["rope_parameters"] = {{kGlobal, in.out["rope_parameters"]}, {kSliding, windowed}};
}

void read_gguf_gemma3(GgufReader& in) {
  in.llama_like();
  read_gguf_rotations(in);
  const int64_t layers = in.out["num_hidden_layers"].get<int64_t>(),
                heads = in.out["num_attention_heads"].get<int64_t>(),
                window = in.integer("attention.sliding_window", 0),
                period = in.integer("attention.sliding_window_pattern", kGemmaPeriod);
  require<ConfigError>(period > 0, in.source(), ": ", in.key("attention.sliding_window_pattern"),
                       " = 0: must be a whole number above 0");
  in.out["layer_types"] = Json::array();
  for (int64_t layer = 0; layer < layers; ++layer)
    in.out["layer_types"].push_back(window > 0 && (layer + 1) % period != 0 ? kSliding : kGlobal);
  if (window > 0) in.out["sliding_window"] = window;
  in.out["query_pre_attn_scalar"] = layers == kLayersOf27B && heads > 0 ? in.out["hidden_size"].get<int64_t>() / heads
                                                                        : in.out["head_dim"].get<int64_t>();
  if (const double cap = in.number("final_logit_softcapping", 0.0); cap > 0) in.out["final_logit_softcapping"] = cap;
  in.check_experts();
}

void write_gguf_gemma3(GgufWriter& to) {
  to.llama_like();
  const Json& types = to.hf.at("layer_types");
  if (!to.hf.at("sliding_window").is_number()) return;
  to.put("attention.sliding_window", "sliding_window");
  // Programs from before the period's time know every sixth layer alone. A list is no period, and is refused when the
  // keys are read again.
  const auto full = std::ranges::find(types, kGlobal);
  if (const int64_t period = full - types.begin() + 1; period != kGemmaPeriod)
    to.put("attention.sliding_window_pattern", period);
  to.put_real("rope.freq_base_swa", to.hf.at("rope_parameters").at(kSliding).at("rope_theta").get<double>());
  if (const Json& cap = to.hf.at("final_logit_softcapping"); cap.is_number())
    to.put_real("final_logit_softcapping", cap.get<double>());
}

constexpr GgufRule kGgufGemma4[] = {
    {"embedding.weight", "token_embd.weight"},
    {"head.weight", "output.weight"},
    {"final_norm.weight", "output_norm.weight"},
    {"attention_norm.weight", "attn_norm.weight"},
    {"attention_post_norm.weight", "post_attention_norm.weight"},
    {"mlp_norm.weight", "ffn_norm.weight"},
    {"mlp_post_norm.weight", "post_ffw_norm.weight"},
    {"mlp_out_norm.weight", "post_ffw_norm_1.weight"},
    {"moe_norm.weight", "pre_ffw_norm_2.weight"},
    {"moe_out_norm.weight", "post_ffw_norm_2.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"moe.router.weight", "ffn_gate_inp.weight"},
    {"moe.router.input_norm.weight", "ffn_gate_inp.scale"},
    {"moe.router.expert_scale", "ffn_down_exps.scale"},
    {"moe.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"moe.experts.down_proj", "ffn_down_exps.weight"},
    {"per_layer_embedding.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"per_layer_norm.weight", "post_norm.weight"},
};

constexpr const char *kPattern = "attention.sliding_window_pattern", *kGroups = "attention.head_count_kv",
                     *kWidths = "feed_forward_length", *kBorrow = "attention.shared_kv_layers";

// A number for each of the layers.
std::vector<int64_t> gguf_numbers(GgufReader& in, const char* name, size_t layers) {
  const GgufValue* const value = in.find(name);
  require<ConfigError>(value != nullptr, in.source(), ": ", in.key(name), " is missing");
  if (!value->array && value->integers.size() == 1) return std::vector(layers, value->integers[0]);
  require<ConfigError>(value->integers.size() == layers, in.source(), ": ", in.key(name),
                       " must have an entry for each of ", layers, " layers");
  return value->integers;
}

// The rotation of layers with full attention, by the pairs that turn.
Json gguf_rotation(GgufReader& in) {
  const auto& factors = in.facts().rope_factors;
  const auto still = std::ranges::find(factors, kStillPair);
  const bool known = std::all_of(factors.begin(), still, [](float factor) { return factor == 1; }) &&
                     std::all_of(still, factors.end(), [](float factor) { return factor == kStillPair; });
  const auto pairs = static_cast<double>(std::max<size_t>(factors.size(), 1));
  require<ConfigError>(
      known && (factors.empty() || static_cast<int64_t>(factors.size()) * 2 == in.integer("attention.key_length")),
      in.source(), ": rope_freqs.weight has ", factors.size(),
      " factors that are not those of Gemma 4's positions: 1 of pairs that turn, 1e30 of others");
  const auto turning = factors.empty() ? 1 : static_cast<double>(still - factors.begin());
  double share = turning / pairs;
  if (std::floor(share * pairs) < turning) share = std::nextafter(share, 1.0);  // as many pairs again, rounded down
  return {{"rope_theta", in.number("rope.freq_base")}, {"rope_type", "proportional"}, {"partial_rotary_factor", share}};
}

// MLPs of layers that borrow keys and values may be twice as wide as the others.
void read_gguf_widths(GgufReader& in, int64_t borrow) {
  const std::vector<int64_t> widths = in.of_layers(kWidths);
  const int64_t first = widths.empty() ? 0 : widths.front(), last = widths.empty() ? 0 : widths.back();
  const auto of_borrowers = widths.end() - std::clamp<int64_t>(borrow, 0, std::ssize(widths));
  const bool alike = std::all_of(widths.begin(), of_borrowers, [&](int64_t width) { return width == first; }) &&
                     std::all_of(of_borrowers, widths.end(), [&](int64_t width) { return width == last; });
  require<ConfigError>(alike && (last == first || last == 2 * first), in.source(), ": ", in.key(kWidths),
                       ": MLPs have one width in Witan, or twice that in layers that borrow keys and values");
  in.out["intermediate_size"] = first;
  in.out["use_double_wide_mlp"] = last != first;
}

// In llama.cpp layers borrow from the last one before them or, if they have a window, from the one before that.
void check_gguf_lenders(GgufReader& in, const std::vector<int64_t>& windowed, int64_t borrow) {
  const int64_t first = std::ssize(windowed) - borrow;
  if (borrow <= 0 || first <= 0) return;
  const auto has_window = [&](int64_t layer) { return layer >= 0 && windowed[static_cast<size_t>(layer)] != 0; };
  const bool windows = std::any_of(windowed.begin() + first, windowed.end(), [](int64_t one) { return one != 0; });
  require<ConfigError>(!has_window(first - 1) && (!windows || has_window(first - 2)), in.source(), ": ",
                       in.key(kBorrow), " = ", borrow,
                       ": llama.cpp's layers with a window borrow keys and values from layer ", first - 2,
                       " and the others from layer ", first - 1, ", which must be of the same kind");
}

void read_gguf_gemma4(GgufReader& in) {
  in.sizes(GgufWidths::of_layers);
  const auto layers = in.out["num_hidden_layers"].get<size_t>();
  const std::vector<int64_t> windowed = gguf_numbers(in, kPattern, layers), groups = gguf_numbers(in, kGroups, layers);
  const int64_t channels = in.integer("attention.key_length"),
                of_window = in.integer("attention.key_length_swa", channels);
  const char* const alike = "Witan reads heads of keys and values of one size, all of whose channels form pairs";
  for (const char* key : {"attention.value_length", "rope.dimension_count"})
    in.only(key, static_cast<double>(channels), alike);
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"})
    in.only(key, static_cast<double>(of_window), alike);
  in.out["head_dim"] = of_window;
  in.out["num_key_value_heads"] = groups.empty() ? 1 : groups.front();
  in.out["layer_types"] = Json::array();
  for (size_t layer = 0; layer < layers; ++layer) {
    in.out["layer_types"].push_back(windowed[layer] != 0 ? kSliding : kGlobal);
    in.out[kOverrides][std::to_string(layer)] = {{"head_dim", windowed[layer] != 0 ? of_window : channels},
                                                 {"num_key_value_heads", groups[layer]}};
  }
  require<ConfigError>(layers > 0 && windowed.back() == 0, in.source(), ": ", in.key(kPattern),
                       ": the last layer has full attention in transformers' models of this type");
  in.out["sliding_window"] = in.integer("attention.sliding_window");
  in.out["attention_k_eq_v"] = in.facts().values_from_keys;
  in.out[kRotations] = {
      {kGlobal, gguf_rotation(in)},
      {kSliding, {{"rope_theta", in.number("rope.freq_base_swa", 10000.0)}, {"rope_type", "default"}}}};
  const int64_t borrow = in.integer(kBorrow, 0);
  in.out["num_kv_shared_layers"] = borrow;
  read_gguf_widths(in, borrow);
  check_gguf_lenders(in, windowed, borrow);
  in.out[kOwnChannels] = in.integer("embedding_length_per_layer_input", 0);
  in.out[kOwnRows] = in.facts().vocab_size;
  if (const double cap = in.number("final_logit_softcapping", 0.0); cap > 0) in.out["final_logit_softcapping"] = cap;
  const int64_t experts = in.integer("expert_count", 0);
  in.out["enable_moe_block"] = experts > 0;
  if (experts > 0) {
    in.out["num_experts"] = experts;
    in.out["top_k_experts"] = in.integer("expert_used_count");
    in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  }
  in.check_experts();
}

void put_numbers(GgufWriter& to, const char* name, GgufType type, std::vector<int64_t> numbers) {
  to.out.put(to.key(name), {.type = type, .array = true, .integers = std::move(numbers)});
}

void write_gguf_gemma4(GgufWriter& to) {
  const std::string& scaling = to.model.attention.rope_scaling_type;
  require<ConfigError>(scaling == "none", "rope_scaling_type = ", scaling,
                       ": llama.cpp's model of type gemma4 does not stretch positions: export --format hf");
  to.sizes();
  std::vector<int64_t> windowed, groups;
  for (const LayerSpec& layer : to.model.layers()) {
    windowed.push_back(window_of(layer.mixer) > 0 ? 1 : 0);
    groups.push_back(attention_of(layer.mixer)->num_query_groups);
  }
  if (to.model.use_double_wide_mlp) {
    std::vector<int64_t> widths;
    for (const LayerSpec& layer : to.model.layers())
      widths.push_back((layer.parallel_mlp ? *layer.parallel_mlp : layer.mlp).ffn_hidden_size);
    to.put_list(kWidths, std::move(widths));
  }
  put_numbers(to, kPattern, GgufType::flag, std::move(windowed));
  put_numbers(to, kGroups, GgufType::i32, std::move(groups));
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    to.put(key, "global_head_dim");
  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    to.put(key, "head_dim");
  if (to.hf.contains("sliding_window")) to.put("attention.sliding_window", "sliding_window");
  for (const auto& [key, type] : {std::pair{"rope.freq_base", kGlobal}, {"rope.freq_base_swa", kSliding}})
    to.put_real(key, to.hf.at(kRotations).at(type).at("rope_theta").get<double>());
  to.put(kBorrow, "num_kv_shared_layers");
  to.put("embedding_length_per_layer_input", kOwnChannels);
  if (const Json& cap = to.hf.at("final_logit_softcapping"); cap.is_number())
    to.put_real("final_logit_softcapping", cap.get<double>());
  if (to.experts()) to.put("expert_feed_forward_length", "moe_intermediate_size");
}

Architecture gemma3_architecture() {
  Architecture text = llama_like("gemma3_text", "Gemma3ForCausalLM");
  text.rules = {kModelRules, kBothNormRules, kAttentionRules, kMlpRules};
  text.defaults = {R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
      "attention_bias": false, "attention_dropout": 0.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
      "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})"};
  text.read = read_gemma3;
  text.write = write_gemma3;
  text.tied_in_text = true;
  text.gguf = {.name = "gemma3", .rules = {kGgufGemma3}, .read = read_gguf_gemma3, .write = write_gguf_gemma3};
  return text;
}

Architecture gemma4_architecture() {
  Architecture text = llama_like("gemma4_text", "Gemma4ForCausalLM");
  text.rules = {kModelRules, kBothNormRules, kAttentionRules, kMlpRules, kGemma4Rules};
  text.defaults = {R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
      "attention_bias": false, "attention_dropout": 0.0, "sliding_window": 512, "attention_k_eq_v": false,
      "num_kv_shared_layers": 0, "use_double_wide_mlp": false, "hidden_size_per_layer_input": 256,
      "vocab_size_per_layer_input": 262144,
      "enable_moe_block": false, "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}})"};
  text.read = read_gemma4;
  text.write = write_gemma4;
  text.partial_rotation = true;
  text.tied_in_text = true;
  text.gguf = {.name = "gemma4",
               .rules = {kGgufGemma4, kGgufAttention},
               .matches = [](GgufReader&) { return true; },  // files of gemma4_unified_text are alike
               .read = read_gguf_gemma4,
               .write = write_gguf_gemma4};
  return text;
}

// The text decoder of the models whose images and sounds enter without towers: it has no experts and no embeddings for
// each layer.
Architecture gemma4_unified_architecture() {
  Architecture text = gemma4_architecture();
  text.model_type = "gemma4_unified_text";
  text.name = "Gemma4UnifiedForCausalLM";
  text.defaults.emplace_back(R"({"max_position_embeddings": 262144, "sliding_window": 1024,
      "hidden_size_per_layer_input": 0})");
  text.read = read_gemma4_unified;
  text.gguf.matches = [](GgufReader&) { return false; };
  text.gguf.read = nullptr;
  return text;
}

}  // namespace

std::vector<Architecture> gemma() {
  return {gemma3_architecture(), gemma4_architecture(), gemma4_unified_architecture()};
}

}  // namespace witan::models
