// Granite 3 and PowerMoE: a Llama and a Mixtral whose embedding, residual stream, attention and logits have
// multipliers; and Granite 4, most of whose layers have Mamba-2 instead of attention.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kGraniteMoeRules[] = {
    {"moe.router.weight", "layers.{l}.block_sparse_moe.router.layer.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.block_sparse_moe.input_linear.weight",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.block_sparse_moe.output_linear.weight",
     .storage = ExpertStorage::fused},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.shared_mlp.input_linear.weight"},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.shared_mlp.output_linear.weight"},
};

constexpr std::string_view kGraniteDefaults = R"({"vocab_size": 32000, "embedding_multiplier": 1.0,
      "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0})";

double default_attention_multiplier(const ModelConfig& model) {
  return 1 / std::sqrt(static_cast<double>(model.attention.qk_head_dim(model.hidden_size)));
}

void read_multipliers(HfReader& in) {
  const auto multiplier = [&](const char* key) {
    const double value = in.keys.number(key);
    if (!(value > 0)) in.keys.refuse(key, "Witan's multipliers are above 0");
    return value;
  };
  if (const double of = multiplier("embedding_multiplier"); of != 1) in.to.set("embedding_multiplier", of);
  if (const double of = multiplier("residual_multiplier"); of != 1) in.to.set("residual_multiplier", of);
  if (const double divisor = multiplier("logits_scaling"); divisor != 1) in.to.set("logit_scale", 1 / divisor);
  const double of_attention = multiplier("attention_multiplier");
  if (of_attention != default_attention_multiplier(in.to.model())) in.to.set("softmax_scale", of_attention);
}

void write_multipliers(HfWriter& to) {
  constexpr double kDigits = 1e12;  // rounds 1 / (1 / x) to x
  const double scale = to.model.attention.softmax_scale;
  to.out["embedding_multiplier"] = to.model.embedding_multiplier;
  to.out["residual_multiplier"] = to.model.residual_multiplier;
  to.out["logits_scaling"] = std::round(kDigits / to.model.logit_scale) / kDigits;
  to.out["attention_multiplier"] = scale > 0 ? scale : default_attention_multiplier(to.model);
}

void read_granite(HfReader& in) {
  in.llama_like();
  read_multipliers(in);
  in.attention_bias();
  in.full_attention();
}

void write_granite(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
  write_multipliers(to);
}

// ---- GGUF files, whose logit_scale divides

void read_gguf_multipliers(GgufReader& in) {
  in.out["embedding_multiplier"] = in.number("embedding_scale", 1.0);
  in.out["residual_multiplier"] = in.number("residual_scale", 1.0);
  in.out["logits_scaling"] = in.number("logit_scale", 1.0);
  const double scale = in.number("attention.scale", 0.0), usual = 1 / std::sqrt(in.out["head_dim"].get<double>());
  const bool given = scale > 0 && static_cast<float>(scale) != static_cast<float>(usual);
  in.out["attention_multiplier"] = given ? scale : usual;
}

void read_gguf_granite(GgufReader& in) {
  in.llama_like();
  require<ConfigError>(in.flag("rope.scaling.finetuned").value_or(true), in.source(), ": ",
                       in.key("rope.scaling.finetuned"), " = false: Granite's layers rotate in Witan");
  read_gguf_multipliers(in);
}

void write_gguf_multipliers(GgufWriter& to) {
  to.put_real("embedding_scale", to.hf.at("embedding_multiplier").get<double>());
  to.put_real("residual_scale", to.hf.at("residual_multiplier").get<double>());
  to.put_real("logit_scale", to.hf.at("logits_scaling").get<double>());
  to.put_real("attention.scale", to.hf.at("attention_multiplier").get<double>());
}

void write_gguf_granite(GgufWriter& to) {
  to.llama_like();
  write_gguf_multipliers(to);
}

GgufArchitecture granite_gguf() {
  return {.name = "granite",
          .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention},
          .read =
              [](GgufReader& in) {
                read_gguf_granite(in);
                in.check_experts();
              },
          .write = write_gguf_granite};
}

