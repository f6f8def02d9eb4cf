#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/convert/config/hf_activation.h"
#include "witan/convert/config/hf_rope.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using Out = nlohmann::ordered_json;

// What reading does, the other way round: each key where the architecture has it. What it cannot say is found by
// reading the result.
class HfWriter {
 public:
  HfWriter(const Architecture& architecture, const ModelConfig& model, int64_t positions)
      : type_(architecture.model_type), model_(model), layers_(model.layers()), positions_(positions) {
    out_["architectures"] = {architecture.name};
    out_["model_type"] = type_;
  }

  Out write() && {
    if (type_ == "gpt2")
      gpt2();
    else
      llama_like();
    out_["vocab_size"] = model_.vocab_size;
    out_["initializer_range"] = model_.init_method_std;
    out_["tie_word_embeddings"] = !model_.untie_embeddings_and_output_weights;
    return std::move(out_);
  }

 private:
  void llama_like() {
    const AttentionConfig& attention = model_.attention;
    out_["hidden_size"] = model_.hidden_size;
    out_["num_hidden_layers"] = model_.num_layers;
    out_["intermediate_size"] = model_.mlp.ffn_hidden_size;
    out_["num_attention_heads"] = attention.num_attention_heads;
    out_["num_key_value_heads"] = deepseek() ? attention.num_attention_heads : attention.num_query_groups;
    if (!deepseek()) out_["head_dim"] = attention.qk_head_dim(model_.hidden_size);
    out_["rms_norm_eps"] = model_.norm.norm_epsilon;
    out_["hidden_act"] = type_ == "gpt_oss" ? "silu" : hf_activation(model_.mlp);
    const bool dynamic = attention.rope_scaling_type == "dynamic";  // whose context ends where the model's does
    out_["max_position_embeddings"] = dynamic ? attention.original_max_position_embeddings : positions_;
    out_["attention_dropout"] = attention.attention_dropout;
    out_["attention_bias"] = type_ == "gpt_oss" || (has_bias_key() && attends_with_biases());
    if (type_ == "llama") out_["mlp_bias"] = model_.mlp_bias() != Bias::none;
    out_["rope_parameters"] = type_ == "olmo3" ? hf_rope_of_layer_types(attention) : hf_rope(attention);
    if (type_ == "phi3") phi3();
    windows();
    if (deepseek()) latent();
    if (has_experts()) experts();
    if (type_ == "olmoe" && attention.clip_qkv > 0) out_["clip_qkv"] = attention.clip_qkv;
  }

  bool deepseek() const { return type_.starts_with("deepseek"); }
  bool has_bias_key() const {
    return !deepseek() && type_ != "mistral" && type_ != "mixtral" && type_ != "qwen2" && type_ != "phi3";
  }
  bool attends_with_biases() const { return model_.add_bias_linear || model_.attention.add_attention_bias; }
  bool has_experts() const {
    return (deepseek() && model_.moe.num_experts > 0) || type_ == "mixtral" || type_ == "qwen3_moe" ||
           type_ == "olmoe" || type_ == "gpt_oss";
  }

  void phi3() {
    const AttentionConfig& attention = model_.attention;
    out_["rope_parameters"]["partial_rotary_factor"] = attention.rotary_percent;
    if (attention.rope_scaling_type == "longrope")  // which is taken from here, and from there by others
      out_["original_max_position_embeddings"] = attention.original_max_position_embeddings;
  }

  void windows() {
    int64_t sees = 0;
    Out types = Out::array();
    for (const LayerSpec& layer : layers_) {
      sees = std::max(sees, window_of(layer.mixer));
      types.push_back(window_of(layer.mixer) > 0 ? "sliding_attention" : "full_attention");
    }
    if (type_ == "mixtral" || type_ == "mistral" || type_ == "phi3")
      out_["sliding_window"] = sees > 0 ? Out(sees) : Out();
    if (type_ != "gpt_oss" && type_ != "olmo3" && !type_.starts_with("qwen")) return;
    if (type_ != "qwen3_moe") out_["layer_types"] = types;  // whose windows are of all layers or of none
    out_["sliding_window"] = sees > 0 ? Out(sees) : Out();
    if (type_.starts_with("qwen")) out_["use_sliding_window"] = sees > 0;
  }

