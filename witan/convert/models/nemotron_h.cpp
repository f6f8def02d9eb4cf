// Nemotron-H and Nemotron 3: each layer is one part, Mamba-2, attention without positions, a dense MLP or experts.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char* kLayerTypes = "layers_block_type";

// ---- Tensors

constexpr TensorRule projection(std::string_view witan) {
  return {.witan = witan, .other = "layers.{l}.mixer.in_proj.weight", .joined = kMambaProjections};
}
constexpr TensorRule taps(std::string_view witan) {
  return {.witan = witan, .other = "layers.{l}.mixer.conv1d.weight", .joined = kMambaTaps, .depthwise = true};
}
constexpr TensorRule tap_bias(std::string_view witan) {
  return {.witan = witan, .other = "layers.{l}.mixer.conv1d.bias", .joined = kMambaTapBiases};
}
constexpr TensorRule kMambaRules[] = {
    projection("mamba2.z_proj.weight"),
    projection("mamba2.x_proj.weight"),
    projection("mamba2.B_proj.weight"),
    projection("mamba2.C_proj.weight"),
    projection("mamba2.dt_proj.weight"),
    taps("mamba2.x_conv.weight"),
    taps("mamba2.B_conv.weight"),
    taps("mamba2.C_conv.weight"),
    tap_bias("mamba2.x_conv.bias"),
    tap_bias("mamba2.B_conv.bias"),
    tap_bias("mamba2.C_conv.bias"),
    {"mamba2.A_log", "layers.{l}.mixer.A_log"},
    {"mamba2.D", "layers.{l}.mixer.D"},
    {"mamba2.dt_bias", "layers.{l}.mixer.dt_bias"},
    {"mamba2.norm.weight", "layers.{l}.mixer.norm.weight"},
    {"mamba2.o_proj.weight", "layers.{l}.mixer.out_proj.weight"},
};

