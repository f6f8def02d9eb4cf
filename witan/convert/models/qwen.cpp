// Qwen 2, 2.5 and 3, and the models with experts of Qwen 1.5, 2 and 3.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

// Qwen3-MoE has its window in all layers or in none, regardless of layer_types; the others in the layers it names.
void read_qwen_windows(HfReader& in, bool alike) {
  const auto tokens = in.keys.nullable_integer("sliding_window");
  const bool slides = in.keys.flag("use_sliding_window") && tokens;
  const int64_t from = in.keys.integer("max_window_layers", 0);
  std::vector<bool> windowed = in.windowed_layers([&](int64_t layer) { return slides && layer >= from; });
  if (alike) windowed.assign(windowed.size(), slides);
  if (!slides && std::ranges::find(windowed, true) != windowed.end())
    in.keys.refuse("layer_types", "layers of sliding_attention need use_sliding_window = true and a sliding_window");
  in.window(tokens.value_or(0), windowed);
}

void write_qwen_windows(HfWriter& to) {
  to.sliding_window();
  to.out["use_sliding_window"] = to.out["sliding_window"].is_number();
}

GgufArchitecture qwen_gguf(std::string_view name) {
  return {
      .name = name,
      .rules = {kGgufCommon, kGgufNorms, kGgufAttention},
      .read =
          [](GgufReader& in) {
            in.llama_like();
            in.check_experts();
          },
      .write = [](GgufWriter& to) { to.llama_like(); },
  };
}

Architecture qwen2_architecture() {
  Architecture qwen2 = llama_like("qwen2", "Qwen2ForCausalLM");
  qwen2.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
      "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28})"};
  qwen2.read = [](HfReader& in) {
    in.llama_like();
    in.dense();
    in.to.set("add_qkv_bias", true);
    read_qwen_windows(in, false);
    in.no_attention_bias();
    in.no_mlp_bias();
  };
  qwen2.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = false;
    to.rope();
    to.layer_types();
    write_qwen_windows(to);
  };
  qwen2.gguf = qwen_gguf("qwen2");
  qwen2.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.heads_fill_stream();
    in.check_experts();
  };
  return qwen2;
}

Architecture qwen3_architecture() {
  Architecture qwen3 = llama_like("qwen3", "Qwen3ForCausalLM");
  qwen3.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
      "head_dim": 128, "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28})"};
  qwen3.read = [](HfReader& in) {
    in.llama_like();
    in.dense();
    in.to.set("qk_layernorm", true);
    read_qwen_windows(in, false);
    in.attention_bias();
    in.no_mlp_bias();
  };
  qwen3.write = [](HfWriter& to) {
    to.sizes();
    to.out["attention_bias"] = to.has_attention_biases();
    to.rope();
    to.layer_types();
    write_qwen_windows(to);
  };
  qwen3.gguf = qwen_gguf("qwen3");
  return qwen3;
}

// ---- Models with experts

void read_qwen2_moe(HfReader& in) {
  in.llama_like();
  const bool slides = in.keys.flag("use_sliding_window");
  const int64_t tokens = in.keys.nullable_integer("sliding_window").value_or(0),
                before = in.keys.integer("max_window_layers");
  in.window(slides ? tokens : 0,
            in.windowed_layers([&](int64_t layer) { return slides && layer % 2 == 0 && layer < before; }));
  in.experts();
  if (in.to.model().moe.num_experts == 0) in.keys.refuse("num_experts", "a model without experts is one of type qwen2");
  in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
  const int64_t shared = in.keys.integer("shared_expert_intermediate_size");
  if (shared == 0) in.keys.refuse("shared_expert_intermediate_size", "each layer has a shared expert");
  in.to.set("moe_shared_expert_intermediate_size", shared);
  in.to.set("moe_shared_expert_gate", true);
  in.softmax_router();
  in.moe_layers(in.layers_by_sparse_step(), "mlp_only_layers");
  if (in.keys.flag("qkv_bias")) in.to.set("add_qkv_bias", true);
  in.no_attention_bias();
  in.no_mlp_bias();
}

