// Phi-3, 3.5-mini, 4 and 4-mini: queries, keys and values in one matrix, gate and up in one.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr std::string_view kPhi3Qkv[] = {"attention.q_proj.weight", "attention.k_proj.weight",
                                         "attention.v_proj.weight"};

constexpr TensorRule kPhi3Rules[] = {
    {.witan = "attention.q_proj.weight", .other = "layers.{l}.self_attn.qkv_proj.weight", .joined = kPhi3Qkv},
    {.witan = "attention.k_proj.weight", .other = "layers.{l}.self_attn.qkv_proj.weight", .joined = kPhi3Qkv},
    {.witan = "attention.v_proj.weight", .other = "layers.{l}.self_attn.qkv_proj.weight", .joined = kPhi3Qkv},
    {"attention.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
    {"mlp.gate_up_proj.weight", "layers.{l}.mlp.gate_up_proj.weight"},
    {"mlp.down_proj.weight", "layers.{l}.mlp.down_proj.weight"},
};

void read_phi3(HfReader& in) {
  in.sizes();
  in.activation();
  in.rope(HfRope::partial);
  in.dense();
  in.keys.only("resid_pdrop", 0.0,
               "Witan drops embeddings and the residual stream with one probability, Phi-3 the latter");
  in.keys.find("embd_pdrop");  // it has no effect there
  const std::string& scaling = in.to.model().attention.rope_scaling_type;
  if (scaling != "none" && scaling != "longrope")
    in.keys.refuse("rope_parameters", "transformers' Phi-3 stretches rotary positions as longrope does, or not at all");
  in.window_everywhere();
  in.no_attention_bias();
  in.no_mlp_bias();
  in.full_attention();
}

void write_phi3(HfWriter& to) {
  const AttentionConfig& attention = to.model.attention;
  to.sizes();
  to.out["attention_bias"] = false;
  to.rope();
  to.out["rope_parameters"]["partial_rotary_factor"] = attention.rotary_percent;
  if (attention.rope_scaling_type == "longrope")  // transformers reads it here, other programs in rope_parameters
    to.out["original_max_position_embeddings"] = attention.original_max_position_embeddings;
  to.sliding_window();
}

// ---- GGUF files, which llama.cpp computes without a window, whatever they say

constexpr GgufRule kGgufPhi3[] = {
    {"embedding.weight", "token_embd.weight"},
    {"final_norm.weight", "output_norm.weight"},
    {"head.weight", "output.weight"},
    {.witan = "attention.q_proj.weight", .other = "attn_qkv.weight", .joined = kPhi3Qkv},
    {.witan = "attention.k_proj.weight", .other = "attn_qkv.weight", .joined = kPhi3Qkv},
    {.witan = "attention.v_proj.weight", .other = "attn_qkv.weight", .joined = kPhi3Qkv},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

void read_gguf_phi3(GgufReader& in) {
  in.sizes();
  in.grouped_heads(true);
  in.heads_fill_stream();
  in.rope();
  in.find("attention.sliding_window");
  in.check_experts();
}

void write_gguf_phi3(GgufWriter& to) {
  to.llama_like();
  to.put("attention.sliding_window", int64_t{0});
  to.put("rope.scaling.original_context_length", "max_position_embeddings");
}

}  // namespace

std::vector<Architecture> phi3() {
  Architecture phi3{"phi3", "Phi3ForCausalLM", "model.", {kModelRules, kPreNormRules, kPhi3Rules}};
  phi3.defaults = {kLlamaDefaults, R"({"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
      "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
      "resid_pdrop": 0.0, "embd_pdrop": 0.0})"};
  phi3.read = read_phi3;
  phi3.write = write_phi3;
  phi3.partial_rotation = true;
  phi3.gguf = {.name = "phi3", .rules = {kGgufPhi3, kGgufNorms}, .read = read_gguf_phi3, .write = write_gguf_phi3};
  return {phi3};
}

}  // namespace witan::models
