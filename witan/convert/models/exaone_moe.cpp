// K-EXAONE: layers with a window rotate, those with full attention do not; DeepSeek-V3's experts.
#include <algorithm>

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
  return {exaone};
}

}  // namespace witan::models