Architecture granite_architecture() {
  Architecture granite = llama_like("granite", "GraniteForCausalLM");
  granite.defaults = {kLlamaDefaults, kGraniteDefaults};
  granite.read = [](HfReader& in) {
    read_granite(in);
    in.dense();
    if (in.keys.flag("mlp_bias", false)) in.to.set("add_mlp_bias", true);
  };
  granite.write = [](HfWriter& to) {
    write_granite(to);
    to.out["mlp_bias"] = to.model.mlp_bias() != Bias::none;
  };
  granite.gguf = granite_gguf();
  return granite;
}

// ---- Models with experts

void read_granite_moe(HfReader& in) {
  read_granite(in);
  const int64_t experts = in.keys.integer("num_local_experts");
  if (experts == 0) in.keys.refuse("num_local_experts", "each layer has experts");
  in.experts(experts, in.keys.integer("num_experts_per_tok"));
  in.no_mlp_bias();
  in.keys.only("position_embedding_type", "rope", "transformers' layers rotate, whatever this key says");
}

void write_granite_moe(HfWriter& to) {
  write_granite(to);
  to.experts("num_local_experts", "intermediate_size");
}

Architecture granite_moe_architecture() {
  Architecture moe = llama_like("granitemoe", "GraniteMoeForCausalLM");
  moe.rules = {kModelRules, kPreNormRules, kAttentionRules, kGraniteMoeRules};
  moe.modules = {{".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts.gate_up_proj"},
                 {".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts.down_proj"}};
  moe.defaults = {kLlamaDefaults, kGraniteDefaults, R"({"num_local_experts": 8, "num_experts_per_tok": 2,
      "output_router_logits": false, "router_aux_loss_coef": 0.001})"};
  moe.read = [](HfReader& in) {
    read_granite_moe(in);
    in.keys.only("shared_intermediate_size", 0, "granitemoeshared has shared experts, this type has none");
  };
  moe.write = write_granite_moe;
  moe.gguf = granite_gguf();
  moe.gguf.name = "granitemoe";
  moe.gguf.matches = [](GgufReader& in) { return in.integer("expert_shared_feed_forward_length", 0) == 0; };
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_granite(in);
    in.experts("num_local_experts");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    write_gguf_granite(to);
    to.experts();
  };
  return moe;
}

Architecture granite_moe_shared_architecture() {
  Architecture moe = granite_moe_architecture();
  moe.model_type = "granitemoeshared";
  moe.name = "GraniteMoeSharedForCausalLM";
  moe.defaults.emplace_back(R"({"shared_intermediate_size": 0})");
  moe.read = [](HfReader& in) {
    read_granite_moe(in);
    if (const int64_t size = in.keys.integer("shared_intermediate_size"); size > 0)
      in.to.set("moe_shared_expert_intermediate_size", size);
  };
  moe.write = [](HfWriter& to) {
    write_granite_moe(to);
    to.out["shared_intermediate_size"] = to.model.moe.moe_shared_expert_intermediate_size;
  };
  moe.gguf.matches = [](GgufReader& in) { return in.integer("expert_shared_feed_forward_length", 0) > 0; };
  moe.gguf.read = [](GgufReader& in) {
    read_gguf_granite(in);
    in.experts("num_local_experts");
    in.out["shared_intermediate_size"] = in.integer("expert_shared_feed_forward_length");
    in.check_experts();
  };
  moe.gguf.write = [](GgufWriter& to) {
    write_gguf_granite(to);
    to.experts();
    to.put("expert_shared_feed_forward_length", "shared_intermediate_size");
  };
  return moe;
}

// ---- Granite 4

