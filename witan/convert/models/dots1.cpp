// dots.llm1: attention as Qwen3 has it, experts as DeepSeek-V3 has them.
#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

void read_dots1(HfReader& in) {
  in.llama_like();
  in.to.set("qk_layernorm", true);
  const auto tokens = in.keys.nullable_integer("sliding_window");
  const int64_t from = in.keys.integer("max_window_layers");
  in.window(tokens.value_or(0), in.windowed_layers([&](int64_t layer) { return tokens && layer >= from; }));
  if (in.routed_experts(in.layers_after_dense(), "first_k_dense_replace")) in.sigmoid_router();
  in.attention_bias();
  in.no_mlp_bias();
}

void write_dots1(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  to.layer_types();
  to.sliding_window();
  to.dense_layers_first();
  if (to.routed_experts()) to.sigmoid_router();
}

void read_gguf_dots1(GgufReader& in) {
  in.llama_like();
  in.only("attention.head_count_kv", in.out["num_attention_heads"].get<double>(),
          "llama.cpp's models of this type have keys and values for every head");
  in.out["sliding_window"] = Json();
  in.routed_experts();
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "dots.llm1's scores are sigmoids");
}

void write_gguf_dots1(GgufWriter& to) {
  to.need_experts();
  to.llama_like();
  to.routed_experts();
  to.put("expert_gating_func", kSigmoidGate);
  to.expert_groups();
}

}  // namespace

std::vector<Architecture> dots1() {
  Architecture dots = llama_like("dots1", "Dots1ForCausalLM");
  dots.rules.insert(dots.rules.end(), {kMoeRules, kRouterBiasRules, kSharedExpertRules});
  dots.defaults = {kLlamaDefaults, R"({"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
      "moe_intermediate_size": 1408, "num_hidden_layers": 62, "num_key_value_heads": 32, "n_group": 1, "topk_group": 1,
      "first_k_dense_replace": 0, "norm_topk_prob": false, "routed_scaling_factor": 1.0, "sliding_window": 4096,
      "max_window_layers": 62, "output_router_logits": false})"};
  dots.read = read_dots1;
  dots.write = write_dots1;
  dots.gguf = {.name = "dots1", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}, .untied = true};
  dots.gguf.read = read_gguf_dots1;
  dots.gguf.write = write_gguf_dots1;
  return {dots};
}

}  // namespace witan::models