void write_qwen2_moe(HfWriter& to) {
  to.sizes();
  to.out["qkv_bias"] = to.model.attention.add_qkv_bias;
  to.rope();
  to.layer_types();
  write_qwen_windows(to);
  to.experts("num_experts", "moe_intermediate_size");
  to.out["shared_expert_intermediate_size"] = to.model.moe.moe_shared_expert_intermediate_size;
  to.norm_topk_prob();
  to.mlp_only_layers();
}

void read_gguf_qwen2_moe(GgufReader& in) {
  in.llama_like();
  in.heads_fill_stream();
  in.experts("num_experts");
  in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  in.out["shared_expert_intermediate_size"] =
      in.integer("expert_shared_feed_forward_length", in.out["intermediate_size"].get<int64_t>());
  in.out["qkv_bias"] = in.facts().qkv_biases;
  in.out["norm_topk_prob"] = false;
  in.only("expert_gating_func", static_cast<double>(kSoftmaxGate), "Qwen2's scores are a softmax");
  in.check_experts(false);
}

void write_gguf_qwen2_moe(GgufWriter& to) {
  to.llama_like();
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
}

Architecture qwen2_moe_architecture() {
  Architecture moe = llama_like("qwen2_moe", "Qwen2MoeForCausalLM");
  moe.rules.insert(moe.rules.end(), {kMoeRules, kGatedSharedExpertRules});
  moe.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
      "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32768,
      "use_sliding_window": false, "max_window_layers": 28, "decoder_sparse_step": 1,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
      "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true, "output_router_logits": false,
      "router_aux_loss_coef": 0.001})"};
  moe.read = read_qwen2_moe;
  moe.write = write_qwen2_moe;
  moe.gguf = qwen_gguf("qwen2moe");
  moe.gguf.rules.emplace_back(kGgufSharedExpertGate);
  moe.gguf.read = read_gguf_qwen2_moe;
  moe.gguf.write = write_gguf_qwen2_moe;
  moe.gguf.untied = true;
  return moe;
}

void read_qwen3_moe(HfReader& in) {
  in.llama_like();
  in.to.set("qk_layernorm", true);
  read_qwen_windows(in, true);
  in.experts();
  in.keys.find("num_experts");  // also given beside num_local_experts
  in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
  in.softmax_router();
  in.moe_layers(in.layers_by_sparse_step(), "mlp_only_layers");
  in.attention_bias();
  in.no_mlp_bias();
}

void write_qwen3_moe(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  write_qwen_windows(to);
  to.experts("num_experts", "moe_intermediate_size");
  to.norm_topk_prob();
  to.mlp_only_layers();
}

Architecture qwen3_moe_architecture() {
  Architecture moe = llama_like("qwen3_moe", "Qwen3MoeForCausalLM");
  moe.rules.emplace_back(kMoeRules);
  moe.defaults = {kLlamaDefaults, R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
      "num_hidden_layers": 24, "num_key_value_heads": 4, "max_position_embeddings": 32768, "use_sliding_window": false,
      "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
      "num_experts": 128, "norm_topk_prob": false, "output_router_logits": false, "router_aux_loss_coef": 0.001})"};
  moe.read = read_qwen3_moe;
  moe.write = write_qwen3_moe;
  moe.gguf = qwen_gguf("qwen3moe");
  moe.gguf.read = [](GgufReader& in) {
    in.llama_like();
    in.experts("num_experts");
    in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
    in.out["norm_topk_prob"] = true;
    in.only("expert_gating_func", static_cast<double>(kSoftmaxGate), "Qwen3's scores are a softmax");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    to.llama_like();
    if (!to.experts()) return;
    to.put("expert_feed_forward_length", "moe_intermediate_size");
  };
  return moe;
}

}  // namespace

std::vector<Architecture> qwen() {
  return {qwen2_architecture(), qwen2_moe_architecture(), qwen3_architecture(), qwen3_moe_architecture()};
}

}  // namespace witan::models
