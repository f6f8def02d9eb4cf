#include <cmath>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"

namespace witan {

GgufWriter::GgufWriter(std::string_view architecture, const ModelConfig& config, const Json& config_json)
    : model(config), hf(config_json), name_(architecture) {
  out.put_text(kGgufArchitecture, name_);
  out.put_text("general.type", "model");
  out.put_u32("general.quantization_version", 2);
  put("vocab_size", "vocab_size");
}

void GgufWriter::sizes() {
  put("block_count", "num_hidden_layers");
  put("embedding_length", "hidden_size");
  if (hf.contains("intermediate_size")) put("feed_forward_length", "intermediate_size");
  put("attention.head_count", "num_attention_heads");
  put("context_length", hf.contains("max_position_embeddings") ? "max_position_embeddings" : "model_max_length");
  put_real("attention.layer_norm_rms_epsilon", model.norm.norm_epsilon);
}

void GgufWriter::grouped_heads() {
  put("attention.head_count_kv", "num_key_value_heads");
  for (const char* each : {"attention.key_length", "attention.value_length"}) put(each, "head_dim");
  put("rope.dimension_count", std::llround(hf.at("head_dim").get<double>() * model.attention.rotary_percent));
}

void GgufWriter::rope() {
  const Json& of_all = hf.at("rope_parameters");
  rope(of_all.contains("full_attention") ? of_all.at("full_attention") : of_all);
}

void GgufWriter::rope(const Json& rope) {
  const auto& type = rope.at("rope_type").get_ref<const std::string&>();
  put_real("rope.freq_base", rope.at("rope_theta").get<double>());
  if (type != "linear" && type != "yarn") return;
  out.put_text(key("rope.scaling.type"), type);
  put_real("rope.scaling.factor", rope.at("factor").get<double>());
  if (type == "linear") return;
  put("rope.scaling.original_context_length", rope.at("original_max_position_embeddings").get<int64_t>());
  put_real("rope.scaling.yarn_beta_fast", rope.at("beta_fast").get<double>());
  put_real("rope.scaling.yarn_beta_slow", rope.at("beta_slow").get<double>());
  if (rope.contains("mscale_all_dim"))
    put_real("rope.scaling.yarn_log_multiplier", kMscaleUnit * rope.at("mscale_all_dim").get<double>());
}

void GgufWriter::llama_like() {
  sizes();
  grouped_heads();
  rope();
}

void GgufWriter::routed_experts() {
  put("leading_dense_block_count", hf.value("first_k_dense_replace", int64_t{0}));
  experts();
  put("expert_feed_forward_length", "moe_intermediate_size");
  put("expert_shared_count", "n_shared_experts");
  put_real("expert_weights_scale", hf.at("routed_scaling_factor").get<double>());
  out.put_flag(key("expert_weights_norm"), hf.value("norm_topk_prob", false));
}

void GgufWriter::expert_groups() {
  if (hf.at("n_group").get<int64_t>() <= 1) return;
  put("expert_group_count", "n_group");
  put("expert_group_used_count", "topk_group");
}

void GgufWriter::mtp_layers() {
  if (model.mtp_num_layers == 0) return;
  put("block_count", model.num_layers + model.mtp_num_layers);
  put("nextn_predict_layers", model.mtp_num_layers);
}

bool GgufWriter::experts() {
  if (model.moe.num_experts == 0) return false;
  put("expert_count", model.moe.num_experts);
  put("expert_used_count", model.moe.moe_router_topk);
  return true;
}

void GgufWriter::need_experts() const {
  require<ConfigError>(model.moe.num_experts > 0, "num_experts = 0: llama.cpp's model of type ", name_,
                       " has experts: export --format hf");
}

}  // namespace witan
