#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/hf_keys.h"

namespace witan {
namespace {

constexpr const char* kOrigin = "config";  // begins messages of Witan's keys, which are reworded

// Keys of Witan and their names in config.json, for all architectures. A leading dot marks a key of rope_parameters or,
// before transformers v5, of rope_scaling.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"num_layers", "num_hidden_layers"},
    {"num_layers", "n_layer"},
    {"hidden_size", "hidden_size"},
    {"hidden_size", "n_embd"},
    {"vocab_size", "vocab_size"},
    {"ffn_hidden_size", "intermediate_size"},
    {"ffn_hidden_size", "n_inner"},
    {"num_attention_heads", "num_attention_heads"},
    {"num_attention_heads", "n_head"},
    {"num_query_groups", "num_key_value_heads"},
    {"kv_channels", "head_dim"},
    {"norm_epsilon", "rms_norm_eps"},
    {"norm_epsilon", "layer_norm_epsilon"},
    {"norm_epsilon", "norm_eps"},
    {"init_method_std", "initializer_range"},
    {"attention_dropout", "attention_dropout"},
    {"attention_dropout", "attn_pdrop"},
    {"hidden_dropout", "resid_pdrop"},
    {"max_position_embeddings", "max_position_embeddings"},
    {"max_position_embeddings", "n_positions"},
    {"rotary_base", "rope_theta"},
    {"rotary_base", ".rope_theta"},
    {"rope_scaling_type", ".rope_type"},
    {"rope_scaling_type", ".type"},
    {"rotary_scaling_factor", ".factor"},
    {"original_max_position_embeddings", ".original_max_position_embeddings"},
    {"rope_low_freq_factor", ".low_freq_factor"},
    {"rope_high_freq_factor", ".high_freq_factor"},
    {"beta_fast", ".beta_fast"},
    {"beta_slow", ".beta_slow"},
    {"mscale", ".mscale"},
    {"mscale_all_dim", ".mscale_all_dim"},
    {"rope_short_factors", ".short_factor"},
    {"rope_long_factors", ".long_factor"},
    {"rope_attention_factor", ".attention_factor"},
    {"mscale", ".attention_factor"},
    {"window_size", "sliding_window"},
    {"window_attn_skip_freq", "layer_types"},
    {"window_attn_skip_freq", "max_window_layers"},
    {"clip_qkv", "clip_qkv"},
    {"embedding_multiplier", "embedding_multiplier"},
    {"residual_multiplier", "residual_multiplier"},
    {"logit_scale", "logits_scaling"},
    {"softmax_scale", "attention_multiplier"},
    {"softmax_scale", "query_pre_attn_scalar"},
    {"logit_soft_cap", "final_logit_softcapping"},
    {"window_rotary_base", "rope_local_base_freq"},
    {"linear_conv_kernel_dim", "conv_L_cache"},
    {"add_attention_bias", "attention_bias"},
    {"add_mlp_bias", "mlp_bias"},
    {"swiglu", "hidden_act"},
    {"swiglu", "hidden_activation"},
    {"swiglu", "activation_function"},
    {"num_experts", "num_local_experts"},
    {"num_experts", "num_experts"},
    {"num_experts", "n_routed_experts"},
    {"num_experts", "moe_num_experts"},
    {"moe_router_topk", "num_experts_per_tok"},
    {"moe_router_topk", "moe_k"},
    {"moe_router_topk", "moe_topk"},
    {"moe_ffn_hidden_size", "moe_intermediate_size"},
    {"moe_layer_freq", "mlp_only_layers"},
    {"moe_layer_freq", "decoder_sparse_step"},
    {"moe_layer_freq", "first_k_dense_replace"},
    {"moe_aux_loss_coeff", "router_aux_loss_coef"},
    {"moe_router_pre_softmax", "norm_topk_prob"},
    {"moe_router_norm_topk_prob", "norm_topk_prob"},
    {"moe_router_num_groups", "n_group"},
    {"moe_router_group_topk", "topk_group"},
    {"moe_router_topk_scaling_factor", "routed_scaling_factor"},
    {"moe_shared_expert_intermediate_size", "n_shared_experts"},
    {"hybrid_override_pattern", "hybrid_override_pattern"},
    {"hybrid_override_pattern", "layers_block_type"},
    {"mamba_num_heads", "mamba_num_heads"},
    {"mamba_head_dim", "mamba_head_dim"},
    {"mamba_state_dim", "ssm_state_size"},
    {"mamba_num_groups", "n_groups"},
    {"mamba_conv_kernel_dim", "conv_kernel"},
    {"mamba_num_heads", "mamba_n_heads"},
    {"mamba_head_dim", "mamba_d_head"},
    {"mamba_state_dim", "mamba_d_state"},
    {"mamba_num_groups", "mamba_n_groups"},
    {"mamba_conv_kernel_dim", "mamba_d_conv"},
    {"moe_shared_expert_intermediate_size", "shared_intermediate_size"},
    {"moe_latent_size", "moe_latent_size"},
    {"q_lora_rank", "q_lora_rank"},
    {"kv_lora_rank", "kv_lora_rank"},
    {"qk_head_dim", "qk_nope_head_dim"},
    {"qk_pos_emb_head_dim", "qk_rope_head_dim"},
    {"v_head_dim", "v_head_dim"},
    {"activation_func_clamp_value", "swiglu_limit"},
    {"glu_activation_scale", "swiglu_alpha"},
};

// Null if there is none.
const Json* member(const Json* object, std::string_view name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto found = object->find(name);
  return found == object->end() || found->is_null() ? nullptr : &*found;
}

// The value of a name in kNames; null if the file has none.
const Json* value_of(const Json& config, std::string_view name) {
  if (!name.starts_with('.')) return member(&config, name);
  const Json* joined = member(&config, "rope_parameters");
  for (const Json* object : {joined, member(joined, "full_attention"), member(&config, "rope_scaling")})
    if (const Json* value = member(object, name.substr(1))) return value;
  return nullptr;
}

// Whether the text contains this whole word.
bool has_word(std::string_view text, std::string_view word) {
  const auto in_word = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    if (!(at > 0 && in_word(at - 1)) && !in_word(at + word.size())) return true;
  return false;
}

}  // namespace

void refuse_hf_model(const Json& config, const std::string& where, const std::string& why) {
  std::vector<std::string> keys;
  for (const auto& [ours, theirs] : kNames) {
    if (!has_word(why, ours)) continue;
    const Json* value = value_of(config, theirs);
    if (value == nullptr) continue;
    std::string key = cat(theirs.starts_with('.') ? theirs.substr(1) : theirs, " = ", clipped(value->dump()));
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(std::move(key));
  }
  if (keys.empty()) throw ConfigError(cat(where, ": ", why));
  std::string list;
  for (const std::string& key : keys) list += cat(list.empty() ? "" : ", ", key);
  throw ConfigError(cat(where, ": ", list, ": Witan cannot represent this model: ", why,
                        ". Correct the file if it is wrong; a model that is like this cannot be imported"));
}

HfSettings::HfSettings(ModelConfig& model, const Json& config, std::string where)
    : model_(model), fields_(model.fields()), config_(config), where_(std::move(where)) {}

void HfSettings::set(const char* key, const std::string& text) const try {
  set_field(fields_, key, text, kOrigin);
} catch (const ConfigError& error) {
  refuse_hf_model(config_, where_, std::string(error.what()).substr(std::string_view(kOrigin).size() + 2));
}

void HfSettings::set(const char* key, double value) const {
  set(key, Json(value).dump());
}

}  // namespace witan
