#include <algorithm>

#include "witan/convert/config/hf_model.h"

namespace witan {

HfWriter::HfWriter(const ModelConfig& config, int64_t meant_for)
    : model(config), layers(config.layers()), positions(meant_for) {}

void HfWriter::sizes(HfHeads heads) {
  const AttentionConfig& attention = model.attention;
  out["hidden_size"] = model.hidden_size;
  out["num_hidden_layers"] = model.num_layers;
  out["intermediate_size"] = model.mlp.ffn_hidden_size;
  out["num_attention_heads"] = attention.num_attention_heads;
  if (heads == HfHeads::latent) {
    out["num_key_value_heads"] = attention.num_attention_heads;
  } else {
    out["num_key_value_heads"] = attention.num_query_groups;
    out["head_dim"] = attention.qk_head_dim(model.hidden_size);
  }
  out["rms_norm_eps"] = model.norm.norm_epsilon;
  out["hidden_act"] = hf_activation(model.mlp);
  const bool dynamic = attention.rope_scaling_type == "dynamic";  // its original context is the model's
  out["max_position_embeddings"] = dynamic ? attention.original_max_position_embeddings : positions;
  out["attention_dropout"] = attention.attention_dropout;
}

void HfWriter::rope() {
  out["rope_parameters"] = hf_rope(model.attention);
}

void HfWriter::sliding_window() {
  int64_t tokens = 0;
  for (const LayerSpec& layer : layers) tokens = std::max(tokens, window_of(layer.mixer));
  out["sliding_window"] = tokens > 0 ? Out(tokens) : Out();
}

void HfWriter::layer_types() {
  Out types = Out::array();
  for (const LayerSpec& layer : layers)
    types.push_back(window_of(layer.mixer) > 0 ? "sliding_attention" : "full_attention");
  out["layer_types"] = types;
}

void HfWriter::experts(const char* count, const char* size) {
  const MoeConfig& moe = model.moe;
  out[count] = moe.num_experts;
  out["num_experts_per_tok"] = moe.moe_router_topk;
  out[size] = width_of_expert();
}

int64_t HfWriter::width_of_expert() const {
  return model.moe.moe_ffn_hidden_size > 0 ? model.moe.moe_ffn_hidden_size : model.mlp.ffn_hidden_size;
}

void HfWriter::dense_layers_first() {
  out["first_k_dense_replace"] = std::ranges::find(layers, true, &LayerSpec::moe) - layers.begin();
}

void HfWriter::mlp_only_layers() {
  out["mlp_only_layers"] = Out::array();
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (!layers[layer].moe) out["mlp_only_layers"].push_back(layer);
}

void HfWriter::norm_topk_prob() {
  out["norm_topk_prob"] = model.moe.scoring().scores != kernels::Scores::softmax;
}

void HfWriter::mlp_layer_types() {
  out["mlp_layer_types"] = Out::array();
  for (const LayerSpec& layer : layers) out["mlp_layer_types"].push_back(layer.moe ? "sparse" : "dense");
}

bool HfWriter::routed_experts(const char* count, const char* shared) {
  const MoeConfig& moe = model.moe;
  if (moe.num_experts == 0) return false;
  experts(count, "moe_intermediate_size");
  out[shared] = moe.moe_shared_expert_intermediate_size / width_of_expert();
  out["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
  out["n_group"] = std::max<int64_t>(moe.moe_router_num_groups, 1);
  out["topk_group"] = std::max<int64_t>(moe.moe_router_group_topk, 1);
  return true;
}

void HfWriter::sigmoid_router() {
  out["norm_topk_prob"] = model.moe.moe_router_norm_topk_prob != "false";
}

}  // namespace witan