  void experts() {
    const MoeConfig& moe = model_.moe;
    const bool local = type_ == "mixtral" || type_ == "gpt_oss";
    out_[deepseek() ? "n_routed_experts" : local ? "num_local_experts" : "num_experts"] = moe.num_experts;
    out_["num_experts_per_tok"] = moe.moe_router_topk;
    const int64_t size = moe.moe_ffn_hidden_size > 0 ? moe.moe_ffn_hidden_size : model_.mlp.ffn_hidden_size;
    if (deepseek() || type_ == "qwen3_moe")
      out_["moe_intermediate_size"] = size;
    else
      out_["intermediate_size"] = size;
    if (type_ == "qwen3_moe" || type_ == "olmoe")
      out_["norm_topk_prob"] = moe.scoring().scores != kernels::Scores::softmax;
    if (type_ == "qwen3_moe") {
      out_["mlp_only_layers"] = Out::array();
      for (size_t layer = 0; layer < layers_.size(); ++layer)
        if (!layers_[layer].moe) out_["mlp_only_layers"].push_back(layer);
    }
    if (deepseek()) deepseek_experts();
    if (type_ == "gpt_oss") {
      out_["swiglu_limit"] = model_.mlp.activation_func_clamp_value;
      out_["swiglu_alpha"] = model_.mlp.glu_activation_scale;
    }
  }

  void latent() {
    const AttentionConfig& attention = model_.attention;
    out_["q_lora_rank"] = attention.q_lora_rank > 0 ? Out(attention.q_lora_rank) : Out();
    out_["kv_lora_rank"] = attention.kv_lora_rank;
    out_["qk_nope_head_dim"] = attention.latent_qk_head_dim;
    out_["qk_rope_head_dim"] = attention.qk_pos_emb_head_dim;
    out_["v_head_dim"] = attention.value_head_dim(model_.hidden_size);
    out_["rope_interleave"] = attention.rotary_interleaved;
    const auto first = std::ranges::find(layers_, true, &LayerSpec::moe);
    out_["first_k_dense_replace"] = first - layers_.begin();
    if (model_.mtp_num_layers > 0) out_["num_nextn_predict_layers"] = model_.mtp_num_layers;
  }

  void deepseek_experts() {
    const MoeConfig& moe = model_.moe;
    out_["n_shared_experts"] = moe.moe_shared_expert_intermediate_size / std::max<int64_t>(moe.moe_ffn_hidden_size, 1);
    out_["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
    out_["n_group"] = std::max<int64_t>(moe.moe_router_num_groups, 1);
    out_["topk_group"] = std::max<int64_t>(moe.moe_router_group_topk, 1);
    if (type_ == "deepseek_v2")
      out_["topk_method"] = moe.moe_router_num_groups > 0 ? "group_limited_greedy" : "greedy";
    else
      out_["norm_topk_prob"] = moe.moe_router_norm_topk_prob != "false";
  }

  void gpt2() {
    out_["n_layer"] = model_.num_layers;
    out_["n_embd"] = model_.hidden_size;
    out_["n_head"] = model_.attention.num_attention_heads;
    out_["n_inner"] = model_.mlp.ffn_hidden_size;
    const int64_t learned = model_.attention.max_position_embeddings;  // 0: of a model that learns none
    out_["n_positions"] = learned > 0 ? learned : positions_;
    out_["layer_norm_epsilon"] = model_.norm.norm_epsilon;
    out_["activation_function"] = hf_activation(model_.mlp);
    out_["scale_attn_by_inverse_layer_idx"] = model_.attention.scale_attn_by_inverse_layer_idx;
    out_["resid_pdrop"] = out_["embd_pdrop"] = model_.hidden_dropout;
    out_["attn_pdrop"] = model_.attention.attention_dropout;
  }

  const std::string type_;
  const ModelConfig& model_;
  const std::vector<LayerSpec> layers_;
  const int64_t positions_;
  Out out_ = Out::object();
};

std::string text_of(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                    std::string_view dtype) {
  Out out = HfWriter(architecture, model, positions).write();
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

ModelConfig read_back(const Architecture& architecture, const std::string& text) {
  return read_hf_config(text, cat("a model of type ", architecture.model_type)).model;
}

}  // namespace

std::string write_hf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                            std::string_view dtype) {
  require<ConfigError>(
      model.attention.rotary_percent == 1 || !model.attention.rotates() || architecture.model_type == "phi3",
      "rotary_percent = ", model.attention.rotary_percent, ": transformers' models of type ", architecture.model_type,
      " rotate every channel of a head, whatever their config.json says, so that the exported model "
      "would be another one; --format megatron writes it as it is");
  std::string text = text_of(architecture, model, positions, dtype);
  const std::vector<std::string> different = differences(read_back(architecture, text), model);
  require<ConfigError>(different.empty(), "a model of type ", architecture.model_type,
                       " cannot be what this one is: ", different.empty() ? "" : different[0]);
  return text;
}

ModelConfig as_architecture(const Architecture& architecture, const ModelConfig& model, int64_t positions) {
  return read_back(architecture, text_of(architecture, model, positions, "float32"));
}

}  // namespace witan
