#include "witan/convert/hf/hf_config.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/convert/config/hf_activation.h"
#include "witan/convert/config/hf_keys.h"
#include "witan/convert/config/hf_rope.h"
#include "witan/convert/config/hf_settings.h"
#include "witan/convert/hf/hf_defaults.h"

namespace witan {
namespace {

std::string layer_list(const std::vector<bool>& layers) {
  std::string list;
  for (const bool layer : layers) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  return list + "]";
}

// One config.json as Witan's keys.
class HfReader {
 public:
  HfReader(const Json& json, const std::string& where, HfModel& out)
      : keys_(json, where, &hf_defaults(out.architecture->model_type)), to_(out.model, json, where), out_(out) {}

  void read() {
    const std::string type = out_.architecture->model_type.data();
    quantization();
    if (type == "gpt2")
      gpt2();
    else
      llama_like(type);
    keys_.finish();
  }

 private:
  void llama_like(const std::string& type) {
    common();
    if (type != "gpt_oss") read_hf_activation(keys_, to_, "hidden_act", "silu", true);
    if (type != "olmo3") read_hf_rope(keys_, to_, out_.positions, type == "phi3");
    for (const char* dense : {"llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3", "phi3"})
      if (type == dense) to_.set("num_experts", int64_t{0});
    if (type == "mistral") mistral();
    if (type == "mixtral") mixtral();
    if (type == "qwen2") to_.set("add_qkv_bias", true);
    if (type == "qwen3" || type == "qwen3_moe") to_.set("qk_layernorm", true);
    if (type.starts_with("qwen")) qwen(type == "qwen3_moe");
    if (type == "qwen3_moe") qwen3_moe();
    if (type == "olmoe") olmoe();
    if (type == "olmo2" || type == "olmo3") olmo2();
    if (type == "olmo3") olmo3();
    if (type == "gpt_oss") gpt_oss();
    if (type == "phi3") phi3();
    if (type == "deepseek_v2") deepseek_v2();
    if (type == "deepseek_v3") deepseek_v3();
    if (type != "gpt_oss") biases(type);
    const std::vector<std::string_view> alike = {"llama", "mixtral", "olmoe", "olmo2", "phi3"};
    if (std::ranges::count(alike, type) > 0 || type.starts_with("deepseek")) full_attention();
  }

  // Of all but GPT-2.
  void common() {
    layers_ = keys_.integer("num_hidden_layers");
    hidden_ = keys_.integer("hidden_size");
    const int64_t heads = keys_.integer("num_attention_heads");
    to_.set("num_layers", layers_);
    to_.set("hidden_size", hidden_);
    to_.set("vocab_size", keys_.integer("vocab_size"));
    to_.set("ffn_hidden_size", keys_.integer("intermediate_size"));
    to_.set("num_attention_heads", heads);
    to_.set("num_query_groups", keys_.nullable_integer("num_key_value_heads").value_or(heads));
    const int64_t head_dim = keys_.nullable_integer("head_dim").value_or(0);
    latent_ = out_.architecture->model_type.starts_with("deepseek");
    if (!latent_ && head_dim > 0 && head_dim * heads != hidden_) to_.set("kv_channels", head_dim);
    to_.set("norm_epsilon", keys_.number("rms_norm_eps"));
    to_.set("untie_embeddings_and_output_weights", !keys_.flag("tie_word_embeddings"));
    training_keys("attention_dropout");
    out_.positions = keys_.integer("max_position_embeddings");
  }

  // Where transformers passes over layer_types, only types that say nothing are taken.
  void full_attention() {
    const Json* types = keys_.find("layer_types");
    if (types && std::ranges::any_of(*types, [](const Json& type) { return type != "full_attention"; }))
      keys_.refuse("layer_types", "transformers' models of this type have one kind of layers, whatever this key says");
  }

  void biases(const std::string& type) {
    const auto has = [&](const std::vector<std::string_view>& types) { return std::ranges::count(types, type) > 0; };
    if (!has({"llama", "qwen3", "qwen3_moe", "olmoe", "olmo2", "olmo3"}))
      keys_.only("attention_bias", false,
                 latent_ ? "Witan's latent attention has no biases"
                         : "transformers' models of this type have no such biases, whatever this key says");
    else if (keys_.flag("attention_bias", false))
      to_.set("add_attention_bias", true);
    if (type != "llama")
      keys_.only("mlp_bias", false, "of the types that Witan reads, llama alone has biases in its MLPs");
    else if (keys_.flag("mlp_bias", false))
      to_.set("add_mlp_bias", true);
  }

