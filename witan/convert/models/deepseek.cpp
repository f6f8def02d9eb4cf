// DeepSeek-V2 and V3: multi-head latent attention, shared experts, groups of experts, multi-token prediction. Kimi K2
// is a DeepSeek-V3, and GLM-4.7-Flash one with other keys. DeepSeek-V3.2 and GLM-5 have an indexer, by which tokens
// choose the keys that they attend to.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kIndexerRules[] = {
    {"attention.indexer.wq_b.weight", "layers.{l}.self_attn.indexer.wq_b.weight"},
    {"attention.indexer.wk.weight", "layers.{l}.self_attn.indexer.wk.weight"},
    {"attention.indexer.k_norm.weight", "layers.{l}.self_attn.indexer.k_norm.weight"},
    {"attention.indexer.k_norm.bias", "layers.{l}.self_attn.indexer.k_norm.bias"},
    {"attention.indexer.weights_proj.weight", "layers.{l}.self_attn.indexer.weights_proj.weight"},
};

// ---- config.json

void read_latent(HfReader& in) {
  in.sizes(HfHeads::latent);
  in.activation();
  in.rope();
  in.to.set("multi_latent_attention", true);
  if (const auto rank = in.keys.nullable_integer("q_lora_rank")) in.to.set("q_lora_rank", *rank);
  in.to.set("kv_lora_rank", in.keys.integer("kv_lora_rank"));
  const int64_t nope = in.keys.integer("qk_nope_head_dim"), rotary = in.keys.integer("qk_rope_head_dim");
  in.to.set("qk_head_dim", nope);
  in.to.set("qk_pos_emb_head_dim", rotary);
  in.to.set("v_head_dim", in.keys.integer("v_head_dim"));
  in.keys.only("qk_head_dim", nope + rotary, "must be qk_nope_head_dim + qk_rope_head_dim");
  in.keys.only("head_dim", rotary, "must be qk_rope_head_dim, the channels that rotate");
}

void read_v2_router(HfReader& in) {
  in.keys.only("norm_topk_prob", false, "transformers' DeepSeek-V2 does not divide by the sum, whatever this says");
  in.keys.only("scoring_func", "softmax", "DeepSeek-V2's scores are a softmax");
  in.to.set("moe_router_pre_softmax", true);
  const std::string method = in.keys.text("topk_method");
  if (method == "group_limited_greedy")
    in.expert_groups(1);
  else if (method != "greedy")
    in.keys.refuse("topk_method", "DeepSeek-V2 chooses by greedy or group_limited_greedy");
  in.keys.find("n_group");
  in.keys.find("topk_group");
}

void read_deepseek_rest(HfReader& in) {
  in.no_attention_bias("Witan's latent attention has no biases");
  in.no_mlp_bias();
  in.full_attention();
}

void read_deepseek_v2(HfReader& in) {
  read_latent(in);
  in.to.set("rotary_interleaved", true);
  in.keys.find("rope_interleave");  // it has no effect there
  if (in.routed_experts(in.layers_after_dense(), "first_k_dense_replace")) read_v2_router(in);
  read_deepseek_rest(in);
}

void read_deepseek_v3(HfReader& in) {
  read_latent(in);
  if (in.keys.truthy("rope_interleave")) in.to.set("rotary_interleaved", true);
  in.model.mtp_layers = in.keys.integer("num_nextn_predict_layers");
  if (in.routed_experts(in.layers_after_dense(), "first_k_dense_replace")) in.sigmoid_router();
  read_deepseek_rest(in);
}

// GLM-4.7-Flash lists the layers with experts in mlp_layer_types.
void read_glm4_moe_lite(HfReader& in) {
  read_latent(in);
  if (in.keys.truthy("rope_interleave")) in.to.set("rotary_interleaved", true);
  in.model.mtp_layers = in.keys.integer("num_nextn_predict_layers", 0);
  std::vector<bool> moe(static_cast<size_t>(in.layers), true);
  if (!moe.empty()) moe.front() = false;
  moe = in.sparse_layers(std::move(moe));
  in.keys.only("first_k_dense_replace", std::ranges::find(moe, true) - moe.begin(),
               "transformers makes the layers of mlp_layer_types sparse, or all but the first, whatever this key says");
  in.keys.only("moe_layer_freq", 1, "transformers passes over this key in models of this type");
  if (in.routed_experts(moe, "mlp_layer_types")) in.sigmoid_router();
  read_deepseek_rest(in);
}

