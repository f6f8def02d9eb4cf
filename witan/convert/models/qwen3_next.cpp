// Qwen3-Next and the text decoders of Qwen3.5: Gated DeltaNet in most layers, attention with a gate in the others, and
// weights of norms that are centred at zero. Qwen3-Next joins projections of one head; Qwen3.5 keeps them apart.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kLinear = "linear_attention", *kFull = "full_attention";

// ---- Tensors

// Rows of queries and of their gate take turns, head by head.
constexpr std::string_view kGatedQueries[] = {"attention.q_proj.weight", "attention.g_proj.weight"};
constexpr std::string_view kGatedQueryBiases[] = {"attention.q_proj.bias", "attention.g_proj.bias"};
constexpr TensorRule gated_queries(std::string_view witan, std::span<const std::string_view> joined,
                                   std::string_view other) {
  return {.witan = witan, .other = other, .joined = joined, .groups = HeadGroups::query_heads};
}
constexpr TensorRule kGatedAttentionRules[] = {
    gated_queries("attention.q_proj.weight", kGatedQueries, "layers.{l}.self_attn.q_proj.weight"),
    gated_queries("attention.g_proj.weight", kGatedQueries, "layers.{l}.self_attn.q_proj.weight"),
    gated_queries("attention.q_proj.bias", kGatedQueryBiases, "layers.{l}.self_attn.q_proj.bias"),
    gated_queries("attention.g_proj.bias", kGatedQueryBiases, "layers.{l}.self_attn.q_proj.bias"),
    {"attention.k_proj.weight", "layers.{l}.self_attn.k_proj.weight"},
    {"attention.v_proj.weight", "layers.{l}.self_attn.v_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
    {"attention.k_proj.bias", "layers.{l}.self_attn.k_proj.bias"},
    {"attention.v_proj.bias", "layers.{l}.self_attn.v_proj.bias"},
    {"attention.o_proj.bias", "layers.{l}.self_attn.o_proj.bias"},
    {"attention.q_norm.weight", "layers.{l}.self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "layers.{l}.self_attn.k_norm.weight"},
};

constexpr std::string_view kConvolutions[] = {"gated_delta.q_conv.weight", "gated_delta.k_conv.weight",
                                              "gated_delta.v_conv.weight"};
constexpr TensorRule convolution(std::string_view witan) {
  return {.witan = witan, .other = "layers.{l}.linear_attn.conv1d.weight", .joined = kConvolutions, .depthwise = true};
}
constexpr TensorRule kDeltaRules[] = {
    convolution("gated_delta.q_conv.weight"),
    convolution("gated_delta.k_conv.weight"),
    convolution("gated_delta.v_conv.weight"),
    {"gated_delta.A_log", "layers.{l}.linear_attn.A_log"},
    {"gated_delta.dt_bias", "layers.{l}.linear_attn.dt_bias"},
    {"gated_delta.norm.weight", "layers.{l}.linear_attn.norm.weight"},
    {"gated_delta.o_proj.weight", "layers.{l}.linear_attn.out_proj.weight"},
};

// Qwen3-Next: the rows of a head of keys, of its queries and of its heads of values and gates follow each other.
constexpr std::string_view kQkvz[] = {"gated_delta.q_proj.weight", "gated_delta.k_proj.weight",
                                      "gated_delta.v_proj.weight", "gated_delta.z_proj.weight"};
constexpr std::string_view kBa[] = {"gated_delta.b_proj.weight", "gated_delta.a_proj.weight"};
constexpr TensorRule by_key_head(std::string_view witan, std::span<const std::string_view> joined,
                                 std::string_view other) {
  return {.witan = witan, .other = other, .joined = joined, .groups = HeadGroups::key_heads};
}
constexpr std::string_view kInQkvz = "layers.{l}.linear_attn.in_proj_qkvz.weight",
                           kInBa = "layers.{l}.linear_attn.in_proj_ba.weight";
constexpr TensorRule kJoinedDeltaRules[] = {
    by_key_head("gated_delta.q_proj.weight", kQkvz, kInQkvz), by_key_head("gated_delta.k_proj.weight", kQkvz, kInQkvz),
    by_key_head("gated_delta.v_proj.weight", kQkvz, kInQkvz), by_key_head("gated_delta.z_proj.weight", kQkvz, kInQkvz),
    by_key_head("gated_delta.b_proj.weight", kBa, kInBa),     by_key_head("gated_delta.a_proj.weight", kBa, kInBa),
};

// Qwen3.5
constexpr std::string_view kQkv[] = {"gated_delta.q_proj.weight", "gated_delta.k_proj.weight",
                                     "gated_delta.v_proj.weight"};
constexpr std::string_view kInQkv = "layers.{l}.linear_attn.in_proj_qkv.weight";
constexpr TensorRule kSeparateDeltaRules[] = {
    {.witan = "gated_delta.q_proj.weight", .other = kInQkv, .joined = kQkv},
    {.witan = "gated_delta.k_proj.weight", .other = kInQkv, .joined = kQkv},
    {.witan = "gated_delta.v_proj.weight", .other = kInQkv, .joined = kQkv},
    {"gated_delta.z_proj.weight", "layers.{l}.linear_attn.in_proj_z.weight"},
    {"gated_delta.b_proj.weight", "layers.{l}.linear_attn.in_proj_b.weight"},
    {"gated_delta.a_proj.weight", "layers.{l}.linear_attn.in_proj_a.weight"},
};

// ---- config.json

// The layers of Gated DeltaNet by layer_types, or else all but every full_attention_interval-th.
std::vector<bool> linear_layers(HfReader& in) {
  const int64_t interval = in.keys.integer("full_attention_interval", 4);
  const Json* types = in.keys.find("layer_types");
  if (!types && interval == 0) in.keys.refuse("full_attention_interval", "must be a whole number above 0");
  std::vector<bool> linear;
  for (int64_t layer = 0; !types && layer < in.layers; ++layer) linear.push_back((layer + 1) % interval != 0);
  if (!types) return linear;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != in.layers)
    in.keys.refuse("layer_types", "must have an entry for each of num_hidden_layers");
  for (const Json& type : *types) {
    if (type != kLinear && type != kFull)
      in.keys.refuse("layer_types", "models of this type have layers of linear_attention and full_attention");
    linear.push_back(type == kLinear);
  }
  return linear;
}

void read_delta(HfReader& in) {
  const std::vector<bool> linear = linear_layers(in);
  constexpr const char* kSizes[] = {"linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
                                    "linear_num_key_heads", "linear_num_value_heads"};
  for (const char* key : kSizes) in.keys.find(key);
  if (std::ranges::find(linear, true) == linear.end()) return;
  in.keys.only("hidden_act", "silu", "Witan's Gated DeltaNet has SiLU behind its convolution and in its gate");
  std::string list;
  for (const bool layer : linear) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  in.to.set("experimental_attention_variant", "gated_delta_net");
  in.to.set("linear_attention_freq", list + "]");
  for (const char* key : kSizes) in.to.set(key, in.keys.integer(key));
}

// All but the experts.
void read_hybrid(HfReader& in) {
  in.sizes();
  in.activation();
  in.rope(HfRope::partial_sections);
  in.to.set("qk_layernorm", true);
  in.to.set("attention_output_gate", true);
  in.to.set("apply_layernorm_1p", true);
  in.attention_bias();
  in.no_mlp_bias();
  read_delta(in);
  in.keys.only("attn_output_gate", true, "attention of models of this type has a gate, whatever this key says");
  for (const char* key : {"mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})
    in.keys.find(key);  // transformers passes over them
}

void read_experts(HfReader& in, std::vector<bool> moe, const char* key) {
  in.experts();
  in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
  const int64_t shared = in.keys.integer("shared_expert_intermediate_size");
  if (shared == 0) in.keys.refuse("shared_expert_intermediate_size", "layers with experts have a shared one");
  in.to.set("moe_shared_expert_intermediate_size", shared);
  in.to.set("moe_shared_expert_gate", true);
  in.moe_layers(moe, key);
}

void read_qwen3_next(HfReader& in) {
  read_hybrid(in);
  const std::vector<bool> moe = in.layers_by_sparse_step();
  if (in.keys.integer("num_experts") > 0 && std::ranges::find(moe, true) != moe.end()) {
    read_experts(in, moe, "mlp_only_layers");
    return in.softmax_router();
  }
  in.dense();
  for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
                          "norm_topk_prob", "router_aux_loss_coef"})
    in.keys.find(key);
}

void read_qwen3_5(HfReader& in) {
  read_hybrid(in);
  in.dense();
}

void read_qwen3_5_moe(HfReader& in) {
  read_hybrid(in);
  read_experts(in, std::vector<bool>(static_cast<size_t>(in.layers), true), "num_hidden_layers");
}

void write_hybrid(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  to.out["rope_parameters"]["partial_rotary_factor"] = to.model.attention.rotary_percent;
  const LinearAttentionConfig& delta = to.model.linear_attention;
  to.out["layer_types"] = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers)
    to.out["layer_types"].push_back(std::holds_alternative<GatedDeltaSpec>(layer.mixer) ? kLinear : kFull);
  to.out["linear_conv_kernel_dim"] = delta.linear_conv_kernel_dim;
  to.out["linear_key_head_dim"] = delta.linear_key_head_dim;
  to.out["linear_value_head_dim"] = delta.linear_value_head_dim;
  to.out["linear_num_key_heads"] = delta.linear_num_key_heads;
  to.out["linear_num_value_heads"] = delta.linear_num_value_heads;
}