  void training_keys(const char* attention_dropout) {
    if (const double std = keys_.number("initializer_range"); std > 0) to_.set("init_method_std", std);
    if (const double dropout = keys_.number(attention_dropout); dropout > 0) to_.set("attention_dropout", dropout);
  }

  // `sees` W tokens, its own included, in the layers that are windowed.
  void window(int64_t sees, const std::vector<bool>& windowed) {
    if (std::ranges::find(windowed, true) == windowed.end()) return;
    if (sees < 2) keys_.refuse("sliding_window", "a window must reach back to at least one earlier token");
    to_.set("window_size", cat(sees - 1, ",0"));
    if (std::ranges::find(windowed, false) != windowed.end()) to_.set("window_attn_skip_freq", layer_list(windowed));
  }
  // Of layer_types; `otherwise` where there is no such key.
  std::vector<bool> windowed_layers(const std::function<bool(int64_t)>& otherwise) {
    std::vector<bool> windowed;
    for (int64_t layer = 0; layer < layers_; ++layer) windowed.push_back(otherwise(layer));
    const Json* types = keys_.find("layer_types");
    if (!types) return windowed;
    if (!types->is_array() || static_cast<int64_t>(types->size()) != layers_)
      keys_.refuse("layer_types", "must have an entry for each of num_hidden_layers");
    for (size_t layer = 0; layer < windowed.size(); ++layer) {
      const Json& kind = (*types)[layer];
      if (kind != "sliding_attention" && kind != "full_attention")
        keys_.refuse("layer_types", "Witan has layers of sliding_attention and full_attention");
      windowed[layer] = kind == "sliding_attention";
    }
    return windowed;
  }

  void experts(int64_t count, int64_t chosen) {
    to_.set("num_experts", count);
    to_.set("moe_router_topk", chosen);
    // Of training, where transformers adds it to the loss; else Witan's own default stays.
    const double loss = keys_.number("router_aux_loss_coef", 0.0);
    if (keys_.flag("output_router_logits", false) && loss > 0) to_.set("moe_aux_loss_coeff", loss);
  }
  // Scores of all experts, or of the chosen ones.
  void softmax_router(bool normalised) {
    if (!normalised) to_.set("moe_router_pre_softmax", true);
  }

  void mixtral() {
    experts(keys_.integer("num_local_experts"), keys_.integer("num_experts_per_tok"));
    keys_.only("router_jitter_noise", 0.0, "Mixtral multiplies what experts read too, Witan what the router reads");
    every_window();
  }
  // Its embd_pdrop has no effect there.
  void phi3() {
    keys_.only("resid_pdrop", 0.0,
               "Witan drops embeddings and the residual stream with one probability, Phi-3 the latter");
    keys_.find("embd_pdrop");
    const std::string& scaling = to_.model().attention.rope_scaling_type;
    if (scaling != "none" && scaling != "longrope")
      keys_.refuse("rope_parameters", "transformers' Phi-3 stretches rotary positions as longrope does, or not at all");
    every_window();
  }
  // Where it has layer_types, transformers makes the model that it calls Ministral.
  void mistral() {
    const auto sees = keys_.nullable_integer("sliding_window");
    window(sees.value_or(0), windowed_layers([&](int64_t) { return sees.has_value(); }));
  }
  void every_window() {
    const auto sees = keys_.nullable_integer("sliding_window");
    window(sees.value_or(0), std::vector<bool>(static_cast<size_t>(layers_), sees.has_value()));
  }

  // Qwen3's MoE has windows in all layers or in none, whatever layer_types says; the others in those that it names.
  void qwen(bool moe) {
    const auto sees = keys_.nullable_integer("sliding_window");
    const bool slides = keys_.flag("use_sliding_window") && sees;
    const int64_t from = keys_.integer("max_window_layers", 0);
    std::vector<bool> windowed = windowed_layers([&](int64_t layer) { return slides && layer >= from; });
    if (moe) windowed.assign(windowed.size(), slides);
    if (!slides && std::ranges::find(windowed, true) != windowed.end())
      keys_.refuse("layer_types", "layers of sliding_attention need use_sliding_window = true and a sliding_window");
    window(sees.value_or(0), windowed);
  }