constexpr TensorRule kPartRules[] = {
    {"embedding.weight", "embeddings.weight"},
    {"final_norm.weight", "norm_f.weight"},
    {"head.weight", kHeadName},
    {"attention_norm.weight", "layers.{l}.norm.weight"},
    {"mlp_norm.weight", "layers.{l}.norm.weight"},
    {"attention.q_proj.weight", "layers.{l}.mixer.q_proj.weight"},
    {"attention.k_proj.weight", "layers.{l}.mixer.k_proj.weight"},
    {"attention.v_proj.weight", "layers.{l}.mixer.v_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.mixer.o_proj.weight"},
    {"mlp.up_proj.weight", "layers.{l}.mixer.up_proj.weight"},
    {"mlp.down_proj.weight", "layers.{l}.mixer.down_proj.weight"},
    {"mlp.up_proj.bias", "layers.{l}.mixer.up_proj.bias"},
    {"mlp.down_proj.bias", "layers.{l}.mixer.down_proj.bias"},
    {"moe.router.weight", "layers.{l}.mixer.gate.weight"},
    {"moe.router.expert_bias", "layers.{l}.mixer.gate.e_score_correction_bias"},
    {"moe.fc1_latent_proj.weight", "layers.{l}.mixer.fc1_latent_proj.weight"},
    {"moe.fc2_latent_proj.weight", "layers.{l}.mixer.fc2_latent_proj.weight"},
    {"moe.shared_experts.up_proj.weight", "layers.{l}.mixer.shared_experts.up_proj.weight"},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.mixer.shared_experts.down_proj.weight"},
    {.witan = "moe.experts.up_proj",
     .other = "layers.{l}.mixer.experts.{e}.up_proj.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.mixer.experts.{e}.down_proj.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.up_proj", .other = "layers.{l}.mixer.experts.up_proj", .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.mixer.experts.down_proj", .storage = ExpertStorage::fused},
};

// ---- config.json

struct LayerName {
  const char* type;
  const char* older;  // before transformers 5.24
  char letter;        // in hybrid_override_pattern, that of Witan's key of this name
};
constexpr LayerName kLayerNames[] = {
    {"linear_attention", "mamba", 'M'}, {"moe", "moe", 'E'}, {"full_attention", "attention", '*'}, {"mlp", "mlp", '-'}};

// A letter for each layer. Lists of types count before a hybrid_override_pattern, as in transformers.
std::string hybrid_pattern(HfReader& in) {
  const bool named = in.keys.has(kLayerTypes);
  const char* const key = named || !in.keys.has("layer_types") ? kLayerTypes : "layer_types";
  if (named && in.keys.has("layer_types") && *in.keys.find("layer_types") != *in.keys.find(kLayerTypes))
    in.keys.refuse("layer_types", "layers_block_type says otherwise");
  if (!named && key == kLayerTypes && in.keys.has("hybrid_override_pattern"))
    return in.keys.text("hybrid_override_pattern");
  in.keys.find("hybrid_override_pattern");
  const Json* const types = in.keys.find(key);
  if (types == nullptr || !types->is_array()) in.keys.refuse(key, "must be a list of the layers' types");
  std::string pattern;
  for (const Json& type : *types) {
    const auto* const found =
        std::ranges::find_if(kLayerNames, [&](const LayerName& one) { return type == one.type || type == one.older; });
    if (found == std::end(kLayerNames))
      in.keys.refuse(key, "types of layers are linear_attention, moe, full_attention and mlp");
    pattern += found->letter;
  }
  return pattern;
}

bool has_layer(const std::string& pattern, HybridLayer part) {
  return pattern.find(static_cast<char>(part)) != std::string::npos;
}

void read_nemotron_sizes(HfReader& in) {
  in.layers = static_cast<int64_t>(in.to.model().mamba.hybrid_override_pattern.size());
  in.hidden = in.keys.integer("hidden_size");
  const int64_t heads = in.keys.integer("num_attention_heads");
  in.to.set("num_layers", in.layers);
  in.to.set("hidden_size", in.hidden);
  in.to.set("vocab_size", in.keys.integer("vocab_size"));
  in.to.set("num_attention_heads", heads);
  in.to.set("num_query_groups", in.keys.nullable_integer("num_key_value_heads").value_or(heads));
  if (const int64_t dim = in.keys.integer("head_dim"); dim * heads != in.hidden) in.to.set("kv_channels", dim);
  in.to.set("norm_epsilon", in.keys.number("layer_norm_epsilon"));
  in.to.set("position_embedding_type", "none");
  in.to.set("untie_embeddings_and_output_weights", true);
  in.training_keys("attention_dropout");
  in.model.positions = in.keys.integer("max_position_embeddings");
}

void read_mamba(HfReader& in, bool any) {
  constexpr std::pair<const char*, const char*> kSizes[] = {{"mamba_num_heads", "mamba_num_heads"},
                                                            {"mamba_head_dim", "mamba_head_dim"},
                                                            {"mamba_state_dim", "ssm_state_size"},
                                                            {"mamba_num_groups", "n_groups"},
                                                            {"mamba_conv_kernel_dim", "conv_kernel"}};
  for (const auto& [ours, theirs] : kSizes)
    if (in.keys.find(theirs) && any) in.to.set(ours, in.keys.integer(theirs));
  const bool bias = in.keys.flag("use_conv_bias");
  const double least = in.keys.number("time_step_min");
  in.keys.only("use_bias", false, "Witan's projections of Mamba-2 have no biases");
  in.keys.only("mamba_hidden_act", "silu", "Witan's Mamba-2 has SiLU behind its convolution");
  if (!any) return;
  in.to.set("mamba_conv_bias", bias);
  in.to.set("mamba_dt_min", least);
}

void read_nemotron_experts(HfReader& in, bool any) {
  if (!any) {
    in.dense();
    for (const char* key :
         {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
          "moe_latent_size", "routed_scaling_factor", "norm_topk_prob", "n_group", "topk_group"})
      in.keys.find(key);
    return;
  }
  in.experts(in.keys.integer("n_routed_experts"), in.keys.integer("num_experts_per_tok"));
  in.to.set("moe_ffn_hidden_size", in.keys.integer("moe_intermediate_size"));
  const int64_t shared = in.keys.integer("moe_shared_expert_intermediate_size");
  if (shared == 0) in.keys.refuse("moe_shared_expert_intermediate_size", "layers with experts have a shared one");
  in.to.set("moe_shared_expert_intermediate_size", shared);
  if (const auto latent = in.keys.nullable_integer("moe_latent_size")) in.to.set("moe_latent_size", *latent);
  if (const double scale = in.keys.number("routed_scaling_factor"); scale != 1)
    in.to.set("moe_router_topk_scaling_factor", scale);
  in.sigmoid_router();
}

// transformers passes over these, or they say nothing about what is computed.
constexpr const char* kPassedOver[] = {"attention_bias",
                                       "num_hidden_layers",
                                       "tie_word_embeddings",
                                       "n_shared_experts",
                                       "moe_shared_expert_overlap",
                                       "expand",
                                       "chunk_size",
                                       "time_step_max",
                                       "time_step_floor",
                                       "time_step_limit",
                                       "mamba_ssm_cache_dtype",
                                       "mamba_proj_bias",
                                       "use_mamba_kernels",
                                       "rescale_prenorm_residual",
                                       "residual_in_fp32",
                                       "hidden_dropout",
                                       "sliding_window",
                                       "num_logits_to_keep",
                                       "num_nextn_predict_layers",
                                       "mtp_layers_block_type",
                                       "mtp_hybrid_override_pattern",
                                       "rope_theta",
                                       "partial_rotary_factor",
                                       "norm_eps"};

void read_nemotron_h(HfReader& in) {
  const std::string pattern = hybrid_pattern(in);
  if (pattern.empty()) in.keys.refuse(kLayerTypes, "must name the parts of at least one layer");
  in.to.set("hybrid_override_pattern", pattern);
  read_nemotron_sizes(in);
  const bool experts = has_layer(pattern, HybridLayer::moe);
  if (in.keys.find("intermediate_size") && has_layer(pattern, HybridLayer::mlp))
    in.to.set("ffn_hidden_size", in.keys.integer("intermediate_size"));
  read_hf_activation(in.keys, in.to, "mlp_hidden_act", "relu2", false);
  read_mamba(in, has_layer(pattern, HybridLayer::mamba));
  read_nemotron_experts(in, experts);
  if (in.keys.flag("mlp_bias")) {
    if (experts) in.keys.refuse("mlp_bias", "Witan's shared experts have no biases");
    in.to.set("add_mlp_bias", true);
  }
  for (const char* key : kPassedOver) in.keys.find(key);
}

void write_nemotron_h(HfWriter& to) {
  const ModelConfig& model = to.model;
  const MambaConfig& mamba = model.mamba;
  HfWriter::Out& out = to.out;
  to.sizes();
  out.erase("num_hidden_layers");
  out["layer_norm_epsilon"] = out["rms_norm_eps"];
  out.erase("rms_norm_eps");
  out["mlp_hidden_act"] = out["hidden_act"];
  out.erase("hidden_act");
  out["mlp_bias"] = model.add_mlp_bias || model.add_bias_linear;
  out[kLayerTypes] = HfWriter::Out::array();
  for (const HybridLayer layer : mamba.layers(model.num_layers))
    out[kLayerTypes].push_back(std::ranges::find(kLayerNames, static_cast<char>(layer), &LayerName::letter)->type);
  const Mamba2Spec spec = mamba.spec(model.hidden_size);
  out["mamba_num_heads"] = spec.num_heads;
  out["mamba_head_dim"] = spec.head_dim;
  out["ssm_state_size"] = spec.state_dim;
  out["n_groups"] = spec.num_groups;
  out["conv_kernel"] = spec.conv_kernel_dim;
  out["use_conv_bias"] = spec.conv_bias;
  out["time_step_min"] = spec.least_step;
  if (model.moe.num_experts == 0) return;
  to.experts("n_routed_experts", "moe_intermediate_size");
  out["moe_shared_expert_intermediate_size"] = model.moe.moe_shared_expert_intermediate_size;
  out["moe_latent_size"] = model.moe.moe_latent_size > 0 ? HfWriter::Out(model.moe.moe_latent_size) : HfWriter::Out();
  out["routed_scaling_factor"] = model.moe.moe_router_topk_scaling_factor;
  out["n_group"] = std::max<int64_t>(model.moe.moe_router_num_groups, 1);
  out["topk_group"] = std::max<int64_t>(model.moe.moe_router_group_topk, 1);
  to.sigmoid_router();
}

// ---- GGUF files

// llama.cpp's converter orders queries and keys as if they rotated, which changes no product.
constexpr GgufRule kGgufParts[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "attn_norm.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.up_proj.bias", "ffn_up.bias"},
    {"mlp.down_proj.bias", "ffn_down.bias"},
    {"moe.experts.up_proj", "ffn_up_exps.weight"},
    {"moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"moe.fc1_latent_proj.weight", "ffn_latent_down.weight"},
    {"moe.fc2_latent_proj.weight", "ffn_latent_up.weight"},
};

// llama.cpp tells the parts by numbers of each layer: one without heads of keys and without an MLP is Mamba-2. Layers
// with an MLP all have experts, or none has.
std::string gguf_pattern(GgufReader& in, bool experts) {
  const std::vector<int64_t> groups = in.of_layers("attention.head_count_kv"),
                             sizes = in.of_layers("feed_forward_length");
  std::string pattern;
  for (size_t layer = 0; layer < groups.size(); ++layer) {
    HybridLayer part = HybridLayer::mamba;
    if (sizes[layer] > 0)
      part = experts ? HybridLayer::moe : HybridLayer::mlp;
    else if (groups[layer] > 0)
      part = HybridLayer::attention;
    pattern += static_cast<char>(part);
  }
  return pattern;
}

void read_gguf_mamba(GgufReader& in) {
  const int64_t heads = in.integer("ssm.time_step_rank"), inner = in.integer("ssm.inner_size");
  require<ConfigError>(heads > 0 && inner % heads == 0, in.source(), ": ", in.key("ssm.inner_size"), " = ", inner,
                       " is not divisible by ", in.key("ssm.time_step_rank"), " = ", heads);
  in.out["mamba_num_heads"] = heads;
  in.out["mamba_head_dim"] = inner / heads;
  in.out["ssm_state_size"] = in.integer("ssm.state_size");
  in.out["n_groups"] = in.integer("ssm.group_count");
  in.out["conv_kernel"] = in.integer("ssm.conv_kernel");
  in.out["use_conv_bias"] = true;  // llama.cpp needs it
  in.out["time_step_min"] = 0.0;   // llama.cpp takes steps as they are
}

void read_gguf_nemotron_experts(GgufReader& in) {
  in.routed_experts();
  for (const char* key : {"n_shared_experts", "first_k_dense_replace"}) in.out.erase(key);
  in.out["moe_shared_expert_intermediate_size"] = in.integer("expert_shared_feed_forward_length");
  if (const int64_t latent = in.integer("moe_latent_size", 0); latent > 0) in.out["moe_latent_size"] = latent;
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "Nemotron's scores are sigmoids");
}

