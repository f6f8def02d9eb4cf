// ERNIE 4.5: neighbouring channels of a head rotate together, and the model with experts adds a bias to softmax scores
// for the choice of experts.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kErnieBiasRules[] = {
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.mlp.moe_statics.e_score_correction_bias",
     .row = true,
     .storage = ExpertStorage::single},
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.mlp.gate.moe_statics.e_score_correction_bias",
     .row = true,
     .storage = ExpertStorage::fused},
};

constexpr std::string_view kErnieDefaults = R"({"vocab_size": 103424, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 500000.0, "use_bias": false})";

void read_ernie_layers(HfReader& in) {
  in.llama_like();
  in.to.set("rotary_interleaved", true);
  in.no_attention_bias("use_bias says whether models of this type have biases");
  in.keys.only("mlp_bias", false, "use_bias says whether models of this type have biases");
  in.full_attention();
}

void read_ernie(HfReader& in) {
  read_ernie_layers(in);
  in.dense();
  if (!in.keys.flag("use_bias")) return;
  in.to.set("add_attention_bias", true);
  in.to.set("add_mlp_bias", true);
}

void write_ernie(HfWriter& to) {
  to.sizes();
  to.out["use_bias"] = to.has_attention_biases();
  to.rope();
}

Architecture ernie_architecture() {
  Architecture ernie = llama_like("ernie4_5", "Ernie4_5ForCausalLM");
  ernie.defaults = {kLlamaDefaults, kErnieDefaults, R"({"hidden_size": 1024, "intermediate_size": 3072,
      "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128})"};
  ernie.read = read_ernie;
  ernie.write = write_ernie;
  ernie.gguf = {.name = "ernie4_5", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}};
  ernie.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.check_experts();
  };
  ernie.gguf.write = [](GgufWriter& to) { to.llama_like(); };
  return ernie;
}

// ---- The model with experts

// The layers with experts by moe_layer_start_index, moe_layer_end_index (-1: the last) and moe_layer_interval.
std::vector<bool> ernie_moe_layers(HfReader& in) {
  const int64_t start = in.keys.integer("moe_layer_start_index"), step = in.keys.integer("moe_layer_interval");
  const Json* end = in.keys.find("moe_layer_end_index");
  if (end && !end->is_number_integer()) in.keys.refuse("moe_layer_end_index", "must be the number of a layer, or -1");
  if (step == 0) in.keys.refuse("moe_layer_interval", "must be at least 1");
  const int64_t last = !end || *end == -1 ? in.layers - 1 : end->get<int64_t>();
  std::vector<bool> moe;
  for (int64_t layer = 0; layer < in.layers; ++layer)
    moe.push_back((layer + 1) % step == 0 && layer >= start && layer <= last);
  return moe;
}

void read_ernie_moe(HfReader& in) {
  read_ernie_layers(in);
  in.keys.only("use_bias", false, "Witan has biases in shared experts only where experts have them too");
  const std::vector<bool> moe = ernie_moe_layers(in);
  const int64_t size = in.keys.integer("moe_intermediate_size"), shared = in.keys.integer("moe_num_shared_experts"),
                chosen = in.keys.integer("moe_k");
  if (chosen < 2) in.keys.refuse("moe_k", "Witan divides the scores of two experts or more by their sum");
  in.experts(in.keys.integer("moe_num_experts"), chosen);
  in.to.set("moe_ffn_hidden_size", size);
  if (shared > 0) in.to.set("moe_shared_expert_intermediate_size", shared * size);
  in.to.set("moe_router_pre_softmax", true);
  in.to.set("moe_router_norm_topk_prob", "true");
  in.to.set("moe_router_enable_expert_bias", true);
  in.moe_layers(moe, "moe_layer_start_index");
  constexpr double kNegligible = 1e-6;  // sums of chosen probabilities are above it
  if (in.keys.number("moe_norm_min") > kNegligible)
    in.keys.refuse("moe_norm_min", "Witan divides the chosen scores by their sum, however small it is");
  // Keys of the authors' own code.
  in.keys.only("moe_gate", "topk", "Witan's router chooses the best experts");
  for (const char* key : {"moe_capacity", "moe_use_aux_free", "num_nextn_predict_layers"}) in.keys.find(key);
}

