// GPT-2: learned positions, LayerNorm, biases, transposed matrices, queries, keys and values in one.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr std::string_view kGpt2Qkv[] = {"attention.q_proj.weight", "attention.k_proj.weight",
                                         "attention.v_proj.weight"},
                           kGpt2QkvBiases[] = {"attention.q_proj.bias", "attention.k_proj.bias",
                                               "attention.v_proj.bias"};

constexpr TensorRule kGpt2Rules[] = {
    {"embedding.weight", "wte.weight"},
    {"position_embedding.weight", "wpe.weight"},
    {"final_norm.weight", "ln_f.weight"},
    {"final_norm.bias", "ln_f.bias"},
    {"head.weight", kHeadName},
    {"attention_norm.weight", "h.{l}.ln_1.weight"},
    {"attention_norm.bias", "h.{l}.ln_1.bias"},
    {"mlp_norm.weight", "h.{l}.ln_2.weight"},
    {"mlp_norm.bias", "h.{l}.ln_2.bias"},
    {.witan = "attention.q_proj.weight", .other = "h.{l}.attn.c_attn.weight", .joined = kGpt2Qkv, .transposed = true},
    {.witan = "attention.k_proj.weight", .other = "h.{l}.attn.c_attn.weight", .joined = kGpt2Qkv, .transposed = true},
    {.witan = "attention.v_proj.weight", .other = "h.{l}.attn.c_attn.weight", .joined = kGpt2Qkv, .transposed = true},
    {.witan = "attention.q_proj.bias", .other = "h.{l}.attn.c_attn.bias", .joined = kGpt2QkvBiases},
    {.witan = "attention.k_proj.bias", .other = "h.{l}.attn.c_attn.bias", .joined = kGpt2QkvBiases},
    {.witan = "attention.v_proj.bias", .other = "h.{l}.attn.c_attn.bias", .joined = kGpt2QkvBiases},
    {.witan = "attention.o_proj.weight", .other = "h.{l}.attn.c_proj.weight", .transposed = true},
    {"attention.o_proj.bias", "h.{l}.attn.c_proj.bias"},
    {.witan = "mlp.up_proj.weight", .other = "h.{l}.mlp.c_fc.weight", .transposed = true},
    {"mlp.up_proj.bias", "h.{l}.mlp.c_fc.bias"},
    {.witan = "mlp.down_proj.weight", .other = "h.{l}.mlp.c_proj.weight", .transposed = true},
    {"mlp.down_proj.bias", "h.{l}.mlp.c_proj.bias"},
};

