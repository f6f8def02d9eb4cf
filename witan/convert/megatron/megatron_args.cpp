#include "witan/convert/megatron/megatron_args.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/megatron/megatron_torch_writer.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

using Kind = PickleValue::Kind;

// Arguments with the name and meaning of Witan's key. None leaves the key's default.
constexpr const char* kMegatronSame[] = {"num_layers",
                                         "hidden_size",
                                         "ffn_hidden_size",
                                         "num_attention_heads",
                                         "normalization",
                                         "norm_epsilon",
                                         "init_method_std",
                                         "attention_dropout",
                                         "hidden_dropout",
                                         "position_embedding_type",
                                         "rotary_percent",
                                         "rotary_interleaved",
                                         "apply_layernorm_1p",
                                         "qk_layernorm",
                                         "qk_l2_norm",
                                         "softmax_type",
                                         "add_bias_linear",
                                         "add_qkv_bias",
                                         "untie_embeddings_and_output_weights",
                                         "swiglu",
                                         "squared_relu",
                                         "activation_func_clamp_value",
                                         "glu_linear_offset",
                                         "attention_output_gate"};
constexpr const char* kMegatronSameOfExperts[] = {"moe_ffn_hidden_size",
                                                  "moe_router_topk",
                                                  "moe_router_score_function",
                                                  "moe_router_pre_softmax",
                                                  "moe_router_num_groups",
                                                  "moe_router_group_topk",
                                                  "moe_router_topk_scaling_factor",
                                                  "moe_router_enable_expert_bias",
                                                  "moe_shared_expert_intermediate_size",
                                                  "moe_shared_expert_gate",
                                                  "moe_latent_size"};
constexpr const char* kMegatronSameOfLatent[] = {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
                                                 "v_head_dim"};

constexpr const char* kMegatronSameOfMamba[] = {"mamba_num_heads", "mamba_head_dim", "mamba_state_dim",
                                                "mamba_num_groups"};
constexpr const char* kMegatronSameOfDelta[] = {"linear_conv_kernel_dim", "linear_key_head_dim",
                                                "linear_value_head_dim", "linear_num_key_heads",
                                                "linear_num_value_heads"};
constexpr std::string_view kGatedDelta = "gated_delta_net";

// Arguments that change the model in ways that Witan lacks, with the reason for refusing them.
struct MegatronOnly {
  const char* name;
  std::string_view why;
};
constexpr MegatronOnly kMegatronRefused[] = {
    {"apply_residual_connection_post_layernorm", "the residual connection starts before the norm"},
    {"heterogeneous_layers_config_path", "all layers are of one size"},
    {"heterogeneous_layers_config_encoded_json", "all layers are of one size"},
    {"mtp_num_layers", "layers that predict further tokens are not converted"},
    {"no_rope_freq", "all layers turn queries and keys in what is converted"},
    {"transformer_impl_custom_spec", "the arguments define the model"},
    {"yaml_cfg", "the arguments define the model"}};

// Keys of models that Megatron-LM has no argument for, with the reason.
constexpr MegatronOnly kMegatronLacks[] = {
    {"experimental_attention_variant", "of these variants Megatron-LM's checkpoints hold Gated DeltaNet's alone"},
    {"num_residual_streams", "residual streams are not converted"},
    {"linear_allow_neg_eigval", "Megatron-LM's Gated DeltaNet writes with strengths between 0 and 1"},
    {"mamba_conv_kernel_dim", "Megatron-LM's Mamba-2 has convolutions of four taps"},
    {"mamba_conv_bias", "Megatron-LM's Mamba-2 has convolutions with biases"},
    {"mamba_dt_min", "Megatron-LM raises no steps of Mamba-2"}};

// The reason for which a model whose first difference from Megatron-LM's is `difference` is not written.
std::string reason_for(std::string_view difference) {
  const auto names = [&](const MegatronOnly& one) { return difference.substr(0, difference.find(' ')) == one.name; };
  for (const MegatronOnly& one : kMegatronLacks)
    if (names(one)) return cat(one.why, "; export --format hf");
  for (const MegatronOnly& one : kMegatronRefused)
    if (names(one)) return cat("in Witan ", one.why, "; export --format hf");
  return "Megatron-LM has no argument for it";
}

constexpr double kLatentEpsilon = 1e-6;         // in Witan's norms of latents
constexpr double kMegatronMambaEpsilon = 1e-5;  // in Megatron-LM's norms of Mamba-2, whatever norm_epsilon is
// transformers raises shorter steps of Mamba-2, Megatron-LM none. A state changes by a thousandth at most in such
// steps.
constexpr double kTransformersLeastStep = 0.001;