void write_ernie_moe(HfWriter& to) {
  to.sizes();
  to.rope();
  const MoeConfig& moe = to.model.moe;
  to.out["moe_num_experts"] = moe.num_experts;
  to.out["moe_k"] = moe.moe_router_topk;
  to.out["moe_intermediate_size"] = to.width_of_expert();
  to.out["moe_num_shared_experts"] = moe.moe_shared_expert_intermediate_size / to.width_of_expert();
  int64_t first = -1, last = -1, count = 0;
  for (int64_t layer = 0; layer < to.model.num_layers; ++layer)
    if (to.layers[static_cast<size_t>(layer)].moe) {
      if (first < 0) first = layer;
      last = layer;
      ++count;
    }
  // Layers of which every second one has experts, and the like, begin with the interval.
  to.out["moe_layer_start_index"] = std::max<int64_t>(first, 0);
  to.out["moe_layer_end_index"] = last;
  to.out["moe_layer_interval"] = count > 1 ? std::max<int64_t>((last - first) / (count - 1), 1) : 1;
}

// llama.cpp divides the scores of chosen experts by their sum, and loads no files in which layers with experts are
// followed by others.
void read_gguf_ernie_moe(GgufReader& in) {
  in.llama_like();
  in.out["moe_num_experts"] = in.integer("expert_count");
  in.out["moe_k"] = in.integer("expert_used_count");
  const int64_t size = in.integer("expert_feed_forward_length"),
                shared = in.integer("expert_shared_feed_forward_length", 0);
  require<ConfigError>(size > 0 && shared % size == 0, in.source(), ": ", in.key("expert_shared_feed_forward_length"),
                       " = ", shared, " is not a multiple of ", in.key("expert_feed_forward_length"), " = ", size);
  in.out["moe_intermediate_size"] = size;
  in.out["moe_num_shared_experts"] = shared / size;
  in.find("expert_shared_count");  // llama.cpp goes by their width
  in.out["moe_layer_start_index"] = in.integer("leading_dense_block_count", 0);
  in.only("interleave_moe_layer_step", 1,
          "llama.cpp loads only files in which all layers after the first have experts");
  in.only("expert_weights_scale", 1, "ERNIE's weights of experts are not scaled");
  in.only("expert_gating_func", static_cast<double>(kSoftmaxGate), "ERNIE's scores are a softmax");
  in.check_experts();
}

void write_gguf_ernie_moe(GgufWriter& to) {
  to.llama_like();
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_count", "moe_num_shared_experts");
  to.put("expert_shared_feed_forward_length", to.model.moe.moe_shared_expert_intermediate_size);
  to.put("leading_dense_block_count", "moe_layer_start_index");
  to.put("interleave_moe_layer_step", "moe_layer_interval");
}

Architecture ernie_moe_architecture() {
  Architecture moe = llama_like("ernie4_5_moe", "Ernie4_5_MoeForCausalLM");
  moe.rules.insert(moe.rules.end(), {kMoeRules, kErnieBiasRules, kSharedExpertRules});
  moe.defaults = {kLlamaDefaults, kErnieDefaults, R"({"hidden_size": 2560, "intermediate_size": 12288,
      "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4, "moe_intermediate_size": 1536,
      "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
      "moe_layer_interval": 1, "moe_norm_min": 1e-12, "output_router_logits": false,
      "router_aux_loss_coef": 0.001})"};
  moe.read = read_ernie_moe;
  moe.write = write_ernie_moe;
  moe.side = "model.mtp_";
  moe.gguf = {.name = "ernie4_5-moe",
              .rules = {kGgufCommon, kGgufNorms, kGgufAttention},
              .read = read_gguf_ernie_moe,
              .write = write_gguf_ernie_moe};
  return moe;
}

}  // namespace

std::vector<Architecture> ernie() {
  return {ernie_architecture(), ernie_moe_architecture()};
}

}  // namespace witan::models