void write_experts(HfWriter& to) {
  to.experts("num_experts", "moe_intermediate_size");
  to.out["shared_expert_intermediate_size"] = to.model.moe.moe_shared_expert_intermediate_size;
}

void write_qwen3_next(HfWriter& to) {
  write_hybrid(to);
  write_experts(to);
  if (to.model.moe.num_experts == 0) return;
  to.norm_topk_prob();
  to.mlp_only_layers();
}

void write_qwen3_5_moe(HfWriter& to) {
  write_hybrid(to);
  to.out.erase("intermediate_size");
  write_experts(to);
}

// ---- GGUF files

constexpr GgufRule gguf_norm(std::string_view witan, std::string_view other) {
  return {.witan = witan, .other = other, .values = GgufValues::plus_one};
}
constexpr GgufRule kGgufHybrid[] = {
    {"embedding.weight", "token_embd.weight"},
    {"head.weight", "output.weight"},
    gguf_norm("final_norm.weight", "output_norm.weight"),
    gguf_norm("attention_norm.weight", "attn_norm.weight"),
    gguf_norm("mlp_norm.weight", "post_attention_norm.weight"),
    gguf_norm("attention.q_norm.weight", "attn_q_norm.weight"),
    gguf_norm("attention.k_norm.weight", "attn_k_norm.weight"),
    {.witan = "attention.q_proj.weight",
     .other = "attn_q.weight",
     .joined = kGatedQueries,
     .groups = HeadGroups::query_heads},
    {.witan = "attention.g_proj.weight",
     .other = "attn_q.weight",
     .joined = kGatedQueries,
     .groups = HeadGroups::query_heads},
    {"attention.k_proj.weight", "attn_k.weight"},
    {"attention.v_proj.weight", "attn_v.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {.witan = "gated_delta.q_proj.weight", .other = "attn_qkv.weight", .joined = kQkv},
    {.witan = "gated_delta.k_proj.weight", .other = "attn_qkv.weight", .joined = kQkv},
    {.witan = "gated_delta.q_conv.weight", .other = "ssm_conv1d.weight", .joined = kConvolutions},
    {.witan = "gated_delta.k_conv.weight", .other = "ssm_conv1d.weight", .joined = kConvolutions},
    {"gated_delta.norm.weight", "ssm_norm.weight"},
};

// The tensors that have heads of values, in Qwen3-Next's order.
constexpr GgufRule kGgufValueHeads[] = {
    {.witan = "gated_delta.v_proj.weight", .other = "attn_qkv.weight", .joined = kQkv},
    {.witan = "gated_delta.v_conv.weight", .other = "ssm_conv1d.weight", .joined = kConvolutions},
    {"gated_delta.z_proj.weight", "attn_gate.weight"},
    {.witan = "gated_delta.b_proj.weight", .other = "ssm_ba.weight", .joined = kBa, .groups = HeadGroups::key_heads},
    {.witan = "gated_delta.a_proj.weight", .other = "ssm_ba.weight", .joined = kBa, .groups = HeadGroups::key_heads},
    {.witan = "gated_delta.A_log", .other = "ssm_a", .values = GgufValues::minus_exp},
    {"gated_delta.dt_bias", "ssm_dt.bias"},
    {"gated_delta.o_proj.weight", "ssm_out.weight"},
};
// Qwen3.5's files, whose heads of values are in another order.
constexpr GgufRule kGgufTiledValueHeads[] = {
    {.witan = "gated_delta.v_proj.weight", .other = "attn_qkv.weight", .rows = GgufRows::tiled_heads, .joined = kQkv},
    {.witan = "gated_delta.v_conv.weight",
     .other = "ssm_conv1d.weight",
     .rows = GgufRows::tiled_heads,
     .joined = kConvolutions},
    {.witan = "gated_delta.z_proj.weight", .other = "attn_gate.weight", .rows = GgufRows::tiled_heads},
    {.witan = "gated_delta.b_proj.weight", .other = "ssm_beta.weight", .rows = GgufRows::tiled_heads},
    {.witan = "gated_delta.a_proj.weight", .other = "ssm_alpha.weight", .rows = GgufRows::tiled_heads},
    {.witan = "gated_delta.A_log", .other = "ssm_a", .rows = GgufRows::tiled_heads, .values = GgufValues::minus_exp},
    {.witan = "gated_delta.dt_bias", .other = "ssm_dt.bias", .rows = GgufRows::tiled_heads},
    {.witan = "gated_delta.o_proj.weight", .other = "ssm_out.weight", .rows = GgufRows::tiled_columns},
};

constexpr GgufRule kGgufHybridMlp[] = {
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};
constexpr GgufRule kGgufHybridExperts[] = {
    {"moe.router.weight", "ffn_gate_inp.weight"},
    {"moe.experts.gate_up_proj", "ffn_gate_exps.weight", 0, 2},
    {"moe.experts.gate_up_proj", "ffn_up_exps.weight", 1, 2},
    {"moe.experts.down_proj", "ffn_down_exps.weight"},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_gate_shexp.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_up_shexp.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
};

void read_gguf_hybrid(GgufReader& in) {
  in.sizes();
  in.grouped_heads(true);
  in.rope();
  const int64_t heads = in.integer("ssm.time_step_rank"), channels = in.integer("ssm.state_size");
  in.only("ssm.inner_size", static_cast<double>(heads * channels),
          "in llama.cpp's models of this type heads of keys and of values have the same number of channels");
  in.out["linear_conv_kernel_dim"] = in.integer("ssm.conv_kernel");
  in.out["linear_key_head_dim"] = in.out["linear_value_head_dim"] = channels;
  in.out["linear_num_key_heads"] = in.integer("ssm.group_count");
  in.out["linear_num_value_heads"] = heads;
  in.out["full_attention_interval"] = in.integer("full_attention_interval", 4);
  if (const GgufValue* recurrent = in.find("attention.recurrent_layers")) {
    require<ConfigError>(recurrent->array && recurrent->type == GgufType::flag, in.source(), ": ",
                         in.key("attention.recurrent_layers"), " must have true or false for each layer");
    in.out["layer_types"] = Json::array();
    for (const int64_t linear : recurrent->integers) in.out["layer_types"].push_back(linear != 0 ? kLinear : kFull);
  }
  in.find(kGgufSections);  // positions of text are the same in all sections
  in.only("nextn_predict_layers", 0, "Witan reads no layers that predict further tokens from GGUF files");
}

void read_gguf_experts(GgufReader& in) {
  in.experts("num_experts");
  in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  in.out["shared_expert_intermediate_size"] = in.integer("expert_shared_feed_forward_length");
  in.only("expert_gating_func", static_cast<double>(kSoftmaxGate), "Qwen3-Next's scores are a softmax");
  in.check_experts();
}

void write_gguf_hybrid(GgufWriter& to) {
  to.llama_like();
  const LinearAttentionConfig& delta = to.model.linear_attention;
  to.put("ssm.conv_kernel", delta.linear_conv_kernel_dim);
  to.put("ssm.state_size", delta.linear_key_head_dim);
  to.put("ssm.group_count", delta.linear_num_key_heads);
  to.put("ssm.time_step_rank", delta.linear_num_value_heads);
  to.put("ssm.inner_size", delta.linear_num_value_heads * delta.linear_value_head_dim);
  // Programs from before the list's time know the interval alone.
  GgufValue recurrent{.type = GgufType::flag, .array = true};
  for (const Json& type : to.hf.at("layer_types")) recurrent.integers.push_back(type == kLinear ? 1 : 0);
  to.put("full_attention_interval", std::ranges::find(recurrent.integers, 0) - recurrent.integers.begin() + 1);
  to.out.put(to.key("attention.recurrent_layers"), std::move(recurrent));
}

void write_gguf_experts(GgufWriter& to) {
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
}

// llama.cpp needs the sections of a multimodal rotation, of which text uses none: those of Qwen3.5.
void write_gguf_sections(GgufWriter& to) {
  to.put_list(kGgufSections, {11, 11, 10, 0});
}

// ---- Architectures

constexpr std::string_view kHybridDefaults = R"({"head_dim": 256, "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32768, "num_attention_heads": 16, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32})";
constexpr std::string_view kHybridExpertDefaults = R"({"moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "output_router_logits": false, "router_aux_loss_coef": 0.001})";

