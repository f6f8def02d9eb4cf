#include <algorithm>
#include <cmath>
#include <numbers>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/gguf_model.h"

namespace witan {
namespace {

// Keys of an architecture that do not change what the model computes.
constexpr std::string_view kSilentKeys[] = {"vocab_size",
                                            "rope.scaling.finetuned",
                                            "tensor_data_layout",
                                            "attention.key_length_swa",
                                            "attention.value_length_swa",
                                            "rope.dimension_count_swa",
                                            "nextn_predict_layers_trained"};

std::string architecture_in(const GgufMetadata& metadata) {
  const auto name = metadata.text(kGgufArchitecture);
  require<ConfigError>(name.has_value(), metadata.source(), ": ", kGgufArchitecture,
                       " is missing: the file holds no model");
  return *name;
}

}  // namespace

double gguf_real(double value) {
  GgufMetadata one;
  one.put_f32("value", static_cast<double>(static_cast<float>(value)));
  return *one.number("value");
}

std::vector<float> Llama3Factors::values() const {
  std::vector<float> factors;
  for (int64_t i = 0; i < dims; i += 2) {
    const double turns = original * std::pow(base, -static_cast<double>(i) / static_cast<double>(dims)) /
                         (2 * std::numbers::pi);  // over the original context
    const double smooth = (turns - low) / (high - low);
    const double divided = turns > high ? 1 : turns < low ? factor : 1 / ((1 - smooth) / factor + smooth);
    factors.push_back(static_cast<float>(divided));
  }
  return factors;
}

GgufReader::GgufReader(const GgufMetadata& metadata, const GgufFacts& facts)
    : metadata_(metadata), facts_(facts), name_(architecture_in(metadata)) {}

int64_t GgufReader::integer(std::string_view name, std::optional<int64_t> otherwise) {
  const auto value = metadata_.integer(key(name));
  return value ? *value : given(name, otherwise);
}

double GgufReader::number(std::string_view name, std::optional<double> otherwise) {
  const auto value = metadata_.number(key(name));
  return value ? *value : given(name, otherwise);
}

template <class T>
T GgufReader::given(std::string_view name, std::optional<T> otherwise) {
  require<ConfigError>(otherwise.has_value(), source(), ": ", key(name), " is missing");
  return *otherwise;
}

void GgufReader::only(std::string_view name, double value, const char* why) {
  const double found = number(name, value);
  require<ConfigError>(found == value, source(), ": ", key(name), " = ", found, ": ", why);
}

std::vector<int64_t> GgufReader::of_layers(std::string_view name) {
  const auto layers = static_cast<size_t>(std::max<int64_t>(integer("block_count"), 0));
  const GgufValue* value = find(name);
  if (value == nullptr || !value->array) return std::vector<int64_t>(layers, integer(name));
  std::vector<int64_t> all = metadata_.integers(key(name));
  require<ConfigError>(all.size() == layers, source(), ": ", key(name), " has ", all.size(), " numbers for ", layers,
                       " layers");
  return all;
}

int64_t GgufReader::same_in_layers(std::string_view name) {
  int64_t same = 0;
  for (const int64_t one : of_layers(name)) {
    require<ConfigError>(one == 0 || same == 0 || one == same, source(), ": ", key(name), " has ", same, " and ", one,
                         ": Witan's layers are alike in this");
    if (one != 0) same = one;
  }
  return same;
}

void GgufReader::sizes(GgufWidths mlps) {
  out["num_hidden_layers"] = integer("block_count");
  out["hidden_size"] = integer("embedding_length");
  if (mlps == GgufWidths::one)
    out["intermediate_size"] = integer("feed_forward_length", integer("expert_feed_forward_length", 0));
  out["num_attention_heads"] = integer("attention.head_count");
  out["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon");
  out["max_position_embeddings"] = integer("context_length");
}

void GgufReader::grouped_heads(bool partial) {
  const int64_t heads = out["num_attention_heads"].get<int64_t>(), hidden = out["hidden_size"].get<int64_t>();
  out["num_key_value_heads"] = integer("attention.head_count_kv", heads);
  const int64_t channels = integer("attention.key_length", heads > 0 ? hidden / heads : 0);
  only("attention.value_length", static_cast<double>(channels), "Witan reads heads of keys and values of one size");
  out["head_dim"] = channels;
  if (!partial)
    return only("rope.dimension_count", static_cast<double>(channels), "models of this type rotate whole heads");
  const int64_t rotated = integer("rope.dimension_count", channels);
  out["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(std::max<int64_t>(channels, 1));
}

void GgufReader::heads_fill_stream() {
  const auto channels = out.at("head_dim").get<double>(), heads = out.at("num_attention_heads").get<double>(),
             hidden = out.at("hidden_size").get<double>();
  require<ConfigError>(channels * heads == hidden, source(), ": ", key("attention.key_length"), " = ", channels,
                       ": in llama.cpp's models of this type all heads together are as wide as the model, ", hidden);
}

void GgufReader::rope() {
  const double base = number("rope.freq_base", 10000.0);
  Json rope = {{"rope_theta", base}, {"rope_type", "default"}};
  const std::string type = metadata_.text(key("rope.scaling.type")).value_or("none");
  if (type != "none") rope["rope_type"] = type;
  only("rope.scaling.attn_factor", 1, "Witan computes this factor from the others");
  only("rope.scaling.yarn_attn_factor", 1, "Witan computes this factor from the others");
  const double factor = number("rope.scaling.factor", 1.0), fast = number("rope.scaling.yarn_beta_fast", 32.0),
               slow = number("rope.scaling.yarn_beta_slow", 1.0);
  const int64_t original =
      integer("rope.scaling.original_context_length", out["max_position_embeddings"].get<int64_t>());
  number("rope.scaling.yarn_log_multiplier", 0.0);  // has an effect in latent attention only
  if (type == "linear" || type == "yarn") rope["factor"] = factor;
  if (type == "yarn") {
    rope["original_max_position_embeddings"] = original;
    rope["beta_fast"] = fast;
    rope["beta_slow"] = slow;
  }
  if (!facts_.rope_factors.empty()) llama3(rope, base);
  out["rope_parameters"] = rope;
}

// Finds keys of Llama 3.1 that give these factors. The model computes with the factors alone, so that any such keys are
// equivalent.
void GgufReader::llama3(Json& rope, double base) {
  const auto& factors = facts_.rope_factors;
  Llama3Factors known{
      .base = base, .dims = out.value("head_dim", int64_t{0}), .factor = *std::ranges::max_element(factors)};
  const auto fits = [&](double original) {
    known.original = original;
    return std::ranges::equal(known.values(), factors, [](float a, float b) { return std::fabs(a - b) <= 1e-5F * b; });
  };
  double original = 8192;
  for (double candidate = 16; !fits(original) && candidate <= (1 << 20); candidate *= 2) original = candidate;
  require<ConfigError>(
      rope["rope_type"] == "default" && static_cast<int64_t>(factors.size()) * 2 == known.dims && fits(original),
      source(), ": rope_freqs.weight has ", factors.size(),
      " factors that are not those of Llama 3.1's positions, the only ones that Witan knows");
  rope["rope_type"] = "llama3";
  rope["factor"] = known.factor;
  rope["low_freq_factor"] = known.low;
  rope["high_freq_factor"] = known.high;
  rope["original_max_position_embeddings"] = static_cast<int64_t>(original);
}

void GgufReader::llama_like() {
  sizes();
  grouped_heads();
  rope();
}

void GgufReader::experts(const char* count) {
  out[count] = integer("expert_count");
  out["num_experts_per_tok"] = integer("expert_used_count");
  only("expert_shared_count", 0, "models of this architecture have no shared experts");
}

void GgufReader::routed_experts() {
  out["n_routed_experts"] = integer("expert_count");
  out["num_experts_per_tok"] = integer("expert_used_count");
  out["n_shared_experts"] = integer("expert_shared_count", 0);
  out["moe_intermediate_size"] = integer("expert_feed_forward_length");
  out["first_k_dense_replace"] = integer("leading_dense_block_count", 0);
  out["routed_scaling_factor"] = number("expert_weights_scale", 1.0);
  out["norm_topk_prob"] = flag("expert_weights_norm").value_or(false);
  out["n_group"] = std::max<int64_t>(integer("expert_group_count", 1), 1);
  out["topk_group"] = std::max<int64_t>(integer("expert_group_used_count", 1), 1);
  if (!asked_.contains("nextn_predict_layers"))
    only("nextn_predict_layers", 0,
         "Witan reads no layers that predict further tokens from files of this architecture");
  no_experts_chosen();
}

void GgufReader::mtp_layers() {
  const int64_t modules = integer("nextn_predict_layers", 0), all = out.at("num_hidden_layers").get<int64_t>();
  require<ConfigError>(modules >= 0 && modules < all, source(), ": ", key("nextn_predict_layers"), " = ", modules,
                       " of ", key("block_count"), " = ", all, ": the model needs layers of its own");
  out["num_hidden_layers"] = all - modules;
  out["num_nextn_predict_layers"] = modules;
}

void GgufReader::check_experts(bool weights_norm) {
  no_experts_chosen();
  if (find("expert_weights_norm") != nullptr)
    require<ConfigError>(flag("expert_weights_norm") == weights_norm, source(), ": ", key("expert_weights_norm"),
                         " says otherwise than llama.cpp computes for this architecture");
}

void GgufReader::no_experts_chosen() {
  if (integer("expert_count", 0) == 0) only("expert_used_count", 0, "a model without experts chooses none");
}

void GgufReader::finish() const {
  const std::string prefix = name_ + ".";
  for (const auto& [full, value] : metadata_.values()) {
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const auto is_zero = [](auto one) { return one == 0; };
    const bool empty = std::ranges::all_of(value.integers, is_zero) && std::ranges::all_of(value.numbers, is_zero) &&
                       std::ranges::all_of(value.texts, &std::string::empty);
    if (empty || asked_.contains(name) || std::ranges::find(kSilentKeys, name) != std::end(kSilentKeys)) continue;
    throw ConfigError(cat(source(), ": ", clipped(full),
                          ": Witan does not know what this key asks for in a model of this architecture, so it "
                          "cannot tell whether it computes the same"));
  }
}

}  // namespace witan