constexpr TensorRule kGraniteHybridRules[] = {
    {.witan = "mamba2.z_proj.weight", .other = "layers.{l}.mamba.in_proj.weight", .joined = kMambaProjections},
    {.witan = "mamba2.x_proj.weight", .other = "layers.{l}.mamba.in_proj.weight", .joined = kMambaProjections},
    {.witan = "mamba2.B_proj.weight", .other = "layers.{l}.mamba.in_proj.weight", .joined = kMambaProjections},
    {.witan = "mamba2.C_proj.weight", .other = "layers.{l}.mamba.in_proj.weight", .joined = kMambaProjections},
    {.witan = "mamba2.dt_proj.weight", .other = "layers.{l}.mamba.in_proj.weight", .joined = kMambaProjections},
    {.witan = "mamba2.x_conv.weight",
     .other = "layers.{l}.mamba.conv1d.weight",
     .joined = kMambaTaps,
     .depthwise = true},
    {.witan = "mamba2.B_conv.weight",
     .other = "layers.{l}.mamba.conv1d.weight",
     .joined = kMambaTaps,
     .depthwise = true},
    {.witan = "mamba2.C_conv.weight",
     .other = "layers.{l}.mamba.conv1d.weight",
     .joined = kMambaTaps,
     .depthwise = true},
    {.witan = "mamba2.x_conv.bias", .other = "layers.{l}.mamba.conv1d.bias", .joined = kMambaTapBiases},
    {.witan = "mamba2.B_conv.bias", .other = "layers.{l}.mamba.conv1d.bias", .joined = kMambaTapBiases},
    {.witan = "mamba2.C_conv.bias", .other = "layers.{l}.mamba.conv1d.bias", .joined = kMambaTapBiases},
    {"mamba2.A_log", "layers.{l}.mamba.A_log"},
    {"mamba2.D", "layers.{l}.mamba.D"},
    {"mamba2.dt_bias", "layers.{l}.mamba.dt_bias"},
    {"mamba2.norm.weight", "layers.{l}.mamba.norm.weight"},
    {"mamba2.o_proj.weight", "layers.{l}.mamba.out_proj.weight"},
    // The shared MLP is all that a layer without experts has.
    {"mlp.gate_up_proj.weight", "layers.{l}.shared_mlp.input_linear.weight"},
    {"mlp.down_proj.weight", "layers.{l}.shared_mlp.output_linear.weight"},
};

// Names of the types in published folders; transformers 5.24 reads these and has its own.
constexpr const char *kGraniteMamba = "mamba", *kGraniteAttention = "attention";

// Without a list all layers have Mamba-2.
std::vector<bool> granite_mamba_layers(HfReader& in) {
  const char* const key = in.keys.has("layer_types") ? "layer_types" : "layers_block_type";
  if (in.keys.has("layer_types") && in.keys.has("layers_block_type") &&
      *in.keys.find("layer_types") != *in.keys.find("layers_block_type"))
    in.keys.refuse("layers_block_type", "layer_types says otherwise");
  const Json* const types = in.keys.find(key);
  std::vector<bool> mamba(static_cast<size_t>(in.layers), true);
  if (!types) return mamba;
  if (!types->is_array() || types->size() != mamba.size())
    in.keys.refuse(key, "must have an entry for each of num_hidden_layers");
  for (size_t layer = 0; layer < mamba.size(); ++layer) {
    const Json& type = (*types)[layer];
    mamba[layer] = type == kGraniteMamba || type == "linear_attention";
    if (!mamba[layer] && type != kGraniteAttention && type != "full_attention")
      in.keys.refuse(key, "types of layers are mamba and attention, or linear_attention and full_attention");
  }
  return mamba;
}

// The smallest step. The largest must be infinite.
double read_step_limit(HfReader& in) {
  const Json& limit = *in.keys.find("time_step_limit");
  const bool pair = limit.is_array() && limit.size() == 2 && limit[0].is_number();
  const Json infinity = {{"__float__", "Infinity"}};
  if (!pair || limit[0] < 0 || limit[1] != infinity)
    in.keys.refuse("time_step_limit", "Witan's steps of Mamba-2 have a lower bound alone: [bound, Infinity]");
  return limit[0].get<double>();
}

void read_granite_mamba(HfReader& in) {
  const std::vector<bool> mamba = granite_mamba_layers(in);
  const double least = read_step_limit(in);
  in.keys.only("mamba_proj_bias", false, "Witan's projections of Mamba-2 have no biases");
  for (const char* key : {"mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
                          "mamba_expand", "mamba_conv_bias", "mamba_chunk_size"})
    in.keys.find(key);
  if (std::ranges::find(mamba, true) == mamba.end()) return;
  in.keys.only("hidden_act", "silu", "Witan's Mamba-2 has SiLU behind its convolution and in its gate");
  std::string list;
  for (const bool layer : mamba) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  in.to.set("experimental_attention_variant", "mamba2");
  in.to.set("linear_attention_freq", list + "]");
  const int64_t heads = in.keys.integer("mamba_n_heads"), inner = in.keys.integer("mamba_expand") * in.hidden;
  const bool automatic = !in.keys.has("mamba_d_head") || *in.keys.find("mamba_d_head") == "auto";
  if (heads == 0 || (automatic ? inner % heads != 0 : heads * in.keys.integer("mamba_d_head") != inner))
    in.keys.refuse("mamba_n_heads", "heads have mamba_expand times hidden_size channels together");
  in.to.set("mamba_num_heads", heads);
  in.to.set("mamba_head_dim", inner / heads);
  in.to.set("mamba_state_dim", in.keys.integer("mamba_d_state"));
  in.to.set("mamba_num_groups", in.keys.integer("mamba_n_groups"));
  in.to.set("mamba_conv_kernel_dim", in.keys.integer("mamba_d_conv"));
  in.to.set("mamba_conv_bias", in.keys.truthy("mamba_conv_bias"));
  in.to.set("mamba_dt_min", least);
}

