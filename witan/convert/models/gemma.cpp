// Gemma 3: norms on both sides of attention and MLP, whose weights are centred at zero, an embedding times the square
// root of its width, and rotations that differ between layers with a window and the others.
#include <algorithm>
#include <cmath>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kSliding = "sliding_attention", *kGlobal = "full_attention";
constexpr int64_t kGemmaPeriod = 6;  // every sixth layer has full attention, unless a file says otherwise

constexpr TensorRule kBothNormRules[] = {
    {"attention_norm.weight", "layers.{l}.input_layernorm.weight"},
    {"attention_post_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
    {"mlp_norm.weight", "layers.{l}.pre_feedforward_layernorm.weight"},
    {"mlp_post_norm.weight", "layers.{l}.post_feedforward_layernorm.weight"},
};

// ---- config.json

double embedding_scale(int64_t width) {
  return std::sqrt(static_cast<double>(width));
}

void read_gemma_activation(HfReader& in) {
  read_hf_activation(in.keys, in.to, "hidden_activation", "gelu_pytorch_tanh", true);
}

void read_final_cap(HfReader& in) {
  if (in.keys.find("final_logit_softcapping")) in.to.set("logit_soft_cap", in.bound("final_logit_softcapping"));
}

void write_gemma_sizes(HfWriter& to) {
  to.sizes();
  to.out["hidden_activation"] = to.out["hidden_act"];
  to.out.erase("hidden_act");
  to.out["attention_bias"] = to.has_attention_biases();
  to.layer_types();
  to.sliding_window();
  const double cap = to.model.logit_soft_cap;
  to.out["final_logit_softcapping"] = cap > 0 ? HfWriter::Out(cap) : HfWriter::Out();
}

void read_gemma3(HfReader& in) {
  in.sizes();
  read_gemma_activation(in);
  in.dense();
  in.to.set("norm_placement", "both");
  in.to.set("apply_layernorm_1p", true);
  in.to.set("qk_layernorm", true);
  in.to.set("embedding_multiplier", embedding_scale(in.hidden));
  const int64_t scalar = in.keys.integer("query_pre_attn_scalar");
  if (scalar == 0) in.keys.refuse("query_pre_attn_scalar", "logits are divided by its square root");
  if (scalar != in.to.model().attention.qk_head_dim(in.hidden))
    in.to.set("softmax_scale", 1 / std::sqrt(static_cast<double>(scalar)));
  const int64_t period = in.keys.integer("sliding_window_pattern", kGemmaPeriod);
  in.keys.find("_sliding_window_pattern");  // of the layer_types that stand beside it
  if (period == 0) in.keys.refuse("sliding_window_pattern", "must be a whole number above 0");
  const std::vector<bool> windowed = in.windowed_layers([&](int64_t layer) { return (layer + 1) % period != 0; });
  in.window(in.keys.nullable_integer("sliding_window").value_or(0), windowed);
  read_hf_rope_of_layer_types(in.keys, in.to, in.model.positions, windowed, in.keys.number("rope_local_base_freq"));
  read_final_cap(in);
  in.keys.only("attn_logit_softcapping", nullptr, "transformers' Gemma 3 passes over it");
  in.keys.only("use_bidirectional_attention", false, "tokens see earlier tokens only");
  in.attention_bias();
  in.no_mlp_bias();
}

void write_gemma3(HfWriter& to) {
  write_gemma_sizes(to);
  to.out["rope_parameters"] = hf_rope_of_layer_types(to.model.attention);
  const double scale = to.model.attention.softmax_scale;
  to.out["query_pre_attn_scalar"] = scale > 0 ? std::llround(1 / (scale * scale)) : to.out["head_dim"].get<int64_t>();
}

// ---- GGUF files

constexpr GgufRule centred_norm(std::string_view witan, std::string_view other) {
  return {.witan = witan, .other = other, .values = GgufValues::plus_one};
}
constexpr GgufRule kGgufGemma3[] = {
    {"embedding.weight", "token_embd.weight"},
    {"head.weight", "output.weight"},
    centred_norm("final_norm.weight", "output_norm.weight"),
    centred_norm("attention_norm.weight", "attn_norm.weight"),
    centred_norm("attention_post_norm.weight", "post_attention_norm.weight"),
    centred_norm("mlp_norm.weight", "ffn_norm.weight"),
    centred_norm("mlp_post_norm.weight", "post_ffw_norm.weight"),
    centred_norm("attention.q_norm.weight", "attn_q_norm.weight"),
    centred_norm("attention.k_norm.weight", "attn_k_norm.weight"),
    {"attention.q_proj.weight", "attn_q.weight"},
    {"attention.k_proj.weight", "attn_k.weight"},
    {"attention.v_proj.weight", "attn_v.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

// The 27B model has this many layers, by which llama.cpp knows that its logits have another divisor.
constexpr int64_t kLayersOf27B = 62;

// The rotations of the two types of layers, of which llama.cpp stretches that with full attention.
void read_gguf_rotations(GgufReader& in) {
  const Json windowed = {{"rope_theta", in.number("rope.freq_base_swa", 10000.0)}, {"rope_type", "default"}};
  in.out["rope_parameters"] = {{kGlobal, in.out["rope_parameters"]}, {kSliding, windowed}};
}

void read_gguf_gemma3(GgufReader& in) {
  in.llama_like();
  read_gguf_rotations(in);
  const int64_t layers = in.out["num_hidden_layers"].get<int64_t>(),
                heads = in.out["num_attention_heads"].get<int64_t>(),
                window = in.integer("attention.sliding_window", 0),
                period = in.integer("attention.sliding_window_pattern", kGemmaPeriod);
  require<ConfigError>(period > 0, in.source(), ": ", in.key("attention.sliding_window_pattern"),
                       " = 0: must be a whole number above 0");
  in.out["layer_types"] = Json::array();
  for (int64_t layer = 0; layer < layers; ++layer)
    in.out["layer_types"].push_back(window > 0 && (layer + 1) % period != 0 ? kSliding : kGlobal);
  if (window > 0) in.out["sliding_window"] = window;
  in.out["query_pre_attn_scalar"] = layers == kLayersOf27B && heads > 0 ? in.out["hidden_size"].get<int64_t>() / heads
                                                                        : in.out["head_dim"].get<int64_t>();
  if (const double cap = in.number("final_logit_softcapping", 0.0); cap > 0) in.out["final_logit_softcapping"] = cap;
  in.check_experts();
}

void write_gguf_gemma3(GgufWriter& to) {
  to.llama_like();
  const Json& types = to.hf.at("layer_types");
  if (!to.hf.at("sliding_window").is_number()) return;
  to.put("attention.sliding_window", "sliding_window");
  // Programs from before the period's time know every sixth layer alone. A list is no period, and is refused when the
  // keys are read again.
  const auto full = std::ranges::find(types, kGlobal);
  if (const int64_t period = full - types.begin() + 1; period != kGemmaPeriod)
    to.put("attention.sliding_window_pattern", period);
  to.put_real("rope.freq_base_swa", to.hf.at("rope_parameters").at(kSliding).at("rope_theta").get<double>());
  if (const Json& cap = to.hf.at("final_logit_softcapping"); cap.is_number())
    to.put_real("final_logit_softcapping", cap.get<double>());
}

Architecture gemma3_architecture() {
  Architecture text = llama_like("gemma3_text", "Gemma3ForCausalLM");
  text.rules = {kModelRules, kBothNormRules, kAttentionRules, kMlpRules};
  text.defaults = {R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
      "attention_bias": false, "attention_dropout": 0.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
      "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})"};
  text.read = read_gemma3;
  text.write = write_gemma3;
  text.tied_in_text = true;
  text.gguf = {.name = "gemma3", .rules = {kGgufGemma3}, .read = read_gguf_gemma3, .write = write_gguf_gemma3};
  return text;
}

}  // namespace

std::vector<Architecture> gemma() {
  return {gemma3_architecture()};
}

}  // namespace witan::models
