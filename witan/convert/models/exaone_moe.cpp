// K-EXAONE: layers with a window rotate, those with full attention do not; DeepSeek-V3's experts.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kExaoneBiasRules[] = {
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.mlp.e_score_correction_bias",
     .storage = ExpertStorage::single},
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.mlp.gate.e_score_correction_bias",
     .storage = ExpertStorage::fused},
};

// sliding_window_pattern = N gives full attention to every N-th layer. Its other form, a text such as "LLLG", only
// repeats layer_types.
std::vector<bool> windows_by_pattern(HfReader& in) {
  const Json* pattern = in.keys.find("sliding_window_pattern");
  const bool number = pattern && pattern->is_number_integer() && *pattern > 0;
  if (!number && !in.keys.has("layer_types"))
    in.keys.refuse("sliding_window_pattern", "must be a whole number above 0 where layer_types is absent");
  const int64_t period = number ? pattern->get<int64_t>() : 1;
  return in.windowed_layers([&](int64_t layer) { return (layer + 1) % period != 0; });
}

void read_exaone_moe(HfReader& in) {
  in.llama_like();
  in.to.set("qk_layernorm", true);
  if (in.keys.is_null("sliding_window")) in.keys.refuse("sliding_window", "transformers needs a number here");
  const std::vector<bool> windowed = windows_by_pattern(in);
  in.window(in.keys.integer("sliding_window"), windowed);
  std::vector<bool> still = windowed;
  still.flip();
  in.no_rope_layers(still);
  const std::vector<bool> moe = in.sparse_layers(in.layers_after_dense());
  if (in.routed_experts(moe, "mlp_layer_types", "num_experts", "num_shared_experts")) in.sigmoid_router();
  in.no_attention_bias();
  in.no_mlp_bias();
}

void write_exaone_moe(HfWriter& to) {
  to.sizes();
  to.rope();
  to.layer_types();
  to.sliding_window();
  to.mlp_layer_types();
  to.dense_layers_first();
  if (to.routed_experts("num_experts", "num_shared_experts")) to.sigmoid_router();
}

// ---- GGUF files

// The pattern is a list with true for layers with a window, or the N of which every N-th layer has none.
Json gguf_layer_types(GgufReader& in) {
  constexpr int64_t kPeriod = 4;
  const GgufValue* pattern = in.find("attention.sliding_window_pattern");
  std::vector<int64_t> windowed;
  if (pattern && pattern->array) windowed = in.of_layers("attention.sliding_window_pattern");
  const int64_t period = pattern && pattern->array ? 0 : in.integer("attention.sliding_window_pattern", kPeriod);
  for (auto layer = static_cast<int64_t>(windowed.size()); layer < in.integer("block_count"); ++layer)
    windowed.push_back(period == 0 || layer % period < period - 1 ? 1 : 0);
  Json types = Json::array();
  for (const int64_t one : windowed) types.push_back(one != 0 ? "sliding_attention" : "full_attention");
  return types;
}

void read_gguf_exaone_moe(GgufReader& in) {
  in.llama_like();
  in.out["sliding_window"] = in.integer("attention.sliding_window");
  in.out["layer_types"] = gguf_layer_types(in);
  in.only("rope.freq_base_swa", in.out["rope_parameters"]["rope_theta"].get<double>(),
          "K-EXAONE's layers rotate with one base");
  in.routed_experts();
  const int64_t shared = in.out["n_shared_experts"].get<int64_t>(),
                size = in.out["moe_intermediate_size"].get<int64_t>();
  in.only("expert_shared_feed_forward_length", static_cast<double>(shared * size),
          "Witan reads shared experts as wide as expert_shared_count others");
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "K-EXAONE's scores are sigmoids");
  in.out["num_experts"] = in.out["n_routed_experts"];
  in.out["num_shared_experts"] = shared;
  for (const char* key : {"n_routed_experts", "n_shared_experts"}) in.out.erase(key);
}

void write_gguf_exaone_moe(GgufWriter& to) {
  to.need_experts();
  to.llama_like();
  if (to.hf.at("sliding_window").is_number()) to.put("attention.sliding_window", "sliding_window");
  std::vector<int64_t> windowed;
  for (const Json& type : to.hf.at("layer_types")) windowed.push_back(type == "sliding_attention" ? 1 : 0);
  to.put_list("attention.sliding_window_pattern", std::move(windowed), GgufType::flag);
  to.put("leading_dense_block_count", "first_k_dense_replace");
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_count", "num_shared_experts");
  to.put("expert_shared_feed_forward_length",
         to.hf.at("num_shared_experts").get<int64_t>() * to.hf.at("moe_intermediate_size").get<int64_t>());
  to.put_real("expert_weights_scale", to.hf.at("routed_scaling_factor").get<double>());
  to.out.put_flag(to.key("expert_weights_norm"), to.hf.value("norm_topk_prob", false));
  to.put("expert_gating_func", kSigmoidGate);
  to.put("nextn_predict_layers", int64_t{0});
  if (to.out.find(to.key("rope.scaling.type")) == nullptr) to.out.put_text(to.key("rope.scaling.type"), "none");
  to.expert_groups();
}

}  // namespace

std::vector<Architecture> exaone_moe() {
  Architecture exaone = llama_like("exaone_moe", "ExaoneMoeForCausalLM");
  exaone.rules.insert(exaone.rules.end(), {kMoeRules, kExaoneBiasRules, kSharedExpertRules});
  exaone.defaults = {kLlamaDefaults, R"({"vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
      "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4, "first_k_dense_replace": 1,
      "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
      "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
      "output_router_logits": false})"};
  exaone.read = read_exaone_moe;
  exaone.write = write_exaone_moe;
  exaone.side = "mtp.";
  exaone.gguf = {.name = "exaone-moe",
                 .rules = {kGgufCommon, kGgufNorms, kGgufAttention},
                 .read = read_gguf_exaone_moe,
                 .write = write_gguf_exaone_moe,
                 .untied = true};
  return {exaone};
}

}  // namespace witan::models