void read_granite_hybrid(HfReader& in) {
  in.sizes();
  in.activation();
  read_granite_mamba(in);
  const std::string positions = in.keys.text("position_embedding_type", "nope");
  if (positions == "rope") {
    in.rope();
  } else {
    if (positions != "nope") in.keys.refuse("position_embedding_type", "positions are rope or nope");
    in.to.set("position_embedding_type", "none");
    for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) in.keys.find(key);
  }
  read_multipliers(in);
  in.attention_bias();
  in.no_mlp_bias();
  for (const char* key : {"normalization_function", "init_method"}) in.keys.find(key);  // nothing reads them
  const int64_t shared = in.keys.integer("shared_intermediate_size"), experts = in.keys.integer("num_local_experts");
  if (shared == 0) in.keys.refuse("shared_intermediate_size", "each layer has a shared MLP");
  if (experts > 0) {
    in.experts(experts, in.keys.integer("num_experts_per_tok"));
    in.to.set("moe_shared_expert_intermediate_size", shared);
  } else {
    in.dense();
    in.to.set("ffn_hidden_size", shared);
    for (const char* key : {"num_experts_per_tok", "router_aux_loss_coef"}) in.keys.find(key);
  }
}

void write_granite_hybrid(HfWriter& to) {
  const ModelConfig& model = to.model;
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.out["position_embedding_type"] = model.attention.rotates() ? "rope" : "nope";
  to.rope();
  write_multipliers(to);
  to.out["layer_types"] = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers)
    to.out["layer_types"].push_back(std::holds_alternative<Mamba2Spec>(layer.mixer) ? kGraniteMamba
                                                                                    : kGraniteAttention);
  if (model.has_mamba()) {
    const Mamba2Spec spec = model.mamba.spec(model.hidden_size);
    to.out["mamba_n_heads"] = spec.num_heads;
    to.out["mamba_d_head"] = spec.head_dim;
    to.out["mamba_d_state"] = spec.state_dim;
    to.out["mamba_n_groups"] = spec.num_groups;
    to.out["mamba_d_conv"] = spec.conv_kernel_dim;
    to.out["mamba_conv_bias"] = spec.conv_bias;
    to.out["mamba_expand"] = spec.heads().inner() / model.hidden_size;
    to.out["time_step_limit"] = {spec.least_step, {{"__float__", "Infinity"}}};
  }
  const bool experts = model.moe.num_experts > 0;
  to.out["shared_intermediate_size"] =
      experts ? model.moe.moe_shared_expert_intermediate_size : model.mlp.ffn_hidden_size;
  to.out["num_local_experts"] = 0;
  if (experts) to.experts("num_local_experts", "intermediate_size");
}