// ---- Sparse attention

void read_indexed_layers(HfReader& in) {
  const Json* types = in.keys.find("layer_types");
  if (types && std::ranges::any_of(*types, [](const Json& type) { return type != "indexed_attention"; }))
    in.keys.refuse("layer_types", "all layers of models of this type have indexed_attention");
}

void read_indexed(HfReader& in, bool interleaved) {
  read_latent(in);
  in.to.set("rotary_interleaved", true);
  in.keys.find("rope_interleave");  // transformers rotates neighbouring channels, whatever it says
  in.keys.only("indexer_rope_interleave", interleaved, "transformers rotates the indexer of this type so");
  in.to.set("experimental_attention_variant", SparseAttentionConfig::kVariant);
  in.to.set("dsa_indexer_n_heads", in.keys.integer("index_n_heads"));
  in.to.set("dsa_indexer_head_dim", in.keys.integer("index_head_dim"));
  in.to.set("dsa_indexer_topk", in.keys.integer("index_topk"));
  if (interleaved) in.to.set("dsa_indexer_rope_interleaved", true);
  in.model.mtp_layers = in.keys.integer("num_nextn_predict_layers", 0);
  std::vector<bool> moe;
  for (int64_t layer = 0, dense = in.keys.integer("first_k_dense_replace"); layer < in.layers; ++layer)
    moe.push_back(layer >= dense);
  in.keys.only("moe_layer_freq", 1, "transformers passes over this key in models of this type");
  if (in.routed_experts(in.sparse_layers(std::move(moe)), "mlp_layer_types")) in.sigmoid_router();
  in.no_attention_bias("Witan's latent attention has no biases");
  in.no_mlp_bias();
  read_indexed_layers(in);
}

// The layers with an indexer of their own: by indexer_types, a pattern of F and S, or every n-th from an offset on.
std::vector<bool> full_indexers(HfReader& in) {
  std::vector<bool> full;
  const auto read = [&](const char* key, const Json& types, const char* own, const char* shared) {
    if (static_cast<int64_t>(types.size()) != in.layers)
      in.keys.refuse(key, "must have an entry for each of num_hidden_layers");
    for (const Json& type : types) {
      if (type != own && type != shared) in.keys.refuse(key, cat("an entry must be ", own, " or ", shared));
      full.push_back(type == own);
    }
  };
  const int64_t step = std::max<int64_t>(in.keys.integer("index_topk_freq", 1), 1),
                offset = in.keys.integer("index_skip_topk_offset", 2);
  const Json* const pattern = in.keys.find("index_topk_pattern");
  if (const Json* types = in.keys.find("indexer_types")) {
    if (!types->is_array()) in.keys.refuse("indexer_types", "must be a list");
    read("indexer_types", *types, "full", "shared");
  } else if (pattern && pattern->is_string()) {
    Json letters = Json::array();
    for (const char letter : pattern->get<std::string>()) letters.push_back(std::string(1, letter));
    read("index_topk_pattern", letters, "F", "S");
  } else if (pattern) {
    if (!pattern->is_array()) in.keys.refuse("index_topk_pattern", "must be a list, or letters F and S");
    read("index_topk_pattern", *pattern, "full", "shared");
  } else {
    for (int64_t layer = 0; layer < in.layers; ++layer)
      full.push_back(std::max<int64_t>(layer - offset + 1, 0) % step == 0);
  }
  return full;
}

void read_glm_moe_dsa(HfReader& in) {
  read_indexed(in, true);
  const std::vector<bool> full = full_indexers(in);
  if (std::ranges::find(full, false) == full.end()) return;
  std::string list = "[";
  for (const bool own : full) list += cat(list.size() > 1 ? "," : "", own ? 1 : 0);
  in.to.set("dsa_indexer_freq", list + "]");
}

