#include "witan/convert/tensor_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using Storage = ExpertStorage;

constexpr std::string_view kQkv[] = {"attention.q_proj.weight", "attention.k_proj.weight", "attention.v_proj.weight"},
                           kQkvBiases[] = {"attention.q_proj.bias", "attention.k_proj.bias", "attention.v_proj.bias"};

constexpr TensorRule kModelRules[] = {
    {.witan = "embedding.weight", .other = "model.embed_tokens.weight"},
    {.witan = "final_norm.weight", .other = "model.norm.weight"},
    {.witan = "head.weight", .other = "lm_head.weight"},
};

constexpr TensorRule kPreNormRules[] = {
    {.witan = "attention_norm.weight", .other = "model.layers.{l}.input_layernorm.weight"},
    {.witan = "mlp_norm.weight", .other = "model.layers.{l}.post_attention_layernorm.weight"},
};

// Norms of what attention and MLP add (OLMo 2 and 3).
constexpr TensorRule kPostNormRules[] = {
    {.witan = "attention_norm.weight", .other = "model.layers.{l}.post_attention_layernorm.weight"},
    {.witan = "mlp_norm.weight", .other = "model.layers.{l}.post_feedforward_layernorm.weight"},
};

constexpr TensorRule kAttentionRules[] = {
    {.witan = "attention.q_proj.weight", .other = "model.layers.{l}.self_attn.q_proj.weight"},
    {.witan = "attention.k_proj.weight", .other = "model.layers.{l}.self_attn.k_proj.weight"},
    {.witan = "attention.v_proj.weight", .other = "model.layers.{l}.self_attn.v_proj.weight"},
    {.witan = "attention.o_proj.weight", .other = "model.layers.{l}.self_attn.o_proj.weight"},
    {.witan = "attention.q_proj.bias", .other = "model.layers.{l}.self_attn.q_proj.bias"},
    {.witan = "attention.k_proj.bias", .other = "model.layers.{l}.self_attn.k_proj.bias"},
    {.witan = "attention.v_proj.bias", .other = "model.layers.{l}.self_attn.v_proj.bias"},
    {.witan = "attention.o_proj.bias", .other = "model.layers.{l}.self_attn.o_proj.bias"},
    {.witan = "attention.q_norm.weight", .other = "model.layers.{l}.self_attn.q_norm.weight"},
    {.witan = "attention.k_norm.weight", .other = "model.layers.{l}.self_attn.k_norm.weight"},
    {.witan = "attention.sinks", .other = "model.layers.{l}.self_attn.sinks"},
};