  void qwen3_moe() {
    experts(keys_.has("num_local_experts") ? keys_.integer("num_local_experts") : keys_.integer("num_experts"),
            keys_.integer("num_experts_per_tok"));
    keys_.find("num_experts");
    to_.set("moe_ffn_hidden_size", keys_.integer("moe_intermediate_size"));
    softmax_router(keys_.flag("norm_topk_prob"));
    const int64_t step = keys_.integer("decoder_sparse_step");
    std::vector<bool> moe;
    for (int64_t layer = 0; layer < layers_; ++layer) moe.push_back(step > 0 && (layer + 1) % step == 0);
    if (const Json* dense = keys_.find("mlp_only_layers"))
      for (const Json& layer : *dense) {
        if (!layer.is_number_integer() || layer < 0 || layer >= layers_)
          keys_.refuse("mlp_only_layers", "must list numbers of layers");
        moe[layer.get<size_t>()] = false;
      }
    moe_layers(moe, "mlp_only_layers");
  }

  void moe_layers(const std::vector<bool>& moe, const char* key) {
    if (std::ranges::find(moe, true) == moe.end())
      keys_.refuse(key, "leaves no layer with experts; that is a dense model");
    if (std::ranges::find(moe, false) != moe.end()) to_.set("moe_layer_freq", layer_list(moe));
  }

  void olmoe() {
    experts(keys_.has("num_local_experts") ? keys_.integer("num_local_experts") : keys_.integer("num_experts"),
            keys_.integer("num_experts_per_tok"));
    softmax_router(keys_.flag("norm_topk_prob"));
    to_.set("qk_layernorm", true);
    to_.set("qk_layernorm_full_width", true);
    if (keys_.find("clip_qkv")) to_.set("clip_qkv", bound("clip_qkv"));
  }

  void olmo2() {
    to_.set("qk_layernorm", true);
    to_.set("qk_layernorm_full_width", true);
    to_.set("norm_placement", "post");
  }

  // 0 turns a bound off in Witan, and makes all values 0 in transformers.
  double bound(const char* key) {
    const double value = keys_.number(key);
    if (value <= 0) keys_.refuse(key, "values are clamped to this bound, which must be positive");
    return value;
  }

  // Layers of OLMo 2, of which those with a window rotate as they did before the context was stretched.
  void olmo3() {
    const std::vector<bool> windowed = windowed_layers([](int64_t layer) { return (layer + 1) % 4 != 0; });
    window(keys_.nullable_integer("sliding_window").value_or(0), windowed);
    read_hf_rope_of_layer_types(keys_, to_, out_.positions, windowed);
  }

  void gpt_oss() {
    experts(keys_.integer("num_local_experts"), keys_.integer("num_experts_per_tok"));
    keys_.only("attention_bias", true, "gpt_oss's layers have biases");
    keys_.only("hidden_act", "silu", "gpt_oss's layers have a function of their own");
    for (const char* key : {"add_bias_linear", "moe_expert_add_bias", "moe_router_add_bias"}) to_.set(key, true);
    to_.set("softmax_type", "learnable");
    to_.set("activation_func_clamp_value", bound("swiglu_limit"));
    to_.set("glu_activation_scale", keys_.number("swiglu_alpha"));
    to_.set("glu_linear_offset", 1.0);
    window(keys_.nullable_integer("sliding_window").value_or(0),
           windowed_layers([](int64_t layer) { return layer % 2 == 0; }));
  }

  // What V2 and V3 share.
  void deepseek() {
    to_.set("multi_latent_attention", true);
    if (const auto rank = keys_.nullable_integer("q_lora_rank")) to_.set("q_lora_rank", *rank);
    to_.set("kv_lora_rank", keys_.integer("kv_lora_rank"));
    const int64_t nope = keys_.integer("qk_nope_head_dim"), rotary = keys_.integer("qk_rope_head_dim");
    to_.set("qk_head_dim", nope);
    to_.set("qk_pos_emb_head_dim", rotary);
    to_.set("v_head_dim", keys_.integer("v_head_dim"));
    keys_.only("qk_head_dim", nope + rotary, "must be qk_nope_head_dim + qk_rope_head_dim");
    keys_.only("head_dim", rotary, "must be qk_rope_head_dim, the channels that rotate");
  }

