// OLMo Hybrid: Gated DeltaNet in most layers, with norms before their halves, and in the others OLMo 3's attention,
// with norms after them.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "witan/base/text.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kDeltaLayer = "linear_attention", *kAttentionLayer = "full_attention";
constexpr double kDeltaNormEpsilon = 1e-5;  // of the norm behind the rule, whatever rms_norm_eps is

// The names of published folders, under which transformers reads them; it has others in memory.
constexpr TensorRule kHybridNormRules[] = {
    {"attention_norm.weight", "layers.{l}.attention_layer_norm.weight"},
    {"mlp_norm.weight", "layers.{l}.feedforward_layer_norm.weight"},
    {"attention_post_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"mlp_post_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"},
};

constexpr TensorRule olmo_convolution(std::string_view witan, std::string_view other) {
  return {.witan = witan, .other = other, .depthwise = true};
}
constexpr TensorRule kOlmoDeltaRules[] = {
    olmo_convolution("gated_delta.q_conv.weight", "layers.{l}.linear_attn.q_conv1d.weight"),
    olmo_convolution("gated_delta.k_conv.weight", "layers.{l}.linear_attn.k_conv1d.weight"),
    olmo_convolution("gated_delta.v_conv.weight", "layers.{l}.linear_attn.v_conv1d.weight"),
    {"gated_delta.q_proj.weight", "layers.{l}.linear_attn.q_proj.weight"},
    {"gated_delta.k_proj.weight", "layers.{l}.linear_attn.k_proj.weight"},
    {"gated_delta.v_proj.weight", "layers.{l}.linear_attn.v_proj.weight"},
    {"gated_delta.z_proj.weight", "layers.{l}.linear_attn.g_proj.weight"},
    {"gated_delta.b_proj.weight", "layers.{l}.linear_attn.b_proj.weight"},
    {"gated_delta.a_proj.weight", "layers.{l}.linear_attn.a_proj.weight"},
    {"gated_delta.A_log", "layers.{l}.linear_attn.A_log"},
    {"gated_delta.dt_bias", "layers.{l}.linear_attn.dt_bias"},
    {"gated_delta.norm.weight", "layers.{l}.linear_attn.o_norm.weight"},
    {"gated_delta.o_proj.weight", "layers.{l}.linear_attn.o_proj.weight"},
};

// All layers but every fourth have Gated DeltaNet, unless layer_types says otherwise; the last one has attention if no
// other has.
std::vector<bool> delta_layers(HfReader& in) {
  std::vector<bool> delta;
  for (int64_t layer = 0; layer < in.layers; ++layer) delta.push_back(layer % 4 != 3);
  if (in.layers > 0 && std::ranges::find(delta, false) == delta.end()) delta.back() = false;
  if (const Json* types = in.keys.find("layer_types")) {
    if (!types->is_array() || static_cast<int64_t>(types->size()) != in.layers)
      in.keys.refuse("layer_types", "must have an entry for each of num_hidden_layers");
    for (size_t layer = 0; layer < delta.size(); ++layer) {
      const Json& type = (*types)[layer];
      if (type != kDeltaLayer && type != kAttentionLayer)
        in.keys.refuse("layer_types", "models of this type have layers of linear_attention and full_attention");
      delta[layer] = type == kDeltaLayer;
    }
  }
  for (const bool kind : {true, false})
    if (std::ranges::find(delta, kind) == delta.end())
      in.keys.refuse("layer_types", "models of this type have layers of linear_attention and of full_attention");
  return delta;
}

void read_delta_sizes(HfReader& in) {
  const int64_t heads = in.to.model().attention.num_attention_heads;
  const int64_t keys = in.keys.nullable_integer("linear_num_key_heads").value_or(heads);
  if (keys == 0) in.keys.refuse("linear_num_key_heads", "layers have heads");
  const int64_t channels = in.keys.nullable_integer("linear_key_head_dim").value_or(3 * in.hidden / (4 * keys));
  in.to.set("linear_num_key_heads", keys);
  in.to.set("linear_num_value_heads", in.keys.nullable_integer("linear_num_value_heads").value_or(heads));
  in.to.set("linear_key_head_dim", channels);
  in.to.set("linear_value_head_dim", in.keys.nullable_integer("linear_value_head_dim").value_or(2 * channels));
  in.to.set("linear_conv_kernel_dim", in.keys.integer("linear_conv_kernel_dim"));
  in.to.set("linear_allow_neg_eigval", in.keys.truthy("linear_allow_neg_eigval"));
  in.to.set("linear_norm_epsilon", kDeltaNormEpsilon);
  for (const char* key :
       {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"})
    in.keys.find(key);  // of initial weights
}

// Released models have no rotary positions, and say so by a base that is null.
void read_positions(HfReader& in) {
  const Json *scaling = in.keys.find("rope_scaling"), *joined = in.keys.find("rope_parameters");
  const Json* rope = scaling && !scaling->empty() ? scaling : joined;
  const bool own = rope && rope->is_object() && rope->contains("rope_theta");
  if (own ? rope->at("rope_theta").is_null() : in.keys.is_null("rope_theta"))
    in.to.set("position_embedding_type", "none");
  else
    in.rope();
}

void read_olmo_hybrid(HfReader& in) {
  in.sizes();
  in.activation();
  in.dense();
  in.keys.only("hidden_act", "silu", "Witan's Gated DeltaNet has SiLU behind its convolution and in its gate");
  in.to.set("qk_layernorm", true);
  in.to.set("qk_layernorm_full_width", true);
  in.to.set("norm_placement", "post_attention");
  std::string list;
  for (const bool layer : delta_layers(in)) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  in.to.set("experimental_attention_variant", "gated_delta_net");
  in.to.set("linear_attention_freq", list + "]");
  read_delta_sizes(in);
  read_positions(in);
  in.attention_bias();
  in.no_mlp_bias();
}

void write_olmo_hybrid(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  if (to.model.attention.rotates())
    to.rope();
  else
    to.out["rope_parameters"] = {{"rope_theta", nullptr}, {"rope_type", "default"}};
  const LinearAttentionConfig& delta = to.model.linear_attention;
  to.out["layer_types"] = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers)
    to.out["layer_types"].push_back(std::holds_alternative<GatedDeltaSpec>(layer.mixer) ? kDeltaLayer
                                                                                        : kAttentionLayer);
  to.out["linear_conv_kernel_dim"] = delta.linear_conv_kernel_dim;
  to.out["linear_key_head_dim"] = delta.linear_key_head_dim;
  to.out["linear_value_head_dim"] = delta.linear_value_head_dim;
  to.out["linear_num_key_heads"] = delta.linear_num_key_heads;
  to.out["linear_num_value_heads"] = delta.linear_num_value_heads;
  to.out["linear_allow_neg_eigval"] = delta.linear_allow_neg_eigval;
  to.out["pad_token_id"] = nullptr;  // transformers' default is beyond smaller vocabularies, and refused there
}

}  // namespace

std::vector<Architecture> olmo_hybrid() {
  Architecture hybrid = llama_like("olmo_hybrid", "OlmoHybridForCausalLM");
  hybrid.rules = {kModelRules, kHybridNormRules, kAttentionRules, kOlmoDeltaRules, kMlpRules};
  hybrid.defaults = {kLlamaDefaults, R"({"vocab_size": 100352, "hidden_size": 3840, "num_attention_heads": 30,
      "max_position_embeddings": 65536, "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": true})"};
  hybrid.read = read_olmo_hybrid;
  hybrid.write = write_olmo_hybrid;
  hybrid.side = "mtp";
  return {hybrid};
}

}  // namespace witan::models