constexpr TensorRule kLatentRules[] = {
    {.witan = "attention.q_proj.weight", .other = "model.layers.{l}.self_attn.q_proj.weight"},
    {.witan = "attention.q_a_proj.weight", .other = "model.layers.{l}.self_attn.q_a_proj.weight"},
    {.witan = "attention.q_a_layernorm.weight", .other = "model.layers.{l}.self_attn.q_a_layernorm.weight"},
    {.witan = "attention.q_b_proj.weight", .other = "model.layers.{l}.self_attn.q_b_proj.weight"},
    {.witan = "attention.kv_a_proj_with_mqa.weight", .other = "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},
    {.witan = "attention.kv_a_layernorm.weight", .other = "model.layers.{l}.self_attn.kv_a_layernorm.weight"},
    {.witan = "attention.kv_b_proj.weight", .other = "model.layers.{l}.self_attn.kv_b_proj.weight"},
    {.witan = "attention.o_proj.weight", .other = "model.layers.{l}.self_attn.o_proj.weight"},
};

constexpr TensorRule kMlpRules[] = {
    {.witan = "mlp.gate_up_proj.weight", .other = "model.layers.{l}.mlp.gate_proj.weight", .part = 0, .parts = 2},
    {.witan = "mlp.gate_up_proj.weight", .other = "model.layers.{l}.mlp.up_proj.weight", .part = 1, .parts = 2},
    {.witan = "mlp.down_proj.weight", .other = "model.layers.{l}.mlp.down_proj.weight"},
    {.witan = "mlp.gate_up_proj.bias", .other = "model.layers.{l}.mlp.gate_proj.bias", .part = 0, .parts = 2},
    {.witan = "mlp.gate_up_proj.bias", .other = "model.layers.{l}.mlp.up_proj.bias", .part = 1, .parts = 2},
    {.witan = "mlp.down_proj.bias", .other = "model.layers.{l}.mlp.down_proj.bias"},
};

constexpr TensorRule kMixtralRules[] = {
    {.witan = "moe.router.weight",
     .other = "model.layers.{l}.block_sparse_moe.gate.weight",
     .storage = Storage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
     .part = 0,
     .parts = 2,
     .storage = Storage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
     .part = 1,
     .parts = 2,
     .storage = Storage::single},
    {.witan = "moe.experts.down_proj",
     .other = "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight",
     .storage = Storage::single},
    {.witan = "moe.router.weight", .other = "model.layers.{l}.mlp.gate.weight", .storage = Storage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.gate_up_proj",
     .storage = Storage::fused},
    {.witan = "moe.experts.down_proj", .other = "model.layers.{l}.mlp.experts.down_proj", .storage = Storage::fused},
};

// Of Qwen3-MoE, OLMoE and DeepSeek.
constexpr TensorRule kMoeRules[] = {
    {.witan = "moe.router.weight", .other = "model.layers.{l}.mlp.gate.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
     .part = 0,
     .parts = 2,
     .storage = Storage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.{e}.up_proj.weight",
     .part = 1,
     .parts = 2,
     .storage = Storage::single},
    {.witan = "moe.experts.down_proj",
     .other = "model.layers.{l}.mlp.experts.{e}.down_proj.weight",
     .storage = Storage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.gate_up_proj",
     .storage = Storage::fused},
    {.witan = "moe.experts.down_proj", .other = "model.layers.{l}.mlp.experts.down_proj", .storage = Storage::fused},
};

constexpr TensorRule kSharedExpertRules[] = {
    {.witan = "moe.router.expert_bias", .other = "model.layers.{l}.mlp.gate.e_score_correction_bias"},
    {.witan = "moe.shared_experts.gate_up_proj.weight",
     .other = "model.layers.{l}.mlp.shared_experts.gate_proj.weight",
     .part = 0,
     .parts = 2},
    {.witan = "moe.shared_experts.gate_up_proj.weight",
     .other = "model.layers.{l}.mlp.shared_experts.up_proj.weight",
     .part = 1,
     .parts = 2},
    {.witan = "moe.shared_experts.down_proj.weight", .other = "model.layers.{l}.mlp.shared_experts.down_proj.weight"},
};

// Of a module of multi-token prediction, beside its block.
constexpr TensorRule kMtpRules[] = {
    {.witan = "enorm.weight", .other = "model.layers.{l}.enorm.weight"},
    {.witan = "hnorm.weight", .other = "model.layers.{l}.hnorm.weight"},
    {.witan = "eh_proj.weight", .other = "model.layers.{l}.eh_proj.weight"},
    {.witan = "norm.weight", .other = "model.layers.{l}.shared_head.norm.weight"},
};
constexpr std::string_view kMtpEmbedding = "model.layers.{l}.embed_tokens.weight",
                           kMtpHead = "model.layers.{l}.shared_head.head.weight";

constexpr TensorRule kGptOssRules[] = {
    {.witan = "moe.router.weight", .other = "model.layers.{l}.mlp.router.weight"},
    {.witan = "moe.router.bias", .other = "model.layers.{l}.mlp.router.bias"},
    {.witan = "moe.experts.gate_up_proj_bias",
     .other = "model.layers.{l}.mlp.experts.gate_up_proj_bias",
     .interleaved = true},
    {.witan = "moe.experts.down_proj_bias", .other = "model.layers.{l}.mlp.experts.down_proj_bias"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.gate_up_proj",
     .transposed = true,
     .interleaved = true,
     .storage = Storage::fused},
    {.witan = "moe.experts.down_proj",
     .other = "model.layers.{l}.mlp.experts.down_proj",
     .transposed = true,
     .storage = Storage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "model.layers.{l}.mlp.experts.gate_up_proj_blocks",
     .interleaved = true,
     .storage = Storage::mxfp4},
    {.witan = "moe.experts.down_proj",
     .other = "model.layers.{l}.mlp.experts.down_proj_blocks",
     .storage = Storage::mxfp4},
};

constexpr TensorRule kPhi3Rules[] = {
    {.witan = "attention.q_proj.weight", .other = "model.layers.{l}.self_attn.qkv_proj.weight", .joined = kQkv},
    {.witan = "attention.k_proj.weight", .other = "model.layers.{l}.self_attn.qkv_proj.weight", .joined = kQkv},
    {.witan = "attention.v_proj.weight", .other = "model.layers.{l}.self_attn.qkv_proj.weight", .joined = kQkv},
    {.witan = "attention.o_proj.weight", .other = "model.layers.{l}.self_attn.o_proj.weight"},
    {.witan = "mlp.gate_up_proj.weight", .other = "model.layers.{l}.mlp.gate_up_proj.weight"},
    {.witan = "mlp.down_proj.weight", .other = "model.layers.{l}.mlp.down_proj.weight"},
};

// Matrices are [in, out]; queries, keys and values are one.
constexpr TensorRule kGpt2Rules[] = {
    {.witan = "embedding.weight", .other = "transformer.wte.weight"},
    {.witan = "position_embedding.weight", .other = "transformer.wpe.weight"},
    {.witan = "final_norm.weight", .other = "transformer.ln_f.weight"},
    {.witan = "final_norm.bias", .other = "transformer.ln_f.bias"},
    {.witan = "head.weight", .other = "lm_head.weight"},
    {.witan = "attention_norm.weight", .other = "transformer.h.{l}.ln_1.weight"},
    {.witan = "attention_norm.bias", .other = "transformer.h.{l}.ln_1.bias"},
    {.witan = "mlp_norm.weight", .other = "transformer.h.{l}.ln_2.weight"},
    {.witan = "mlp_norm.bias", .other = "transformer.h.{l}.ln_2.bias"},
    {.witan = "attention.q_proj.weight",
     .other = "transformer.h.{l}.attn.c_attn.weight",
     .joined = kQkv,
     .transposed = true},
    {.witan = "attention.k_proj.weight",
     .other = "transformer.h.{l}.attn.c_attn.weight",
     .joined = kQkv,
     .transposed = true},
    {.witan = "attention.v_proj.weight",
     .other = "transformer.h.{l}.attn.c_attn.weight",
     .joined = kQkv,
     .transposed = true},
    {.witan = "attention.q_proj.bias", .other = "transformer.h.{l}.attn.c_attn.bias", .joined = kQkvBiases},
    {.witan = "attention.k_proj.bias", .other = "transformer.h.{l}.attn.c_attn.bias", .joined = kQkvBiases},
    {.witan = "attention.v_proj.bias", .other = "transformer.h.{l}.attn.c_attn.bias", .joined = kQkvBiases},
    {.witan = "attention.o_proj.weight", .other = "transformer.h.{l}.attn.c_proj.weight", .transposed = true},
    {.witan = "attention.o_proj.bias", .other = "transformer.h.{l}.attn.c_proj.bias"},
    {.witan = "mlp.up_proj.weight", .other = "transformer.h.{l}.mlp.c_fc.weight", .transposed = true},
    {.witan = "mlp.up_proj.bias", .other = "transformer.h.{l}.mlp.c_fc.bias"},
    {.witan = "mlp.down_proj.weight", .other = "transformer.h.{l}.mlp.c_proj.weight", .transposed = true},
    {.witan = "mlp.down_proj.bias", .other = "transformer.h.{l}.mlp.c_proj.bias"},
};

// Frequencies, sines and cosines of a module "rotary_emb", which versions of transformers keep in each layer's
// attention, in the model, or there by type of layers.
bool is_of_rotary_positions(std::string_view name) {
  const size_t at = name.find("rotary_emb");
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return false;
  return name.ends_with("inv_freq") || name.ends_with("cos_cached") || name.ends_with("sin_cached");
}

std::vector<Architecture> make_architectures() {
  const auto llama_like = [](std::string_view type, std::string_view name) {
    return Architecture{type, name, "model.", {kModelRules, kPreNormRules, kAttentionRules, kMlpRules}, {}};
  };
  std::vector<Architecture> all = {
      llama_like("llama", "LlamaForCausalLM"),
      llama_like("qwen3", "Qwen3ForCausalLM"),
      llama_like("mistral", "MistralForCausalLM"),
      llama_like("qwen2", "Qwen2ForCausalLM"),
      llama_like("mixtral", "MixtralForCausalLM"),
      llama_like("qwen3_moe", "Qwen3MoeForCausalLM"),
      llama_like("olmoe", "OlmoeForCausalLM"),
      llama_like("olmo2", "Olmo2ForCausalLM"),
      llama_like("olmo3", "Olmo3ForCausalLM"),
      llama_like("gpt_oss", "GptOssForCausalLM"),
      llama_like("deepseek_v2", "DeepseekV2ForCausalLM"),
      llama_like("deepseek_v3", "DeepseekV3ForCausalLM"),
  };
  const auto of = [&](std::string_view type) -> Architecture& {
    return *std::ranges::find(all, type, &Architecture::model_type);
  };
  of("mixtral").rules.push_back(kMixtralRules);
  of("qwen3_moe").rules.push_back(kMoeRules);
  of("olmoe").rules.push_back(kMoeRules);
  of("olmo2").rules[1] = of("olmo3").rules[1] = kPostNormRules;
  of("gpt_oss").rules.push_back(kGptOssRules);
  for (const std::string_view type : {"deepseek_v2", "deepseek_v3"}) {
    of(type).rules[2] = kLatentRules;
    of(type).rules.push_back(kMoeRules);
    of(type).rules.push_back(kSharedExpertRules);
  }
  of("deepseek_v3").rules.push_back(kMtpRules);
  all.push_back({"phi3", "Phi3ForCausalLM", "model.", {kModelRules, kPreNormRules, kPhi3Rules}, {}});
  all.push_back({"gpt2",
                 "GPT2LMHeadModel",
                 "transformer.",
                 {kGpt2Rules},
                 {"transformer.h.{l}.attn.bias", "transformer.h.{l}.attn.masked_bias"}});
  return all;
}

// "layers.12.mlp_norm.weight" as 12 and what follows "layers." and the number; -1 for what has no such prefix.
std::pair<int64_t, std::string_view> number_and_rest(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return {-1, name};
  const std::string_view rest = name.substr(prefix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  return {number, rest.substr(static_cast<size_t>(end - rest.data()) + 1)};
}

constexpr std::string_view kLayers = "layers.", kMtp = "mtp.", kMtpBlock = "block.";

int64_t count_layers(const std::vector<ModelTensor>& tensors) {
  int64_t layers = 0;
  for (const ModelTensor& tensor : tensors) layers = std::max(layers, number_and_rest(kLayers, tensor.name).first + 1);
  return layers;
}

// The layer of the other program that has the tensor, in a model of so many layers, and the tensor's name below it; -1
// for what no layer has.
std::pair<int64_t, std::string_view> layer_and_rest(std::string_view name, int64_t layers) {
  if (!name.starts_with(kMtp)) return number_and_rest(kLayers, name);
  auto [module, rest] = number_and_rest(kMtp, name);
  if (rest.starts_with(kMtpBlock)) rest.remove_prefix(kMtpBlock.size());
  return {layers + module, rest};
}

std::string with_number(std::string text, std::string_view mark, int64_t number) {
  if (const size_t at = text.find(mark); at != std::string::npos) text.replace(at, mark.size(), std::to_string(number));
  return text;
}

std::string other_name(const Architecture& architecture, const NameStyle& style, const TensorRule& rule,
                       int64_t layer) {
  return name_in_layer(architecture, style, rule.other, layer);
}

std::vector<const TensorRule*> rules_of(const Architecture& architecture, std::string_view rest,
                                        ExpertStorage storage) {
  std::vector<const TensorRule*> found;
  for (const auto& table : architecture.rules)
    for (const TensorRule& rule : table)
      if (rule.witan == rest && (rule.storage == Storage::any || rule.storage == storage)) found.push_back(&rule);
  return found;
}

// The sizes that a rule speaks of.
struct Sizes {
  int64_t experts = 1, out = 1, in = 1;
  bool vector = false;

  Sizes(const ModelTensor& tensor, int64_t rows) {
    int dim = 0;
    if (tensor.experts) experts = tensor.shape[dim++];
    out = rows;
    vector = tensor.shape.dims() == dim + 1;
    if (!vector) in = tensor.shape[dim + 1];
  }
};

// Rows of the tensors of a model, by name.
using RowsByName = std::map<std::string, int64_t>;

RowsByName rows_by_name(const std::vector<ModelTensor>& tensors) {
  RowsByName rows;
  for (const ModelTensor& tensor : tensors) rows[tensor.name] = tensor.shape[tensor.experts ? 1 : 0];
  return rows;
}

// The outputs of the tensor that a rule joins `own` ones in, and where these begin.
struct JoinedRows {
  int64_t first = 0, all = 0;

  JoinedRows(const TensorRule& rule, const std::string& name, int64_t own, const RowsByName& rows) {
    if (rule.joined.empty()) {
      all = own;
      return;
    }
    const std::string layer = name.substr(0, name.size() - rule.witan.size());
    for (const std::string_view one : rule.joined) {
      if (one == rule.witan) first = all;
      const auto found = rows.find(cat(layer, one));
      require<ConfigError>(found != rows.end(), name, " is one tensor with ", layer, one,
                           " there, which this model lacks");
      all += found->second;
    }
  }
};

// Visits each tensor of the other program that the rule takes something from: its name, its shape, and the piece.
template <class Visit>
void visit_rule(const TensorRule& rule, const ModelTensor& tensor, const Sizes& sizes, const JoinedRows& joined,
                const std::string& other, const Visit& visit) {
  const bool single = other.find("{e}") != std::string::npos;
  const int64_t own = sizes.out / rule.parts, out = joined.all, in = sizes.in;
  const int64_t groups = rule.interleaved ? 2 : 1, of_group = own / groups;
  const int64_t out_stride = rule.transposed ? 1 : in, in_stride = rule.transposed ? out : 1;
  Shape shape;
  if (!single && tensor.experts) shape.append(sizes.experts);
  if (sizes.vector) {
    shape.append(out);
  } else {
    shape.append(rule.transposed ? in : out);
    shape.append(rule.transposed ? out : in);
  }
  SharedBox piece;
  piece.sizes = {single ? 1 : sizes.experts, groups, of_group, in};
  piece.to.name = tensor.name;
  piece.to.strides = {sizes.out * in, of_group * in, in, 1};
  piece.from.strides = {out * in, out_stride, groups * out_stride, in_stride};
  piece.from.first = joined.first * out_stride;
  for (int64_t expert = 0; expert < (single ? sizes.experts : 1); ++expert) {
    piece.to.first = expert * sizes.out * in + rule.part * own * in;
    piece.from.name = with_number(other, "{e}", expert);
    SharedBox normal = piece;
    normal.normalise();
    visit(piece.from.name, shape, normal);
  }
}

bool of_vocabulary(std::string_view name) {
  return name == "embedding.weight" || name == "head.weight";
}

template <class Visit>
void visit_tensor(const Architecture& architecture, const NameStyle& style, const ModelTensor& tensor, int64_t layers,
                  const RowsByName& all, int64_t vocabulary, const Visit& visit) {
  const auto [layer, rest] = layer_and_rest(tensor.name, layers);
  const auto rules = rules_of(architecture, rest, style.storage);
  require<ConfigError>(!rules.empty() || tensor.buffer, "this model has ", tensor.name, " ", tensor.shape,
                       ", which a model of type ", architecture.model_type,
                       " has no place for: it cannot be written as one");
  const int64_t rows = of_vocabulary(rest) ? vocabulary : tensor.shape[tensor.experts ? 1 : 0];
  for (const TensorRule* rule : rules) {
    require<ConfigError>(rows % (rule->parts * (rule->interleaved ? 2 : 1)) == 0, tensor.name, " ", tensor.shape,
                         " has no ", rule->parts, " equal parts");
    visit_rule(*rule, tensor, Sizes(tensor, rows), JoinedRows(*rule, tensor.name, rows / rule->parts, all),
               other_name(architecture, style, *rule, layer), visit);
  }
}

}  // namespace

std::span<const Architecture> architectures() {
  static const std::vector<Architecture> all = make_architectures();
  return all;
}

const Architecture* find_architecture(std::string_view model_type) {
  const auto all = architectures();
  const auto found = std::ranges::find(all, model_type, &Architecture::model_type);
  return found == all.end() ? nullptr : &*found;
}

std::vector<Link> link_model(const Architecture& architecture, NameStyle style, const std::vector<ModelTensor>& tensors,
                             int64_t vocabulary) {
  std::vector<Link> links;
  const int64_t layers = count_layers(tensors);
  const RowsByName all = rows_by_name(tensors);
  for (const ModelTensor& tensor : tensors) {
    Link link{tensor.name, tensor.shape, {}, 0};
    if (of_vocabulary(tensor.name)) link.padding = (tensor.shape[0] - vocabulary) * tensor.shape[1];
    visit_tensor(architecture, style, tensor, layers, all, vocabulary,
                 [&](const std::string&, const Shape&, const SharedBox& piece) { link.pieces.push_back(piece); });
    if (link.pieces.empty()) continue;
    check_cover(link, architecture.model_type);
    links.push_back(std::move(link));
  }
  return links;
}

std::vector<std::pair<std::string, Shape>> other_tensors(const Architecture& architecture, NameStyle style,
                                                         const std::vector<ModelTensor>& tensors, int64_t vocabulary) {
  std::vector<std::pair<std::string, Shape>> others;
  std::set<std::string> seen;
  const int64_t layers = count_layers(tensors);
  const RowsByName all = rows_by_name(tensors);
  for (const ModelTensor& tensor : tensors)
    visit_tensor(architecture, style, tensor, layers, all, vocabulary,
                 [&](const std::string& name, const Shape& shape, const SharedBox&) {
                   if (seen.insert(name).second) others.emplace_back(name, shape);
                 });
  return others;
}

NameStyle style_of(const Architecture& architecture, const std::function<bool(const std::string&)>& has,
                   const std::vector<ModelTensor>& tensors) {
  NameStyle style;
  const int64_t layers = count_layers(tensors);
  const auto held = [&](NameStyle as, const ModelTensor& tensor) {
    const auto [layer, rest] = layer_and_rest(tensor.name, layers);
    const auto rules = rules_of(architecture, rest, as.storage);
    return !rules.empty() && std::ranges::all_of(rules, [&](const TensorRule* rule) {
      return has(with_number(other_name(architecture, as, *rule, layer), "{e}", 0));
    });
  };
  for (const bool bare : {true, false}) {
    style.bare = bare;
    if (held(style, tensors.front())) break;
  }
  for (const ModelTensor& tensor : tensors)
    if (tensor.experts)
      for (const Storage storage : {Storage::mxfp4, Storage::fused, Storage::single}) {
        const NameStyle as{storage, style.bare};
        if (held(as, tensor)) return as;
      }
  if (std::ranges::any_of(tensors, &ModelTensor::experts)) style.storage = default_storage(architecture);
  return style;
}

ExpertStorage default_storage(const Architecture& architecture) {
  bool single = false;
  for (const auto& table : architecture.rules)
    for (const TensorRule& rule : table) single = single || rule.storage == Storage::single;
  return single ? Storage::single : Storage::fused;
}

bool is_computed(const Architecture& architecture, std::string_view name) {
  return is_of_rotary_positions(name) || std::ranges::any_of(architecture.computed, [&](std::string_view pattern) {
           for (const bool bare : {false, true}) {
             std::string_view shape = pattern;
             if (bare) shape.remove_prefix(architecture.prefix.size());
             const size_t mark = shape.find("{l}");
             const std::string_view before = shape.substr(0, mark), after = shape.substr(mark + 3);
             if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
               continue;
             const std::string_view number = name.substr(before.size(), name.size() - before.size() - after.size());
             if (number.find_first_not_of("0123456789") == std::string_view::npos) return true;
           }
           return false;
         });
}

std::string name_in_layer(const Architecture& architecture, NameStyle style, std::string_view pattern, int64_t layer) {
  if (style.bare && pattern.starts_with(architecture.prefix)) pattern.remove_prefix(architecture.prefix.size());
  return with_number(std::string(pattern), "{l}", layer);
}

std::vector<std::pair<std::string, std::string>> mtp_copies(const Architecture& architecture, NameStyle style,
                                                            const ModelConfig& model) {
  std::vector<std::pair<std::string, std::string>> copies;
  const std::string embedding = embedding_name(architecture, style);
  const std::string head = model.untie_embeddings_and_output_weights ? std::string(kHeadName) : embedding;
  for (int64_t module = 0; module < model.mtp_num_layers; ++module) {
    const int64_t layer = model.num_layers + module;
    copies.emplace_back(name_in_layer(architecture, style, kMtpEmbedding, layer), embedding);
    copies.emplace_back(name_in_layer(architecture, style, kMtpHead, layer), head);
  }
  return copies;
}

std::string embedding_name(const Architecture& architecture, NameStyle style) {
  return other_name(architecture, style, *rules_of(architecture, "embedding.weight", Storage::any).front(), -1);
}

}  // namespace witan