  // Its MoE layers; false where it has none, as without experts: what is said of them says nothing then.
  bool deepseek_experts() {
    const int64_t dense = keys_.integer("first_k_dense_replace"), step = keys_.integer("moe_layer_freq", 1);
    std::vector<bool> moe;
    for (int64_t layer = 0; layer < layers_; ++layer) moe.push_back(layer >= dense && step > 0 && layer % step == 0);
    if (keys_.is_null("n_routed_experts") || std::ranges::count(moe, true) == 0) {
      to_.set("num_experts", int64_t{0});
      for (const char* key :
           {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
            "routed_scaling_factor", "scoring_func", "topk_method", "norm_topk_prob", "n_group", "topk_group"})
        keys_.find(key);
      return false;
    }
    experts(keys_.integer("n_routed_experts"), keys_.integer("num_experts_per_tok"));
    const int64_t size = keys_.integer("moe_intermediate_size"), shared = keys_.integer("n_shared_experts");
    to_.set("moe_ffn_hidden_size", size);
    if (shared > 0) to_.set("moe_shared_expert_intermediate_size", shared * size);
    if (const double scale = keys_.number("routed_scaling_factor"); scale != 1)
      to_.set("moe_router_topk_scaling_factor", scale);
    moe_layers(moe, "first_k_dense_replace");
    return true;
  }

  void groups(int64_t scores) {
    const int64_t count = keys_.integer("n_group"), chosen = keys_.integer("topk_group");
    if (count <= 1) return;
    to_.set("moe_router_num_groups", count);
    to_.set("moe_router_group_topk", chosen);
    to_.set("moe_router_group_score_topk", scores);
  }

  void deepseek_v2() {
    deepseek();
    to_.set("rotary_interleaved", true);
    keys_.find("rope_interleave");  // it has no effect there
    if (!deepseek_experts()) return;
    keys_.only("norm_topk_prob", false, "transformers' DeepSeek-V2 does not divide by the sum, whatever this says");
    keys_.only("scoring_func", "softmax", "DeepSeek-V2's scores are a softmax");
    to_.set("moe_router_pre_softmax", true);
    const std::string method = keys_.text("topk_method");
    if (method == "group_limited_greedy")
      groups(1);
    else if (method != "greedy")
      keys_.refuse("topk_method", "DeepSeek-V2 chooses by greedy or group_limited_greedy");
    keys_.find("n_group");
    keys_.find("topk_group");
  }

  void deepseek_v3() {
    deepseek();
    if (keys_.truthy("rope_interleave")) to_.set("rotary_interleaved", true);
    out_.mtp_layers = keys_.integer("num_nextn_predict_layers");
    if (!deepseek_experts()) return;
    keys_.only("scoring_func", "sigmoid", "DeepSeek-V3's scores are sigmoids");
    keys_.only("topk_method", "noaux_tc", "DeepSeek-V3 chooses by scores with a bias");
    to_.set("moe_router_score_function", "sigmoid");
    to_.set("moe_router_enable_expert_bias", true);
    to_.set("moe_router_norm_topk_prob", keys_.truthy("norm_topk_prob") ? "true" : "false");
    groups(2);
  }

  void gpt2() {
    layers_ = keys_.integer("n_layer");
    hidden_ = keys_.integer("n_embd");
    to_.set("num_layers", layers_);
    to_.set("hidden_size", hidden_);
    to_.set("vocab_size", keys_.integer("vocab_size"));
    to_.set("ffn_hidden_size", keys_.integer("n_inner", 4 * hidden_));
    to_.set("num_attention_heads", keys_.integer("n_head"));
    to_.set("num_query_groups", keys_.integer("n_head"));
    out_.positions = keys_.integer("n_positions");
    to_.set("position_embedding_type", "learned_absolute");
    to_.set("max_position_embeddings", out_.positions);
    to_.set("num_experts", int64_t{0});
    to_.set("normalization", "LayerNorm");
    to_.set("norm_bias", true);
    to_.set("norm_epsilon", keys_.number("layer_norm_epsilon"));
    to_.set("add_bias_linear", true);
    read_hf_activation(keys_, to_, "activation_function", "gelu_new", false);
    to_.set("untie_embeddings_and_output_weights", !keys_.flag("tie_word_embeddings"));
    keys_.only("scale_attn_weights", true, "Witan divides logits of attention by the root of a head's channels");
    if (keys_.flag("scale_attn_by_inverse_layer_idx", false)) to_.set("scale_attn_by_inverse_layer_idx", true);
    keys_.only("add_cross_attention", false, "Witan has no cross attention");
    training_keys("attn_pdrop");
    const double dropout = keys_.number("resid_pdrop");
    if (keys_.number("embd_pdrop") != dropout)
      keys_.refuse("embd_pdrop", "Witan drops embeddings and the residual stream with one probability: resid_pdrop");
    if (dropout > 0) to_.set("hidden_dropout", dropout);
  }