Architecture hybrid(std::string_view model_type, std::string_view name) {
  Architecture one = llama_like(model_type, name);
  one.rules = {kModelRules, kPreNormRules, kGatedAttentionRules, kDeltaRules, kMlpRules};
  one.partial_rotation = true;
  one.side = "mtp.";
  one.gguf.rules = {kGgufHybrid};
  return one;
}

Architecture qwen3_next_architecture() {
  Architecture next = hybrid("qwen3_next", "Qwen3NextForCausalLM");
  next.rules.insert(next.rules.end(), {kJoinedDeltaRules, kMoeRules, kGatedSharedExpertRules});
  next.defaults = {kLlamaDefaults, kHybridDefaults, kHybridExpertDefaults,
                   R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
      "num_key_value_heads": 2, "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": true,
      "decoder_sparse_step": 1})"};
  next.read = read_qwen3_next;
  next.write = write_qwen3_next;
  next.gguf.name = "qwen3next";
  next.gguf.rules.insert(next.gguf.rules.end(), {kGgufValueHeads, kGgufHybridExperts, kGgufSharedExpertGate});
  next.gguf.read = [](GgufReader& in) {
    read_gguf_hybrid(in);
    read_gguf_experts(in);
    in.out["norm_topk_prob"] = true;
  };
  next.gguf.write = [](GgufWriter& to) {
    write_gguf_hybrid(to);
    write_gguf_experts(to);
  };
  return next;
}