constexpr GgufRule kGgufGpt2[] = {
    {"position_embedding.weight", "position_embd.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"attention_norm.bias", "attn_norm.bias"},
    {"mlp_norm.bias", "ffn_norm.bias"},
    {"attention.q_proj.weight", "attn_qkv.weight", 0, 1, 0, 3},
    {"attention.k_proj.weight", "attn_qkv.weight", 0, 1, 1, 3},
    {"attention.v_proj.weight", "attn_qkv.weight", 0, 1, 2, 3},
    {"attention.q_proj.bias", "attn_qkv.bias", 0, 1, 0, 3},
    {"attention.k_proj.bias", "attn_qkv.bias", 0, 1, 1, 3},
    {"attention.v_proj.bias", "attn_qkv.bias", 0, 1, 2, 3},
    {"attention.o_proj.bias", "attn_output.bias"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.up_proj.bias", "ffn_up.bias"},
    {"mlp.down_proj.bias", "ffn_down.bias"},
};

void read_gpt2(HfReader& in) {
  in.layers = in.keys.integer("n_layer");
  in.hidden = in.keys.integer("n_embd");
  in.to.set("num_layers", in.layers);
  in.to.set("hidden_size", in.hidden);
  in.to.set("vocab_size", in.keys.integer("vocab_size"));
  in.to.set("ffn_hidden_size", in.keys.integer("n_inner", 4 * in.hidden));
  in.to.set("num_attention_heads", in.keys.integer("n_head"));
  in.to.set("num_query_groups", in.keys.integer("n_head"));
  in.model.positions = in.keys.integer("n_positions");
  in.to.set("position_embedding_type", "learned_absolute");
  in.to.set("max_position_embeddings", in.model.positions);
  in.dense();
  in.to.set("normalization", "LayerNorm");
  in.to.set("norm_bias", true);
  in.to.set("norm_epsilon", in.keys.number("layer_norm_epsilon"));
  in.to.set("add_bias_linear", true);
  read_hf_activation(in.keys, in.to, "activation_function", "gelu_new", false);
  in.to.set("untie_embeddings_and_output_weights", !in.keys.flag("tie_word_embeddings"));
  in.keys.only("scale_attn_weights", true, "Witan divides logits of attention by the root of a head's channels");
  if (in.keys.flag("scale_attn_by_inverse_layer_idx", false)) in.to.set("scale_attn_by_inverse_layer_idx", true);
  in.keys.only("add_cross_attention", false, "Witan has no cross attention");
  in.training_keys("attn_pdrop");
  const double dropout = in.keys.number("resid_pdrop");
  if (in.keys.number("embd_pdrop") != dropout)
    in.keys.refuse("embd_pdrop", "Witan drops embeddings and the residual stream with one probability: resid_pdrop");
  if (dropout > 0) in.to.set("hidden_dropout", dropout);
}

void write_gpt2(HfWriter& to) {
  const ModelConfig& model = to.model;
  HfWriter::Out& out = to.out;
  out["n_layer"] = model.num_layers;
  out["n_embd"] = model.hidden_size;
  out["n_head"] = model.attention.num_attention_heads;
  out["n_inner"] = model.mlp.ffn_hidden_size;
  const int64_t learned = model.attention.max_position_embeddings;  // 0 in a model that learns none
  out["n_positions"] = learned > 0 ? learned : to.positions;
  out["layer_norm_epsilon"] = model.norm.norm_epsilon;
  out["activation_function"] = hf_activation(model.mlp);
  out["scale_attn_by_inverse_layer_idx"] = model.attention.scale_attn_by_inverse_layer_idx;
  out["resid_pdrop"] = out["embd_pdrop"] = model.hidden_dropout;
  out["attn_pdrop"] = model.attention.attention_dropout;
}

void read_gguf_gpt2(GgufReader& in) {
  in.out["n_layer"] = in.integer("block_count");
  in.out["n_embd"] = in.integer("embedding_length");
  in.out["n_head"] = in.integer("attention.head_count");
  in.only("attention.head_count_kv", in.out["n_head"].get<double>(), "GPT-2 has keys and values for every head");
  in.out["n_inner"] = in.integer("feed_forward_length");
  in.out["n_positions"] = in.integer("context_length");
  in.out["layer_norm_epsilon"] = in.number("attention.layer_norm_epsilon");
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) in.out[dropout] = 0.0;
}

void write_gguf_gpt2(GgufWriter& to) {
  to.put("block_count", "n_layer");
  to.put("embedding_length", "n_embd");
  to.put("feed_forward_length", "n_inner");
  to.put("attention.head_count", "n_head");
  to.put("context_length", "n_positions");
  to.put_real("attention.layer_norm_epsilon", to.hf.at("layer_norm_epsilon").get<double>());
}

}  // namespace

std::vector<Architecture> gpt2() {
  Architecture gpt2{"gpt2", "GPT2LMHeadModel", "transformer.", {kGpt2Rules}};
  gpt2.computed = {"h.{l}.attn.bias", "h.{l}.attn.masked_bias"};
  gpt2.defaults = {R"({"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
      "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
      "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "scale_attn_weights": true,
      "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "tie_word_embeddings": true})"};
  gpt2.read = read_gpt2;
  gpt2.write = write_gpt2;
  gpt2.gguf = {
      .name = "gpt2", .rules = {kGgufCommon, kGgufNorms, kGgufGpt2}, .read = read_gguf_gpt2, .write = write_gguf_gpt2};
  return {gpt2};
}

}  // namespace witan::models