  // compressed-tensors: scales alone tell groups of which size there are.
  void packed_weights(HfKeys& of) {
    of.only("format", "pack-quantized", "Witan reads compressed-tensors' weights in pack-quantized");
    of.only("kv_cache_scheme", nullptr, "Witan does not quantise keys and values");
    const Json* groups = of.find("config_groups");
    if (!groups || !groups->is_object() || groups->empty())
      of.refuse("config_groups", "compressed-tensors says there how weights are quantised");
    for (const auto& [name, group] : groups->items()) {
      HfKeys one(group, of.where() + ".config_groups." + name);
      one.only("format", "pack-quantized", "Witan reads compressed-tensors' weights in pack-quantized");
      for (const char* key : {"input_activations", "output_activations"})
        one.only(key, nullptr, "Witan does not quantise activations");
      const Json* weights = one.find("weights");
      if (!weights) one.refuse("weights", "it says how weights are quantised");
      HfKeys args(*weights, one.where() + ".weights");
      args.only("type", "int", "Witan reads whole numbers");
      args.only("symmetric", true, "Witan reads numbers without a zero point");
      args.only("actorder", nullptr, "Witan reads groups of neighbouring elements");
      const int64_t bits = args.integer("num_bits");
      if ((bits != 4 && bits != 8) || (out_.packed_bits != 0 && out_.packed_bits != bits))
        args.refuse("num_bits", "Witan reads 4 bits or 8, the same in all groups");
      out_.packed_bits = static_cast<int>(bits);
    }
  }

  void quantization() {
    const Json* given = keys_.find("quantization_config");
    if (!given) return;
    HfKeys of(*given, keys_.where() + ": quantization_config");
    const std::string method = of.text("quant_method", "");
    if (method == "mxfp4") return;
    if (method == "compressed-tensors") return packed_weights(of);
    if (method != "fp8")
      of.refuse("quant_method",
                "Witan reads weights in mxfp4, in blocks of fp8 and in compressed-tensors' whole numbers");
    of.only("fmt", "e4m3", "Witan reads float8 weights in E4M3");
    const Json* block = of.find("weight_block_size");
    if (!block || !block->is_array() || block->size() != 2 || (*block)[0] != (*block)[1] ||
        !(*block)[0].is_number_integer() || (*block)[0] < 1)
      of.refuse("weight_block_size", "Witan reads float8 weights with a scale for each square block, as [128, 128]");
    out_.fp8_block = (*block)[0].get<int64_t>();
  }

  HfKeys keys_;
  HfSettings to_;
  HfModel& out_;
  int64_t layers_ = 0, hidden_ = 0;
  bool latent_ = false;
};

}  // namespace

HfModel read_hf_config(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  require<ConfigError>(json.is_object(), where, ": a config.json is an object, found ", json.type_name());
  const auto type = json.find("model_type");
  require<ConfigError>(type != json.end() && type->is_string(), where, ": model_type is missing: it names the kind of ",
                       "model");
  HfModel model;
  model.architecture = find_architecture(type->get<std::string>());
  if (model.architecture == nullptr) {
    std::string known;
    for (const Architecture& one : architectures()) known += cat(known.empty() ? "" : ", ", one.model_type);
    throw ConfigError(cat(where, ": model_type = ", clipped(type->get<std::string>()),
                          ": Witan cannot represent models of this type; it knows ", known));
  }
  HfReader(json, where, model).read();
  try {
    ModelConfig checked = model.model;
    if (checked.attention.max_position_embeddings == 0) checked.attention.max_position_embeddings = model.positions;
    checked.validate();
  } catch (const ConfigError& error) {
    refuse_hf_model(json, where, error.what());
  }
  return model;
}

}  // namespace witan