std::string text_of_value(const PickleValue& value) {
  switch (value.kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.integer != 0 ? "true" : "false";
    case Kind::integer:
      return std::to_string(value.integer);
    case Kind::number:
      return nlohmann::json(value.number).dump();
    case Kind::text:
      return std::string(value.text);
    case Kind::global:
      return cat(value.text, '.', value.name);
    default:
      return "(…)";
  }
}

class MegatronReader {
 public:
  MegatronReader(const MegatronArguments& given, const std::string& where, MegatronModel& out)
      : given_(given), where_(where), out_(out), fields_(out.model.fields()) {}

  void read() {
    for (const MegatronOnly& one : kMegatronRefused)
      if (is_set(one.name)) refuse(one.name, cat("in Witan ", one.why));
    for (const char* name : kMegatronSame) same(name);
    if (!find("num_layers")) refuse("num_layers", "it is needed");
    attention();
    positions();
    activation();
    experts();
    delta();
    hybrid();
  }

 private:
  // Null if it is absent or None.
  const PickleValue* find(std::string_view name) const {
    const auto found = given_.find(name);
    return found == given_.end() || found->second->is(Kind::none) ? nullptr : found->second;
  }
  bool is_set(std::string_view name) const {
    const PickleValue* value = find(name);
    if (!value) return false;
    if (value->is(Kind::boolean) || value->is(Kind::integer)) return value->integer != 0;
    if (value->is(Kind::number)) return value->number != 0;
    return value->is(Kind::text) ? !value->text.empty() : !value->items.empty();
  }
  std::string text(std::string_view name) const {
    const PickleValue* value = find(name);
    return value ? text_of_value(*value) : "";
  }
  [[noreturn]] void refuse(std::string_view name, const std::string& why) const {
    const PickleValue* value = find(name);
    throw ConfigError(cat(where_, ": args.", name, " = ", value ? clipped(text_of_value(*value)) : "None", ": ", why));
  }
  void set(const char* key, std::string_view text) const { set_field(fields_, key, text, where_); }
  void same(const char* name) const {
    const PickleValue* value = find(name);
    if (!value) return;
    if (value->is(Kind::list) || value->is(Kind::object)) refuse(name, "must be one value");
    set(name, text_of_value(*value));
  }
  // Reads a pattern of layers, a list of 0 and 1 or a number.
  void pattern(const char* name) const {
    const PickleValue* value = find(name);
    if (!value) return;
    if (!value->is(Kind::list)) return set(name, text_of_value(*value));
    std::string list;
    for (const PickleValue* one : value->items) list += cat(list.empty() ? "[" : ",", text_of_value(*one));
    set(name, list + "]");
  }

  void attention() {
    if (is_set("multi_latent_attention")) {
      set("multi_latent_attention", "true");
      set("rotary_interleaved", "true");
      set("num_query_groups", text("num_attention_heads"));
      for (const char* name : kMegatronSameOfLatent) same(name);
      out_.model.attention.qk_layernorm = false;
      if (!is_set("qk_layernorm")) refuse("qk_layernorm", "Witan always normalises latents");
      if (is_set("apply_layernorm_1p"))
        refuse("apply_layernorm_1p", "Witan multiplies normalised latents by their weights as they are");
      if (out_.model.norm.norm_epsilon != kLatentEpsilon)
        refuse("norm_epsilon",
               "latents are normalised with it too, and Witan's are with 1e-6: only a model of 1e-6 is "
               "the same in both");
      if (text("rope_type") == "yarn") yarn();
      return;
    }
    set("num_query_groups", is_set("group_query_attention") ? text("num_query_groups") : text("num_attention_heads"));
    const int64_t heads = std::max<int64_t>(out_.model.attention.num_attention_heads, 1);
    if (const std::string channels = text("kv_channels");
        !channels.empty() && channels != std::to_string(out_.model.hidden_size / heads))
      set("kv_channels", channels);
    if (const PickleValue* window = find("window_size")) {
      if (!window->is(Kind::list) || window->items.size() != 2) refuse("window_size", "must be two numbers of tokens");
      set("window_size", cat(text_of_value(*window->items[0]), ',', text_of_value(*window->items[1])));
      pattern("window_attn_skip_freq");
    }
  }