// A layer without heads of keys has Mamba-2. A file says whether layers rotate, but nothing of their MLPs' biases.
void read_gguf_granite_hybrid(GgufReader& in) {
  in.sizes();
  const int64_t hidden = in.out["hidden_size"].get<int64_t>(), heads = in.out["num_attention_heads"].get<int64_t>();
  const int64_t groups = in.same_in_layers("attention.head_count_kv");
  in.out["layer_types"] = Json::array();
  for (const int64_t of_layer : in.of_layers("attention.head_count_kv"))
    in.out["layer_types"].push_back(of_layer > 0 ? kGraniteAttention : kGraniteMamba);
  const int64_t channels = in.integer("attention.key_length", heads > 0 ? hidden / heads : 0);
  in.only("attention.value_length", static_cast<double>(channels), "Witan reads heads of keys and values of one size");
  in.only("rope.dimension_count", static_cast<double>(channels), "models of this type rotate whole heads, or nothing");
  in.out["num_key_value_heads"] = groups > 0 ? groups : heads;
  in.out["head_dim"] = channels;
  in.rope();
  in.out["position_embedding_type"] = in.flag("rope.scaling.finetuned").value_or(true) ? "rope" : "nope";
  read_gguf_multipliers(in);
  in.only("ssm.inner_size", static_cast<double>(2 * hidden), "llama.cpp loads only models with twice the width here");
  const int64_t mamba_heads = in.integer("ssm.time_step_rank");
  in.out["mamba_n_heads"] = mamba_heads;
  in.out["mamba_d_head"] = "auto";
  in.out["mamba_d_state"] = in.integer("ssm.state_size");
  in.out["mamba_n_groups"] = in.integer("ssm.group_count");
  in.out["mamba_d_conv"] = in.integer("ssm.conv_kernel");
  const bool experts = in.integer("expert_count", 0) > 0;
  in.out["num_local_experts"] = 0;
  if (experts) in.experts("num_local_experts");
  const int64_t shared = in.integer("expert_shared_feed_forward_length", 0);
  in.out["shared_intermediate_size"] = experts ? shared : in.out["intermediate_size"].get<int64_t>();
  in.check_experts();
}

void write_gguf_granite_hybrid(GgufWriter& to) {
  const ModelConfig& model = to.model;
  require<ConfigError>(
      model.has_mamba(), "linear_attention_freq = ", model.linear_attention.linear_attention_freq,
      ": llama.cpp's model of type granitehybrid has layers of Mamba-2: export --architecture granite, "
      "granitemoe or granitemoeshared, or --format hf");
  to.sizes();
  std::vector<int64_t> groups;
  for (const Json& type : to.hf.at("layer_types"))
    groups.push_back(type == kGraniteAttention ? model.attention.num_query_groups : 0);
  to.put_list("attention.head_count_kv", std::move(groups));
  for (const char* each : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    to.put(each, "head_dim");
  to.rope();
  to.out.put_flag(to.key("rope.scaling.finetuned"), model.attention.rotates());
  write_gguf_multipliers(to);
  to.put("ssm.conv_kernel", "mamba_d_conv");
  to.put("ssm.state_size", "mamba_d_state");
  to.put("ssm.group_count", "mamba_n_groups");
  to.put("ssm.time_step_rank", "mamba_n_heads");
  to.put("ssm.inner_size", to.hf.at("mamba_n_heads").get<int64_t>() * to.hf.at("mamba_d_head").get<int64_t>());
  to.put("expert_shared_feed_forward_length", "shared_intermediate_size");
  if (to.experts()) return;
  for (const char* count : {"expert_count", "expert_used_count"}) to.put(count, int64_t{0});
}

Architecture granite_moe_hybrid_architecture() {
  Architecture hybrid = llama_like("granitemoehybrid", "GraniteMoeHybridForCausalLM");
  hybrid.rules = {kModelRules, kPreNormRules, kAttentionRules, kGraniteMoeRules, kGraniteHybridRules};
  hybrid.modules = granite_moe_architecture().modules;
  hybrid.defaults = {kLlamaDefaults, kGraniteDefaults, R"({"num_local_experts": 8, "num_experts_per_tok": 2,
      "shared_intermediate_size": 1024, "output_router_logits": false, "router_aux_loss_coef": 0.001,
      "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": 64, "mamba_d_conv": 4,
      "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_proj_bias": false,
      "time_step_limit": [0.0, {"__float__": "Infinity"}]})"};
  hybrid.read = read_granite_hybrid;
  hybrid.write = write_granite_hybrid;
  hybrid.gguf = {.name = "granitehybrid",
                 .rules = {kGgufCommon, kGgufNorms, kGgufPairedAttention, kGgufMamba},
                 .read = read_gguf_granite_hybrid,
                 .write = write_gguf_granite_hybrid};
  return hybrid;
}

}  // namespace

std::vector<Architecture> granite() {
  return {granite_architecture(), granite_moe_architecture(), granite_moe_shared_architecture(),
          granite_moe_hybrid_architecture()};
}

}  // namespace witan::models
