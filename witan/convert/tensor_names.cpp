#include "witan/convert/tensor_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/joined_rows.h"

namespace witan {
namespace {

using Storage = ExpertStorage;

// The copies that mtp_copies() names.
constexpr std::string_view kMtpEmbedding = "layers.{l}.embed_tokens.weight",
                           kMtpHead = "layers.{l}.shared_head.head.weight";

// Frequencies, sines and cosines of a module "rotary_emb". Depending on its version, transformers keeps the module in
// each layer's attention, in the model, or in the model for each type of layers.
bool is_of_rotary_positions(std::string_view name) {
  const size_t at = name.find("rotary_emb");
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return false;
  return name.ends_with("inv_freq") || name.ends_with("cos_cached") || name.ends_with("sin_cached");
}

// Splits "layers.12.mlp_norm.weight" into 12 and "mlp_norm.weight"; the number is -1 without this prefix.
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

std::string with_number(std::string text, std::string_view mark, int64_t number) {
  if (const size_t at = text.find(mark); at != std::string::npos) text.replace(at, mark.size(), std::to_string(number));
  return text;
}

// The other program's name that a rule gives with {l} and {e}.
std::string other_name(const Architecture& architecture, const NameStyle& style, std::string_view pattern,
                       int64_t layer) {
  if (pattern == kHeadName) return head_name(style);
  if (pattern.starts_with('/')) return std::string(pattern.substr(1));
  const std::string_view plain = style.bare ? "" : architecture.prefix;
  return with_number(cat(style.prefix.empty() ? plain : style.prefix, pattern), "{l}", layer);
}

std::vector<const TensorRule*> rules_of(const Architecture& architecture, std::string_view rest,
                                        ExpertStorage storage) {
  std::vector<const TensorRule*> found;
  for (const auto& table : architecture.rules)
    for (const TensorRule& rule : table)
      if (rule.witan == rest && (rule.storage == Storage::any || rule.storage == storage)) found.push_back(&rule);
  return found;
}

template <class Is>
bool any_rule(const Architecture& architecture, const Is& is) {
  return std::ranges::any_of(architecture.rules, [&](const auto& table) { return std::ranges::any_of(table, is); });
}

bool has_storage(const Architecture& architecture, ExpertStorage storage) {
  return any_rule(architecture, [&](const TensorRule& rule) { return rule.storage == storage; });
}

// The sizes of the tensor that a rule applies to.
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

// Visits each of the other program's tensors that the rule uses: its name, its shape, and the piece.
template <class Visit>
void visit_rule(const TensorRule& rule, const ModelTensor& tensor, const Sizes& sizes, const JoinedRows& joined,
                const std::string& other, const Visit& visit) {
  const bool single = other.find("{e}") != std::string::npos;
  const int64_t own = sizes.out / rule.parts, out = joined.all, in = sizes.in;
  // Groups are of gate and up, which alternate, or of heads.
  const int64_t groups = rule.interleaved ? 2 : joined.groups, of_group = own / groups;
  const int64_t out_stride = rule.transposed ? 1 : in, in_stride = rule.transposed ? out : 1;
  Shape shape;
  if (!single && tensor.experts) shape.append(sizes.experts);
  if (sizes.vector) {
    if (rule.row || rule.of_heads) shape.append(1);
    if (rule.of_heads) shape.append(1);
    shape.append(out);
    if (rule.of_heads) shape.append(1);
  } else {
    shape.append(rule.transposed ? in : out);
    if (rule.depthwise) shape.append(1);
    shape.append(rule.transposed ? out : in);
  }
  SharedBox piece;
  piece.sizes = {single ? 1 : sizes.experts, groups, of_group, in};
  piece.to.name = tensor.name;
  piece.to.strides = {sizes.out * in, of_group * in, in, 1};
  piece.from.strides = rule.interleaved ? std::array{out * in, out_stride, groups * out_stride, in_stride}
                                        : std::array{out * in, joined.of_group() * out_stride, out_stride, in_stride};
  piece.from.first = joined.first * out_stride;
  for (int64_t expert = 0; expert < (single ? sizes.experts : 1); ++expert) {
    piece.to.first = expert * sizes.out * in + rule.part * own * in;
    piece.from.name = with_number(other, "{e}", expert);
    SharedBox normal = piece;
    normal.normalise();
    visit(piece.from.name, shape, normal);
  }
}

template <class Visit>
void visit_tensor(const Architecture& architecture, const NameStyle& style, const ModelTensor& tensor, int64_t layers,
                  const RowsByName& all, const ModelConfig& model, const Visit& visit) {
  const auto [layer, rest] = layer_and_rest(tensor.name, layers);
  const auto rules = rules_of(architecture, rest, style.storage);
  require<ConfigError>(!rules.empty() || tensor.buffer, "this model has ", tensor.name, " ", tensor.shape,
                       ", which a model of type ", architecture.model_type,
                       " has no place for: it cannot be written as one");
  const int64_t rows = has_vocabulary_rows(rest) ? model.vocab_size : tensor.shape[tensor.experts ? 1 : 0];
  for (const TensorRule* rule : rules) {
    require<ConfigError>(rows % (rule->parts * (rule->interleaved ? 2 : 1)) == 0, tensor.name, " ", tensor.shape,
                         " has no ", rule->parts, " equal parts");
    const JoinedRows joined(tensor.name, rule->witan, rows / rule->parts, rule->joined,
                            group_count(rule->groups, model), all);
    visit_rule(*rule, tensor, Sizes(tensor, rows), joined, other_name(architecture, style, rule->other, layer), visit);
  }
}

// The text decoder's prefixes in folders of vision-language models: as transformers has them in memory since v5, and as
// most published folders do. Others, such as Qwen2.5-VL's, have the prefix of a model of text.
constexpr std::string_view kTextDecoders[] = {"model.language_model.", "language_model.model."};
constexpr std::string_view kNestedHead = "language_model.lm_head.weight";

}  // namespace

std::pair<int64_t, std::string_view> layer_and_rest(std::string_view name, int64_t layers) {
  if (!name.starts_with(kMtp)) return number_and_rest(kLayers, name);
  auto [module, rest] = number_and_rest(kMtp, name);
  if (rest.starts_with(kMtpBlock)) rest.remove_prefix(kMtpBlock.size());
  return {layers + module, rest};
}

std::string head_name(const NameStyle& style) {
  return style.head.empty() ? std::string(kHeadName) : style.head;
}

bool is_side_tensor(const Architecture& architecture, const NameStyle& style, std::string_view name) {
  if (style.prefix.empty() || name == head_name(style)) return false;
  return !name.starts_with(style.prefix) || (!architecture.side.empty() && name.starts_with(architecture.side));
}

bool is_of_borrowed_keys(const Architecture& architecture, const NameStyle& style, const ModelConfig& model,
                         std::string_view name) {
  constexpr std::string_view kOfKeys[] = {"attention.k_proj.weight", "attention.v_proj.weight", "attention.k_proj.bias",
                                          "attention.v_proj.bias", "attention.k_norm.weight"};
  for (int64_t layer = model.num_layers - model.num_kv_shared_layers; layer < model.num_layers; ++layer)
    for (const std::string_view own : kOfKeys)
      for (const TensorRule* rule : rules_of(architecture, own, Storage::any))
        if (name == other_name(architecture, style, rule->other, layer)) return true;
  return false;
}

NameStyle text_decoder_style(const Architecture& architecture, const std::function<bool(const std::string&)>& has) {
  NameStyle style;
  for (const std::string_view prefix : {kTextDecoders[0], kTextDecoders[1], architecture.prefix}) {
    style.prefix = prefix;
    if (!has(embedding_name(architecture, style))) continue;
    if (has(std::string(kNestedHead))) style.head = kNestedHead;
    return style;
  }
  return {};
}

std::vector<Link> link_model(const Architecture& architecture, NameStyle style, const std::vector<ModelTensor>& tensors,
                             const ModelConfig& model) {
  std::vector<Link> links;
  const int64_t layers = count_layers(tensors);
  const RowsByName all = rows_by_name(tensors);
  for (const ModelTensor& tensor : tensors) {
    Link link{tensor.name, tensor.shape, {}, 0};
    if (has_vocabulary_rows(tensor.name)) link.padding = (tensor.shape[0] - model.vocab_size) * tensor.shape[1];
    visit_tensor(architecture, style, tensor, layers, all, model,
                 [&](const std::string&, const Shape&, const SharedBox& piece) { link.pieces.push_back(piece); });
    if (link.pieces.empty()) continue;
    check_cover(link, architecture.model_type);
    links.push_back(std::move(link));
  }
  return links;
}

std::vector<std::pair<std::string, Shape>> other_tensors(const Architecture& architecture, NameStyle style,
                                                         const std::vector<ModelTensor>& tensors,
                                                         const ModelConfig& model) {
  std::vector<std::pair<std::string, Shape>> others;
  std::set<std::string> seen;
  const int64_t layers = count_layers(tensors);
  const RowsByName all = rows_by_name(tensors);
  for (const ModelTensor& tensor : tensors)
    visit_tensor(architecture, style, tensor, layers, all, model,
                 [&](const std::string& name, const Shape& shape, const SharedBox&) {
                   if (seen.insert(name).second) others.emplace_back(name, shape);
                 });
  return others;
}

NameStyle style_of(const Architecture& architecture, const std::function<bool(const std::string&)>& has,
                   const std::vector<ModelTensor>& tensors, const NameStyle& known) {
  NameStyle style = known;
  const int64_t layers = count_layers(tensors);
  const auto held = [&](NameStyle as, const ModelTensor& tensor) {
    const auto [layer, rest] = layer_and_rest(tensor.name, layers);
    const auto rules = rules_of(architecture, rest, as.storage);
    return !rules.empty() && std::ranges::all_of(rules, [&](const TensorRule* rule) {
      return has(with_number(other_name(architecture, as, rule->other, layer), "{e}", 0));
    });
  };
  for (const bool bare : {true, false}) {
    style.bare = bare && known.prefix.empty();
    if (held(style, tensors.front())) break;
  }
  for (const ModelTensor& tensor : tensors)
    if (tensor.experts)
      for (const Storage storage : {Storage::mxfp4, Storage::fused, Storage::single}) {
        NameStyle as = style;
        as.storage = storage;
        if (held(as, tensor)) return as;
      }
  if (std::ranges::any_of(tensors, &ModelTensor::experts)) style.storage = default_storage(architecture);
  return style;
}

ExpertStorage default_storage(const Architecture& architecture) {
  return has_storage(architecture, Storage::single) ? Storage::single : Storage::fused;
}

bool has_mxfp4(const Architecture& architecture) {
  return has_storage(architecture, Storage::mxfp4);
}

bool has_fused_in_out(const Architecture& architecture) {
  return has_storage(architecture, Storage::fused_in_out);
}

bool has_transposed(const Architecture& architecture) {
  return any_rule(architecture, [](const TensorRule& rule) { return rule.transposed; });
}

bool has_mtp(const Architecture& architecture) {
  return any_rule(architecture, [](const TensorRule& rule) { return rule.witan == "eh_proj.weight"; });
}

bool is_computed(const Architecture& architecture, std::string_view name) {
  return is_of_rotary_positions(name) || std::ranges::any_of(architecture.computed, [&](std::string_view pattern) {
           const size_t mark = pattern.find("{l}");
           const std::string_view after = pattern.substr(mark + 3);
           for (const bool bare : {false, true}) {
             const std::string before = cat(bare ? "" : architecture.prefix, pattern.substr(0, mark));
             if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
               continue;
             const std::string_view number = name.substr(before.size(), name.size() - before.size() - after.size());
             if (number.find_first_not_of("0123456789") == std::string_view::npos) return true;
           }
           return false;
         });
}

std::vector<std::pair<std::string, std::string>> mtp_copies(const Architecture& architecture, NameStyle style,
                                                            const ModelConfig& model) {
  std::vector<std::pair<std::string, std::string>> copies;
  const std::string embedding = embedding_name(architecture, style);
  const std::string head = model.untie_embeddings_and_output_weights ? head_name(style) : embedding;
  for (int64_t module = 0; module < model.mtp_num_layers; ++module) {
    const int64_t layer = model.num_layers + module;
    copies.emplace_back(other_name(architecture, style, kMtpEmbedding, layer), embedding);
    copies.emplace_back(other_name(architecture, style, kMtpHead, layer), head);
  }
  return copies;
}

std::string embedding_name(const Architecture& architecture, NameStyle style) {
  return other_name(architecture, style, rules_of(architecture, "embedding.weight", Storage::any).front()->other, -1);
}

}  // namespace witan
