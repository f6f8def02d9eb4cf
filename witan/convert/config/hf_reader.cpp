#include <algorithm>

#include "witan/base/text.h"
#include "witan/convert/config/hf_model.h"

namespace witan {
namespace {

std::string layer_list(const std::vector<bool>& layers) {
  std::string list;
  for (const bool layer : layers) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  return list + "]";
}

}  // namespace

HfReader::HfReader(const Json& json, const std::string& where, const Json& defaults, HfModel& out)
    : keys(json, where, &defaults), to(out.model, json, where), model(out) {}

void HfReader::sizes(HfHeads heads_are) {
  layers = keys.integer("num_hidden_layers");
  hidden = keys.integer("hidden_size");
  const int64_t heads = keys.integer("num_attention_heads");
  to.set("num_layers", layers);
  to.set("hidden_size", hidden);
  to.set("vocab_size", keys.integer("vocab_size"));
  if (keys.find("intermediate_size")) to.set("ffn_hidden_size", keys.integer("intermediate_size"));
  to.set("num_attention_heads", heads);
  to.set("num_query_groups", keys.nullable_integer("num_key_value_heads").value_or(heads));
  const int64_t head_dim = keys.nullable_integer("head_dim").value_or(0);
  if (heads_are == HfHeads::grouped && head_dim > 0 && head_dim * heads != hidden) to.set("kv_channels", head_dim);
  to.set("norm_epsilon", keys.number("rms_norm_eps"));
  to.set("untie_embeddings_and_output_weights", !keys.flag("tie_word_embeddings"));
  training_keys("attention_dropout");
  model.positions = keys.integer("max_position_embeddings");
}

void HfReader::activation() {
  read_hf_activation(keys, to, "hidden_act", "silu", true);
}

void HfReader::rope(HfRope kind) {
  read_hf_rope(keys, to, model.positions, kind);
}

void HfReader::llama_like() {
  sizes();
  activation();
  rope();
}

void HfReader::attention_bias() {
  if (keys.flag("attention_bias", false)) to.set("add_attention_bias", true);
}

void HfReader::no_attention_bias(const char* why) {
  keys.only("attention_bias", false, why);
}

void HfReader::no_mlp_bias() {
  keys.only("mlp_bias", false, "models of this type have no biases in their MLPs, whatever this key says");
}

void HfReader::training_keys(const char* attention_dropout) {
  if (const double std = keys.number("initializer_range"); std > 0) to.set("init_method_std", std);
  if (const double dropout = keys.number(attention_dropout); dropout > 0) to.set("attention_dropout", dropout);
}

void HfReader::full_attention() {
  const Json* types = keys.find("layer_types");
  if (types && std::ranges::any_of(*types, [](const Json& type) { return type != "full_attention"; }))
    keys.refuse("layer_types", "transformers' models of this type have one kind of layers, whatever this key says");
}

void HfReader::window(int64_t tokens, const std::vector<bool>& windowed) {
  if (std::ranges::find(windowed, true) == windowed.end()) return;
  if (tokens < 2) keys.refuse("sliding_window", "a window must reach back to at least one earlier token");
  to.set("window_size", cat(tokens - 1, ",0"));
  if (std::ranges::find(windowed, false) != windowed.end()) to.set("window_attn_skip_freq", layer_list(windowed));
}

void HfReader::no_rope_layers(const std::vector<bool>& still) {
  if (std::ranges::find(still, true) != still.end()) to.set("no_rope_freq", layer_list(still));
}

void HfReader::window_everywhere() {
  const auto tokens = keys.nullable_integer("sliding_window");
  window(tokens.value_or(0), std::vector<bool>(static_cast<size_t>(layers), tokens.has_value()));
}

std::vector<bool> HfReader::windowed_layers(const std::function<bool(int64_t)>& otherwise) {
  std::vector<bool> windowed;
  for (int64_t layer = 0; layer < layers; ++layer) windowed.push_back(otherwise(layer));
  const Json* types = keys.find("layer_types");
  if (!types) return windowed;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers)
    keys.refuse("layer_types", "must have an entry for each of num_hidden_layers");
  for (size_t layer = 0; layer < windowed.size(); ++layer) {
    const Json& kind = (*types)[layer];
    if (kind != "sliding_attention" && kind != "full_attention")
      keys.refuse("layer_types", "Witan has layers of sliding_attention and full_attention");
    windowed[layer] = kind == "sliding_attention";
  }
  return windowed;
}