// Writes everything but the routers' differences; false if no layer has experts.
bool write_deepseek(HfWriter& to) {
  const AttentionConfig& attention = to.model.attention;
  HfWriter::Out& out = to.out;
  to.sizes(HfHeads::latent);
  out["attention_bias"] = false;
  to.rope();
  out["q_lora_rank"] = attention.q_lora_rank > 0 ? HfWriter::Out(attention.q_lora_rank) : HfWriter::Out();
  out["kv_lora_rank"] = attention.kv_lora_rank;
  out["qk_nope_head_dim"] = attention.latent_qk_head_dim;
  out["qk_rope_head_dim"] = attention.qk_pos_emb_head_dim;
  out["v_head_dim"] = attention.value_head_dim(to.model.hidden_size);
  out["rope_interleave"] = attention.rotary_interleaved;
  to.dense_layers_first();
  if (to.model.mtp_num_layers > 0) out["num_nextn_predict_layers"] = to.model.mtp_num_layers;
  return to.routed_experts();
}

void write_indexed(HfWriter& to) {
  const bool experts = write_deepseek(to);
  to.out.erase("rope_interleave");
  if (experts) to.sigmoid_router();
  to.mlp_layer_types();
  const SparseAttentionConfig& sparse = to.model.sparse_attention;
  to.out["index_n_heads"] = sparse.dsa_indexer_n_heads;
  to.out["index_head_dim"] = sparse.dsa_indexer_head_dim;
  to.out["index_topk"] = sparse.dsa_indexer_topk;
}

void write_glm_moe_dsa(HfWriter& to) {
  write_indexed(to);
  HfWriter::Out& types = to.out["indexer_types"] = HfWriter::Out::array();
  const std::vector<int64_t> from = to.model.sparse_attention.sources(to.model.num_layers);
  for (size_t layer = 0; layer < from.size(); ++layer)
    types.push_back(from[layer] == static_cast<int64_t>(layer) ? "full" : "shared");
}

// ---- GGUF files

constexpr GgufRule kGgufIndexer[] = {
    {"attention.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"attention.indexer.wk.weight", "indexer.attn_k.weight"},
    {"attention.indexer.k_norm.weight", "indexer.k_norm.weight"},
    {"attention.indexer.k_norm.bias", "indexer.k_norm.bias"},
    {"attention.indexer.weights_proj.weight", "indexer.proj.weight"},
};

// YaRN's factor of attention, which llama.cpp's "deepseek2" always scales by.
void read_yarn_magnitude(GgufReader& in) {
  Json& rope = in.out["rope_parameters"];
  if (rope["rope_type"] != "yarn") return;
  const double multiplier = in.number("rope.scaling.yarn_log_multiplier", 0.0);
  require<ConfigError>(multiplier > 0, in.source(), ": ", in.key("rope.scaling.yarn_log_multiplier"),
                       " is missing, by which llama.cpp scales the attention of this architecture");
  rope["mscale"] = rope["mscale_all_dim"] = gguf_real(multiplier / kMscaleUnit);
}

void read_gguf_deepseek(GgufReader& in, bool v3) {
  in.sizes();
  in.integer("attention.head_count_kv", 1);  // that of the latent, not of the model's heads
  in.out["num_key_value_heads"] = in.out["num_attention_heads"];
  in.rope();
  read_yarn_magnitude(in);
  in.out["q_lora_rank"] =
      in.find("attention.q_lora_rank") != nullptr ? Json(in.integer("attention.q_lora_rank")) : Json();
  in.out["kv_lora_rank"] = in.integer("attention.kv_lora_rank");
  const int64_t rotary = in.integer("rope.dimension_count"), joined = in.integer("attention.key_length", 0),
                values = in.integer("attention.value_length", 0);
  in.out["qk_rope_head_dim"] = rotary;
  in.out["qk_nope_head_dim"] = in.integer("attention.key_length_mla", joined) - rotary;
  in.out["v_head_dim"] = in.integer("attention.value_length_mla", values);
  in.routed_experts();
  require<ConfigError>(v3 || in.out["n_group"] == 1, in.source(), ": ", in.key("expert_group_count"), " = ",
                       in.out["n_group"].dump(), ": llama.cpp scores groups of experts as DeepSeek-V3 does, not as V2");
}

// llama.cpp computes attention with one head of keys and values that is as wide as the latent.
void write_gguf_deepseek(GgufWriter& to) {
  to.sizes();
  to.rope();
  const Json& hf = to.hf;
  const int64_t rank = hf.at("kv_lora_rank").get<int64_t>(), rotary = hf.at("qk_rope_head_dim").get<int64_t>();
  to.put("attention.head_count_kv", 1);
  to.need_experts();
  require<ConfigError>(hf.at("q_lora_rank").is_number() || to.model.num_layers == 26 || to.model.num_layers == 27,
                       "q_lora_rank = 0: llama.cpp's model of type deepseek2 has queries that are projected at once "
                       "only where it has 26 or 27 layers (DeepSeek-V2-Lite): export --format hf");
  if (hf.at("q_lora_rank").is_number()) to.put("attention.q_lora_rank", "q_lora_rank");
  to.put("attention.kv_lora_rank", rank);
  to.put("attention.key_length", rank + rotary);
  to.put("attention.value_length", rank);
  to.put("attention.key_length_mla", hf.at("qk_nope_head_dim").get<int64_t>() + rotary);
  to.put("attention.value_length_mla", "v_head_dim");
  to.put("rope.dimension_count", rotary);
  to.routed_experts();
}

void write_gguf_deepseek_v3(GgufWriter& to) {
  write_gguf_deepseek(to);
  to.put("expert_gating_func", kSigmoidGate);
  to.expert_groups();
}

void read_gguf_indexed(GgufReader& in) {
  read_gguf_deepseek(in, true);
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "models of this type have sigmoids as scores");
  in.out["index_n_heads"] = in.integer("attention.indexer.head_count");
  in.out["index_head_dim"] = in.integer("attention.indexer.key_length");
  in.out["index_topk"] = in.integer("attention.indexer.top_k");
}