  void yarn() const {
    set("rope_scaling_type", "yarn");
    for (const char* name : {"rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                             "mscale", "mscale_all_dim"})
      same(name);
  }

  void positions() {
    const std::string learned = text("max_position_embeddings");
    out_.positions = 4096;
    for (const char* name : {"max_position_embeddings", "seq_length"})
      if (const PickleValue* value = find(name); value && value->is(Kind::integer) && value->integer > 0) {
        out_.positions = value->integer;
        break;
      }
    if (out_.model.attention.learned_positions()) set("max_position_embeddings", learned);
    if (const std::string base = text("rotary_base"); !base.empty()) set("rotary_base", base);
    if (is_set("rotary_seq_len_interpolation_factor")) {
      set("rope_scaling_type", "linear");
      set("rotary_scaling_factor", text("rotary_seq_len_interpolation_factor"));
    }
    if (is_set("use_rope_scaling")) {
      set("rope_scaling_type", "llama3");
      set("original_max_position_embeddings", "8192");
      set("rotary_scaling_factor", is_set("rope_scaling_factor") ? text("rope_scaling_factor") : "8");
    }
    if (out_.model.norm.normalization == "LayerNorm") set("norm_bias", "true");
  }

  void activation() {
    if (is_set("openai_gelu")) set("gelu_tanh", "true");
    if (is_set("quick_geglu")) {
      set("swiglu", "true");
      set("glu_activation_scale", "1.702");
    }
  }

  void experts() {
    if (!is_set("num_experts")) return set("num_experts", "0");
    set("num_experts", text("num_experts"));
    for (const char* name : kMegatronSameOfExperts) same(name);
    if (hybrid_key().empty()) pattern("moe_layer_freq");
    if (out_.model.add_bias_linear) set("moe_expert_add_bias", "true");
  }

  void delta() {
    if (!is_set("experimental_attention_variant")) {
      if (is_set("linear_attention_freq"))
        refuse("linear_attention_freq", "it chooses layers of an experimental_attention_variant, which there is not");
      return;
    }
    if (text("experimental_attention_variant") != kGatedDelta)
      refuse("experimental_attention_variant", "of these variants gated_delta_net alone is read");
    if (out_.model.norm.normalization != "RMSNorm")
      refuse("normalization", "Witan's Gated DeltaNet has an RMSNorm, and Megatron-LM's one of this kind");
    if (!out_.model.mlp.swiglu || is_set("quick_geglu"))
      refuse("swiglu", "Witan's Gated DeltaNet has SiLU behind its convolution, and Megatron-LM's the MLP's function");
    same("experimental_attention_variant");
    pattern("linear_attention_freq");
    for (const char* name : kMegatronSameOfDelta) same(name);
  }

  // The argument with a letter for each layer; newer programs have another name for it. Empty if there is none.
  std::string_view hybrid_key() const {
    for (const std::string_view name : {"hybrid_layer_pattern", "hybrid_override_pattern"})
      if (is_set(name)) return name;
    return {};
  }

  void hybrid() {
    const std::string_view key = hybrid_key();
    if (key.empty()) {
      if (is_set("is_hybrid_model"))
        refuse("is_hybrid_model", "layers of such a model are read from hybrid_override_pattern, which is not set");
      return;
    }
    std::string layers = text(key);
    std::erase(layers, '|');  // ends a stage of the pipeline
    if (layers.find_first_not_of("M*-E") != std::string::npos)
      refuse(key, "layers are read by the letters M, *, - and E");
    set("num_layers", std::to_string(layers.size()));
    set("hybrid_override_pattern", layers);
    if (layers.find('M') == std::string::npos) return;
    for (const char* name : kMegatronSameOfMamba) same(name);
    if (out_.model.norm.norm_epsilon != kMegatronMambaEpsilon)
      refuse("norm_epsilon",
             "Megatron-LM's Mamba-2 normalises its output with 1e-5, Witan's with this: only a model of 1e-5 is the "
             "same in both");
  }

  const MegatronArguments& given_;
  const std::string& where_;
  MegatronModel& out_;
  const Fields fields_;
};

// Megatron-LM's None is Witan's 0.
MegatronValue megatron_value(const Field& field) {
  if (field.text() == "0" || field.name == "activation_func_clamp_value")
    if (std::stod(field.text()) == 0 && field.name != "attention_dropout" && field.name != "hidden_dropout") return {};
  if (const auto* flag = std::get_if<bool*>(&field.value)) return **flag;
  if (const auto* whole = std::get_if<int64_t*>(&field.value)) return **whole;
  if (const auto* number = std::get_if<double*>(&field.value)) return **number;
  return **std::get_if<std::string*>(&field.value);
}

}  // namespace

MegatronModel read_megatron_arguments(const MegatronArguments& arguments, const std::string& where) {
  MegatronModel read;
  MegatronReader(arguments, where, read).read();
  return read;
}

std::vector<std::pair<std::string, MegatronValue>> write_megatron_arguments(const ModelConfig& given,
                                                                            int64_t positions) {
  ModelConfig model = given;
  const AttentionConfig& attention = model.attention;
  std::vector<std::pair<std::string, MegatronValue>> all;
  const Fields fields = model.fields();
  const auto same = [&](const char* name) {
    all.emplace_back(name, megatron_value(*std::ranges::find(fields, name, &Field::name)));
  };
  const auto set = [&](const char* name, MegatronValue value) { all.emplace_back(name, std::move(value)); };
  for (const char* name : kMegatronSame) same(name);
  same("rotary_base");
  const int64_t learned = attention.learned_positions() ? attention.max_position_embeddings : positions;
  set("max_position_embeddings", learned);
  set("seq_length", positions);
  set("add_position_embedding", true);
  set("group_query_attention", attention.num_query_groups != attention.num_attention_heads);
  set("num_query_groups", attention.num_query_groups);
  set("kv_channels", attention.qk_head_dim(model.hidden_size));
  if (attention.multi_latent_attention) {
    set("multi_latent_attention", true);
    for (const char* name : kMegatronSameOfLatent) same(name);
    const auto qk_norm = std::ranges::find(all, "qk_layernorm", &std::pair<std::string, MegatronValue>::first);
    qk_norm->second = true;
    set("rope_type", attention.rope_scaling_type == "none" ? "rope" : attention.rope_scaling_type);
    for (const char* name : {"rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                             "mscale", "mscale_all_dim"})
      same(name);
  } else if (attention.rope_scaling_type == "linear") {
    set("rotary_seq_len_interpolation_factor", attention.rotary_scaling_factor);
  } else if (attention.rope_scaling_type == "llama3") {
    set("use_rope_scaling", true);
    set("rope_scaling_factor", attention.rotary_scaling_factor);
  }
  if (const size_t comma = attention.window_size.find(','); comma != std::string::npos)
    set("window_size", std::vector<int64_t>{std::stoll(attention.window_size.substr(0, comma)),
                                            std::stoll(attention.window_size.substr(comma + 1))});
  const auto list_of = [&](const auto& member) {
    std::vector<int64_t> list;
    for (const LayerSpec& layer : model.layers()) list.push_back(member(layer) ? 1 : 0);
    return list;
  };
  if (attention.window_attn_skip_freq != "none")
    set("window_attn_skip_freq", list_of([](const LayerSpec& layer) { return window_of(layer.mixer) > 0; }));
  set("openai_gelu", model.mlp.gelu_tanh && !model.mlp.gated());
  if (model.moe.num_experts > 0) {
    set("num_experts", model.moe.num_experts);
    for (const char* name : kMegatronSameOfExperts) same(name);
    const std::vector<int64_t> moe = list_of([](const LayerSpec& layer) { return layer.moe; });
    const bool every = model.mamba.any() || std::ranges::find(moe, 0) == moe.end();
    set("moe_layer_freq", every ? MegatronValue(int64_t{1}) : MegatronValue(moe));
  } else {
    set("num_experts", {});
  }
  if (model.linear_attention.delta()) {
    same("experimental_attention_variant");
    for (const char* name : kMegatronSameOfDelta) same(name);
    set("linear_attention_freq",
        list_of([](const LayerSpec& layer) { return std::holds_alternative<GatedDeltaSpec>(layer.mixer); }));
  }
  set("is_hybrid_model", model.mamba.any());
  if (model.mamba.any()) {
    same("hybrid_override_pattern");
    for (const char* name : kMegatronSameOfMamba) same(name);
    for (const char* ratio : {"hybrid_attention_ratio", "hybrid_mlp_ratio"}) set(ratio, 0.0);
    if (model.mamba.mamba_dt_min <= kTransformersLeastStep) model.mamba.mamba_dt_min = 0;
  }
  for (const char* ranks : {"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
                            "context_parallel_size"})
    set(ranks, int64_t{1});
  set("padded_vocab_size", model.vocab_size);

  PickleWriter pickled;
  pickled.arguments(all);
  const std::string text = pickled.finish(), where = "as a model of Megatron-Core";
  const Pickle pickle(text, where);
  ModelConfig read = read_megatron_arguments(pickle.root().state->members(), where).model;
  read.vocab_size = model.vocab_size;
  const auto different = differences(read, model);
  require<ConfigError>(different.empty(), where, " this one would have ", different.empty() ? "" : different.front(),
                       ": ", different.empty() ? "" : reason_for(different.front()));
  return all;
}

}  // namespace witan