Architecture qwen3_5_architecture() {
  Architecture dense = hybrid("qwen3_5_text", "Qwen3_5ForCausalLM");
  dense.rules.emplace_back(kSeparateDeltaRules);
  dense.defaults = {kLlamaDefaults, kHybridDefaults, R"({"vocab_size": 248320, "intermediate_size": 12288,
      "num_key_value_heads": 4})"};
  dense.read = read_qwen3_5;
  dense.write = write_hybrid;
  dense.gguf.name = "qwen35";
  dense.gguf.rules.insert(dense.gguf.rules.end(), {kGgufTiledValueHeads, kGgufHybridMlp});
  dense.gguf.read = [](GgufReader& in) {
    read_gguf_hybrid(in);
    in.check_experts();
  };
  dense.gguf.write = [](GgufWriter& to) {
    write_gguf_hybrid(to);
    write_gguf_sections(to);
  };
  return dense;
}

Architecture qwen3_5_moe_architecture() {
  Architecture moe = hybrid("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM");
  moe.rules.insert(moe.rules.end(), {kSeparateDeltaRules, kMoeRules, kGatedSharedExpertRules});
  moe.defaults = {kLlamaDefaults, kHybridDefaults, kHybridExpertDefaults,
                  R"({"vocab_size": 248320, "hidden_size": 2048, "intermediate_size": null, "num_hidden_layers": 40,
      "num_key_value_heads": 2, "num_experts_per_tok": 8, "num_experts": 256})"};
  moe.read = read_qwen3_5_moe;
  moe.write = write_qwen3_5_moe;
  moe.gguf.name = "qwen35moe";
  moe.gguf.rules.insert(moe.gguf.rules.end(), {kGgufTiledValueHeads, kGgufHybridExperts, kGgufSharedExpertGate});
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_hybrid(in);
    read_gguf_experts(in);
  };
  moe.gguf.write = [](GgufWriter& to) {
    write_gguf_hybrid(to);
    write_gguf_experts(to);
    write_gguf_sections(to);
  };
  return moe;
}

}  // namespace

std::vector<Architecture> qwen3_next() {
  return {qwen3_next_architecture(), qwen3_5_architecture(), qwen3_5_moe_architecture()};
}

}  // namespace witan::models