void read_gguf_nemotron_h(GgufReader& in) {
  const int64_t hidden = in.integer("embedding_length"), heads = in.integer("attention.head_count"),
                groups = in.same_in_layers("attention.head_count_kv");
  const bool experts = in.integer("expert_count", 0) > 0;
  in.out["hybrid_override_pattern"] = gguf_pattern(in, experts);
  in.out["hidden_size"] = hidden;
  in.out["num_attention_heads"] = heads;
  in.out["num_key_value_heads"] = groups > 0 ? groups : heads;
  in.out["head_dim"] = in.integer("attention.key_length", heads > 0 ? hidden / heads : 0);
  in.only("attention.value_length", in.out["head_dim"].get<double>(),
          "Witan reads heads of keys and values of one size");
  in.out["layer_norm_epsilon"] = in.number("attention.layer_norm_epsilon");
  in.only("attention.layer_norm_rms_epsilon", in.out["layer_norm_epsilon"].get<double>(),
          "Witan's layers have the epsilon of attention.layer_norm_epsilon");
  in.out["max_position_embeddings"] = in.integer("context_length");
  in.find("rope.dimension_count");  // nothing rotates
  in.out["mlp_bias"] = in.facts().mlp_biases;
  read_gguf_mamba(in);
  if (experts)
    read_gguf_nemotron_experts(in);
  else
    in.out["intermediate_size"] = in.same_in_layers("feed_forward_length");
  in.only("nextn_predict_layers", 0, "Witan reads no layers that predict further tokens from GGUF files");
}