void write_gguf_indexed(GgufWriter& to) {
  write_gguf_deepseek_v3(to);
  to.put("attention.indexer.head_count", "index_n_heads");
  to.put("attention.indexer.key_length", "index_head_dim");
  to.put("attention.indexer.top_k", "index_topk");
}

// Files that do not say which layers share a choice of keys are of GLM-5, in which none does, or of GLM-5.2, whose
// context is longer.
void read_gguf_glm_dsa(GgufReader& in) {
  constexpr int64_t kSharingContext = 1 << 20;
  read_gguf_indexed(in);
  if (in.find("attention.indexer.types") != nullptr) {
    in.out["indexer_types"] = Json::array();
    for (const int64_t own : in.of_layers("attention.indexer.types"))
      in.out["indexer_types"].push_back(own != 0 ? "full" : "shared");
  } else if (in.integer("context_length") >= kSharingContext) {
    in.out["index_topk_freq"] = 4;
    in.out["index_skip_topk_offset"] = 3;
  }
}

void write_gguf_glm_dsa(GgufWriter& to) {
  write_gguf_indexed(to);
  std::vector<int64_t> own;
  for (const Json& type : to.hf.at("indexer_types")) own.push_back(type == "full" ? 1 : 0);
  to.put_list("attention.indexer.types", std::move(own), GgufType::flag);
}

Architecture deepseek_v2_architecture() {
  Architecture v2{
      "deepseek_v2",
      "DeepseekV2ForCausalLM",
      "model.",
      {kModelRules, kPreNormRules, kLatentRules, kMlpRules, kMoeRules, kRouterBiasRules, kSharedExpertRules}};
  v2.mtp_layers = true;
  v2.defaults = {kLlamaDefaults, R"({"vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": 1536,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
      "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
      "topk_method": "greedy", "norm_topk_prob": false, "output_router_logits": false})"};
  v2.read = read_deepseek_v2;
  v2.write = [](HfWriter& to) {
    if (write_deepseek(to))
      to.out["topk_method"] = to.model.moe.moe_router_num_groups > 0 ? "group_limited_greedy" : "greedy";
  };
  v2.gguf = {.name = "deepseek2", .rules = {kGgufCommon, kGgufNorms, kGgufLatent}, .untied = true};
  v2.gguf.matches = [](GgufReader& in) { return in.integer("expert_gating_func", kSoftmaxGate) != kSigmoidGate; };
  v2.gguf.read = [](GgufReader& in) { read_gguf_deepseek(in, false); };
  v2.gguf.write = [](GgufWriter& to) {
    write_gguf_deepseek(to);
    to.put("expert_gating_func", kSoftmaxGate);
  };
  return v2;
}

