#include "witan/convert/megatron/megatron_args.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

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
                                         "glu_linear_offset"};
constexpr const char* kMegatronSameOfExperts[] = {"moe_ffn_hidden_size",
                                                  "moe_router_topk",
                                                  "moe_router_score_function",
                                                  "moe_router_pre_softmax",
                                                  "moe_router_num_groups",
                                                  "moe_router_group_topk",
                                                  "moe_router_topk_scaling_factor",
                                                  "moe_router_enable_expert_bias",
                                                  "moe_shared_expert_intermediate_size",
                                                  "moe_shared_expert_gate"};
constexpr const char* kMegatronSameOfLatent[] = {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
                                                 "v_head_dim"};

// Arguments that change the model in ways that Witan lacks, with the reason for refusing them.
struct MegatronOnly {
  const char* name;
  std::string_view why;
};
constexpr MegatronOnly kMegatronRefused[] = {
    {"apply_residual_connection_post_layernorm", "the residual connection starts before the norm"},
    {"heterogeneous_layers_config_path", "all layers are of one size"},
    {"heterogeneous_layers_config_encoded_json", "all layers are of one size"},
    {"hybrid_override_pattern", "layers have attention and an MLP in what is converted, and no mixer of Mamba-2"},
    {"is_hybrid_model", "layers have attention and an MLP in what is converted, and no mixer of Mamba-2"},
    {"linear_attention_freq", "all layers have softmax attention in what is converted"},
    {"experimental_attention_variant", "all layers have softmax attention in what is converted"},
    {"attention_output_gate", "attention has no gate on its output in what is converted"},
    {"moe_latent_size", "experts read the residual stream as it is in what is converted"},
    {"mtp_num_layers", "layers that predict further tokens are not converted"},
    {"no_rope_freq", "all layers turn queries and keys in what is converted"},
    {"transformer_impl_custom_spec", "the arguments define the model"},
    {"yaml_cfg", "the arguments define the model"}};

// The reason for which a model whose first difference from Megatron-LM's is `difference` is not written.
std::string reason_for(std::string_view difference) {
  for (const MegatronOnly& one : kMegatronRefused)
    if (difference.substr(0, difference.find(' ')) == one.name)
      return cat("in Witan ", one.why, "; export --format hf");
  return "Megatron-LM has no argument for it";
}

constexpr double kLatentEpsilon = 1e-6;  // in Witan's norms of latents

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
    pattern("moe_layer_freq");
    if (out_.model.add_bias_linear) set("moe_expert_add_bias", "true");
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
    set("moe_layer_freq", std::ranges::find(moe, 0) == moe.end() ? MegatronValue(int64_t{1}) : MegatronValue(moe));
  } else {
    set("num_experts", {});
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