void write_gguf_layers(GgufWriter& to) {
  const ModelConfig& model = to.model;
  std::vector<int64_t> groups, sizes;
  for (const HybridLayer part : model.mamba.layers(model.num_layers)) {
    groups.push_back(part == HybridLayer::attention ? model.attention.num_query_groups : 0);
    if (part == HybridLayer::moe)
      sizes.push_back(to.hf.at("moe_intermediate_size").get<int64_t>());
    else
      sizes.push_back(part == HybridLayer::mlp ? to.hf.at("intermediate_size").get<int64_t>() : 0);
  }
  to.put_list("attention.head_count_kv", std::move(groups));
  to.put_list("feed_forward_length", std::move(sizes));
}

void write_gguf_nemotron_h(GgufWriter& to) {
  const ModelConfig& model = to.model;
  require<ConfigError>(model.attention.qk_head_dim(model.hidden_size) % 2 == 0,
                       "kv_channels = ", model.attention.qk_head_dim(model.hidden_size),
                       ": llama.cpp's files hold the channels of a head in pairs: export --format hf");
  to.put("block_count", model.num_layers);
  to.put("embedding_length", "hidden_size");
  to.put("context_length", "max_position_embeddings");
  to.put("attention.head_count", "num_attention_heads");
  write_gguf_layers(to);
  to.put_real("attention.layer_norm_epsilon", model.norm.norm_epsilon);
  for (const char* each : {"attention.key_length", "attention.value_length"}) to.put(each, "head_dim");
  to.put("rope.dimension_count", model.hidden_size / model.attention.num_attention_heads);
  to.out.put_flag(to.key("rope.scaling.finetuned"), false);
  to.put("ssm.conv_kernel", "conv_kernel");
  to.put("ssm.state_size", "ssm_state_size");
  to.put("ssm.group_count", "n_groups");
  to.put("ssm.time_step_rank", "mamba_num_heads");
  to.put("ssm.inner_size", to.hf.at("mamba_num_heads").get<int64_t>() * to.hf.at("mamba_head_dim").get<int64_t>());
  if (!to.experts()) return;
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size");
  to.put("expert_shared_count", 1);
  to.put_real("expert_weights_scale", to.hf.at("routed_scaling_factor").get<double>());
  to.out.put_flag(to.key("expert_weights_norm"), to.hf.at("norm_topk_prob").get<bool>());
  to.expert_groups();
  if (model.moe.moe_latent_size > 0) to.put("moe_latent_size", model.moe.moe_latent_size);
}