Architecture deepseek_v3_architecture() {
  Architecture v3 = deepseek_v2_architecture();
  v3.model_type = "deepseek_v3";
  v3.name = "DeepseekV3ForCausalLM";
  v3.other_types = {"kimi_k2"};
  v3.rules.emplace_back(kMtpRules);
  v3.defaults = {kLlamaDefaults, R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
      "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
      "max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_interleave": true, "n_routed_experts": 256,
      "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
      "output_router_logits": false, "num_nextn_predict_layers": 1})"};
  v3.read = read_deepseek_v3;
  v3.write = [](HfWriter& to) {
    if (write_deepseek(to)) to.sigmoid_router();
  };
  v3.gguf.matches = [](GgufReader& in) { return in.integer("expert_gating_func", kSoftmaxGate) == kSigmoidGate; };
  v3.gguf.read = [](GgufReader& in) { read_gguf_deepseek(in, true); };
  v3.gguf.write = write_gguf_deepseek_v3;
  return v3;
}

Architecture glm4_moe_lite_architecture() {
  Architecture lite = deepseek_v3_architecture();
  lite.model_type = "glm4_moe_lite";
  lite.name = "Glm4MoeLiteForCausalLM";
  lite.other_types = {};
  lite.defaults = {kLlamaDefaults, R"({"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
      "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20, "max_position_embeddings": 202752,
      "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
      "v_head_dim": 256, "rope_interleave": true, "n_routed_experts": 64, "n_shared_experts": 1,
      "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8, "n_group": 1,
      "topk_group": 1, "norm_topk_prob": true, "output_router_logits": false})"};
  lite.read = read_glm4_moe_lite;
  lite.write = [](HfWriter& to) {
    if (write_deepseek(to)) to.sigmoid_router();
    to.mlp_layer_types();
  };
  lite.gguf.matches = [](GgufReader&) { return false; };  // llama.cpp's files of both are alike
  lite.gguf.read = nullptr;
  return lite;
}

Architecture deepseek_v32_architecture() {
  Architecture v32 = deepseek_v3_architecture();
  v32.model_type = "deepseek_v32";
  v32.name = "DeepseekV32ForCausalLM";
  v32.other_types = {};
  v32.rules.emplace_back(kIndexerRules);
  v32.defaults = {kLlamaDefaults, R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
      "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
      "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
      "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
      "output_router_logits": false, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64})"};
  v32.read = [](HfReader& in) { read_indexed(in, false); };
  v32.write = write_indexed;
  v32.gguf = {.name = "deepseek32",
              .rules = {kGgufCommon, kGgufNorms, kGgufLatent, kGgufIndexer},
              .read = read_gguf_indexed,
              .write = write_gguf_indexed};
  return v32;
}

Architecture glm_moe_dsa_architecture() {
  Architecture glm = deepseek_v32_architecture();
  glm.model_type = "glm_moe_dsa";
  glm.name = "GlmMoeDsaForCausalLM";
  glm.defaults = {kLlamaDefaults, R"({"vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
      "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
      "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "kv_lora_rank": 512, "q_lora_rank": 2048,
      "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256,
      "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
      "output_router_logits": false, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32})"};
  glm.read = read_glm_moe_dsa;
  glm.write = write_glm_moe_dsa;
  glm.gguf.name = "glm-dsa";
  glm.gguf.read = read_gguf_glm_dsa;
  glm.gguf.write = write_gguf_glm_dsa;
  return glm;
}

}  // namespace

std::vector<Architecture> deepseek() {
  return {deepseek_v2_architecture(), deepseek_v3_architecture(), glm4_moe_lite_architecture(),
          deepseek_v32_architecture(), glm_moe_dsa_architecture()};
}

}  // namespace witan::models