void HfReader::experts(int64_t count, int64_t chosen) {
  to.set("num_experts", count);
  to.set("moe_router_topk", chosen);
  // transformers adds this loss only if asked to; otherwise Witan's own default stays.
  const double loss = keys.number("router_aux_loss_coef", 0.0);
  if (keys.flag("output_router_logits", false) && loss > 0) to.set("moe_aux_loss_coeff", loss);
}

void HfReader::experts() {
  experts(keys.has("num_local_experts") ? keys.integer("num_local_experts") : keys.integer("num_experts"),
          keys.integer("num_experts_per_tok"));
}

void HfReader::softmax_router() {
  if (!keys.flag("norm_topk_prob")) to.set("moe_router_pre_softmax", true);
}

std::vector<bool> HfReader::layers_after_dense() {
  const int64_t dense = keys.integer("first_k_dense_replace"), step = keys.integer("moe_layer_freq", 1);
  std::vector<bool> moe;
  for (int64_t layer = 0; layer < layers; ++layer) moe.push_back(layer >= dense && step > 0 && layer % step == 0);
  return moe;
}

std::vector<bool> HfReader::layers_by_sparse_step() {
  const int64_t step = keys.integer("decoder_sparse_step");
  std::vector<bool> moe;
  for (int64_t layer = 0; layer < layers; ++layer) moe.push_back(step > 0 && (layer + 1) % step == 0);
  if (const Json* dense = keys.find("mlp_only_layers"))
    for (const Json& layer : *dense) {
      if (!layer.is_number_integer() || layer < 0 || layer >= layers)
        keys.refuse("mlp_only_layers", "must list numbers of layers");
      moe[layer.get<size_t>()] = false;
    }
  return moe;
}

std::vector<bool> HfReader::sparse_layers(std::vector<bool> otherwise) {
  const Json* types = keys.find("mlp_layer_types");
  if (!types) return otherwise;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers)
    keys.refuse("mlp_layer_types", "must have an entry for each of num_hidden_layers");
  std::vector<bool> moe;
  for (const Json& type : *types) {
    if (type != "dense" && type != "sparse") keys.refuse("mlp_layer_types", "an entry must be dense or sparse");
    moe.push_back(type == "sparse");
  }
  return moe;
}

bool HfReader::routed_experts(const std::vector<bool>& moe, const char* key, const char* count, const char* shared) {
  if (keys.is_null(count) || std::ranges::find(moe, true) == moe.end()) {
    dense();
    for (const char* one : {count, "num_experts_per_tok", "moe_intermediate_size", shared, "routed_scaling_factor",
                            "scoring_func", "topk_method", "norm_topk_prob", "n_group", "topk_group"})
      keys.find(one);
    return false;
  }
  experts(keys.integer(count), keys.integer("num_experts_per_tok"));
  const int64_t size = keys.integer("moe_intermediate_size"), beside = keys.integer(shared);
  to.set("moe_ffn_hidden_size", size);
  if (beside > 0) to.set("moe_shared_expert_intermediate_size", beside * size);
  if (const double scale = keys.number("routed_scaling_factor"); scale != 1)
    to.set("moe_router_topk_scaling_factor", scale);
  moe_layers(moe, key);
  return true;
}

void HfReader::expert_groups(int64_t scores) {
  const int64_t count = keys.integer("n_group"), chosen = keys.integer("topk_group");
  if (count <= 1) return;
  to.set("moe_router_num_groups", count);
  to.set("moe_router_group_topk", chosen);
  to.set("moe_router_group_score_topk", scores);
}

void HfReader::sigmoid_router() {
  keys.only("scoring_func", "sigmoid", "this architecture's scores are sigmoids");
  keys.only("topk_method", "noaux_tc", "this architecture chooses by scores with a bias");
  to.set("moe_router_score_function", "sigmoid");
  to.set("moe_router_enable_expert_bias", true);
  to.set("moe_router_norm_topk_prob", keys.truthy("norm_topk_prob") ? "true" : "false");
  expert_groups(2);
}

void HfReader::moe_layers(const std::vector<bool>& moe, const char* key) {
  if (std::ranges::find(moe, true) == moe.end())
    keys.refuse(key, "leaves no layer with experts; that is a dense model");
  if (std::ranges::find(moe, false) != moe.end()) to.set("moe_layer_freq", layer_list(moe));
}

double HfReader::bound(const char* key) {
  const double value = keys.number(key);
  if (value <= 0) keys.refuse(key, "values are clamped to this bound, which must be positive");
  return value;
}

}  // namespace witan