GgufArchitecture nemotron_h_gguf() {
  constexpr double kTransformersLeastStep = 0.001;
  return {.name = "nemotron_h",
          .name_with_experts = "nemotron_h_moe",
          .rules = {kGgufCommon, kGgufParts, kGgufPairedAttention, kGgufMamba},
          .read = read_gguf_nemotron_h,
          .write = write_gguf_nemotron_h,
          // NVIDIA's kernels raise no steps either, and a state changes by a thousandth at most in such steps.
          .approximate = [](ModelConfig& model) {
            if (model.mamba.mamba_dt_min <= kTransformersLeastStep) model.mamba.mamba_dt_min = 0;
          }};
}

Architecture nemotron_h_architecture() {
  Architecture one{"nemotron_h", "NemotronHForCausalLM", "backbone.", {kPartRules, kMambaRules}};
  one.side = "mtp.";
  one.modules = {{"backbone.", "model."}};
  one.peft_refuses = "out_proj";
  one.defaults = {R"({"vocab_size": 131072, "hidden_size": 4096,
      "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "tie_word_embeddings": false,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
      "attention_bias": false, "attention_dropout": 0.0, "intermediate_size": 21504, "mlp_hidden_act": "relu2",
      "mlp_bias": false, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
      "mamba_hidden_act": "silu", "n_groups": 8, "conv_kernel": 4, "time_step_min": 0.001, "use_conv_bias": true,
      "n_routed_experts": 8, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
      "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
      "use_bias": false, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "output_router_logits": false})"};
  one.read = read_nemotron_h;
  one.write = write_nemotron_h;
  one.gguf = nemotron_h_gguf();
  return one;
}

}  // namespace

std::vector<Architecture> nemotron_h() {
  return {nemotron_h_architecture()};
}

}  // namespace witan::models
