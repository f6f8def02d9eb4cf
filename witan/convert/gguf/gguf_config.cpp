#include "witan/convert/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

constexpr std::string_view kGgufArchitecture = "general.architecture";
constexpr int64_t kSoftmaxGate = 1, kSigmoidGate = 2, kSoftmaxOfChosenGate = 3;  // of expert_gating_func
constexpr int64_t kOlmo3Period = 4;
constexpr double kMscaleUnit = 0.1;  // of yarn_log_multiplier

constexpr std::pair<std::string_view, std::string_view> kGgufNames[] = {
    {"llama", "llama"}, {"mistral", "llama"},      {"mixtral", "llama"},         {"qwen2", "qwen2"},
    {"qwen3", "qwen3"}, {"qwen3_moe", "qwen3moe"}, {"olmoe", "olmoe"},           {"olmo2", "olmo2"},
    {"olmo3", "olmo2"}, {"gpt_oss", "gpt-oss"},    {"deepseek_v2", "deepseek2"}, {"deepseek_v3", "deepseek2"},
    {"gpt2", "gpt2"},
};

// Keys of an architecture that say nothing of what the model computes.
constexpr std::string_view kSilentKeys[] = {"vocab_size",
                                            "rope.scaling.finetuned",
                                            "tensor_data_layout",
                                            "attention.key_length_swa",
                                            "attention.value_length_swa",
                                            "rope.dimension_count_swa",
                                            "nextn_predict_layers_trained"};

// 0.707, not 0.70700001.
double as_short_decimal(double value) {
  GgufMetadata one;
  one.put_f32("value", static_cast<double>(static_cast<float>(value)));
  return *one.number("value");
}

std::vector<float> factors_of(double base, int64_t dims, double factor, double low, double high, double original) {
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

// The metadata as a config.json.
class GgufConfigReader {
 public:
  GgufConfigReader(const GgufMetadata& metadata, const GgufFacts& facts) : metadata_(metadata), facts_(facts) {
    const auto name = metadata.text(kGgufArchitecture);
    require<ConfigError>(name.has_value(), metadata.source(), ": ", kGgufArchitecture,
                         " is missing: the file holds no model");
    name_ = *name;
  }

  Json read() {
    out_["model_type"] = model_type();
    const int64_t layers = integer("block_count");
    require<ConfigError>(layers <= facts_.tensors.value_or(layers), metadata_.source(), ": ", key("block_count"), " = ",
                         layers, ": the file has ", facts_.tensors.value_or(0),
                         " tensors, fewer than layers; it is cut, or its keys are another model's");
    out_["vocab_size"] = facts_.vocab_size;
    out_["tie_word_embeddings"] = facts_.tied;
    if (name_ == "gpt2")
      gpt2();
    else
      llama_like();
    finish();
    return std::move(out_);
  }

 private:
  std::string model_type() {
    if (name_ == "llama") return integer("expert_count", 0) > 0 ? "mixtral" : "llama";
    if (name_ == "deepseek2")
      return integer("expert_gating_func", kSoftmaxGate) == kSigmoidGate ? "deepseek_v3" : "deepseek_v2";
    if (name_ == "olmo2") return integer("attention.sliding_window", 0) > 0 ? "olmo3" : "olmo2";
    for (const auto& [type, name] : kGgufNames)
      if (name == name_) return std::string(type);
    std::set<std::string> known;
    for (const auto& [type, name] : kGgufNames) known.emplace(name);
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
    throw ConfigError(cat(metadata_.source(), ": ", kGgufArchitecture, " = ", clipped(name_),
                          ": Witan cannot represent models of this architecture; it knows ", list));
  }

  std::string key(std::string_view name) { return cat(name_, ".", *asked_.emplace(name).first); }
  bool has(std::string_view name) { return metadata_.find(key(name)) != nullptr; }
  int64_t integer(std::string_view name, std::optional<int64_t> otherwise = {}) {
    const auto value = metadata_.integer(key(name));
    return value ? *value : given(name, otherwise);
  }
  double number(std::string_view name, std::optional<double> otherwise = {}) {
    const auto value = metadata_.number(key(name));
    return value ? *value : given(name, otherwise);
  }
  template <class T>
  T given(std::string_view name, std::optional<T> otherwise) {
    require<ConfigError>(otherwise.has_value(), metadata_.source(), ": ", key(name), " is missing");
    return *otherwise;
  }
  void only(std::string_view name, double value, const char* why) {
    const double found = number(name, value);
    require<ConfigError>(found == value, metadata_.source(), ": ", key(name), " = ", found, ": ", why);
  }

  void llama_like() {
    out_["num_hidden_layers"] = integer("block_count");
    out_["hidden_size"] = integer("embedding_length");
    out_["intermediate_size"] = integer("feed_forward_length", integer("expert_feed_forward_length", 0));
    const int64_t heads = integer("attention.head_count");
    out_["num_attention_heads"] = heads;
    out_["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon");
    out_["max_position_embeddings"] = integer("context_length");
    if (name_ == "deepseek2") {
      integer("attention.head_count_kv", heads);
      out_["num_key_value_heads"] = heads;
    } else {
      out_["num_key_value_heads"] = integer("attention.head_count_kv", heads);
      heads_of(heads);
    }
    rope();
    if (name_ == "llama" && out_["model_type"] == "mixtral") experts("num_local_experts");
    if (name_ == "qwen3moe") {
      experts("num_experts");
      out_["moe_intermediate_size"] = integer("expert_feed_forward_length");
      out_["norm_topk_prob"] = true;
      only("expert_gating_func", static_cast<double>(kSoftmaxGate), "Qwen3's scores are a softmax");
    }
    if (name_ == "olmoe") {
      experts("num_experts");
      out_["norm_topk_prob"] = false;
      only("attention.head_count_kv", static_cast<double>(heads), "OLMoE has keys and values for every head");
    }
    if (out_["model_type"] == "olmo3") olmo3();
    if (name_ == "gpt-oss") gpt_oss();
    if (name_ == "deepseek2") deepseek();
    if (integer("expert_count", 0) == 0) only("expert_used_count", 0, "a model without experts chooses none");
    if (name_ != "deepseek2" && metadata_.find(key("expert_weights_norm")) != nullptr)
      require<ConfigError>(metadata_.flag(key("expert_weights_norm")) == (name_ != "olmoe"), metadata_.source(), ": ",
                           key("expert_weights_norm"), " says otherwise than llama.cpp computes for this architecture");
  }

  void heads_of(int64_t heads) {
    const int64_t hidden = out_["hidden_size"].get<int64_t>();
    const int64_t channels = integer("attention.key_length", heads > 0 ? hidden / heads : 0);
    only("attention.value_length", static_cast<double>(channels), "Witan reads heads of keys and values of one size");
    only("rope.dimension_count", static_cast<double>(channels), "Witan rotates all channels of a head here");
    out_["head_dim"] = channels;
  }

  void experts(const char* name) {
    out_[name] = integer("expert_count");
    out_["num_experts_per_tok"] = integer("expert_used_count");
    only("expert_shared_count", 0, "models of this architecture have no shared experts");
  }

  void rope() {
    const double base = number("rope.freq_base", 10000.0);
    Json rope = {{"rope_theta", base}, {"rope_type", "default"}};
    const std::string type = metadata_.text(key("rope.scaling.type")).value_or("none");
    if (type != "none") rope["rope_type"] = type;
    only("rope.scaling.attn_factor", 1, "Witan computes this factor from the others");
    only("rope.scaling.yarn_attn_factor", 1, "Witan computes this factor from the others");
    const double factor = number("rope.scaling.factor", 1.0), fast = number("rope.scaling.yarn_beta_fast", 32.0),
                 slow = number("rope.scaling.yarn_beta_slow", 1.0);
    const int64_t original =
        integer("rope.scaling.original_context_length", out_["max_position_embeddings"].get<int64_t>());
    const double log_multiplier = number("rope.scaling.yarn_log_multiplier", 0.0);
    if (type == "linear" || type == "yarn") rope["factor"] = factor;
    if (type == "yarn") {
      rope["original_max_position_embeddings"] = original;
      rope["beta_fast"] = fast;
      rope["beta_slow"] = slow;
      if (name_ == "gpt-oss") rope["truncate"] = false;
      if (name_ == "deepseek2") {
        require<ConfigError>(log_multiplier > 0, metadata_.source(), ": ", key("rope.scaling.yarn_log_multiplier"),
                             " is missing, by which llama.cpp scales the attention of this architecture");
        rope["mscale"] = rope["mscale_all_dim"] = as_short_decimal(log_multiplier / kMscaleUnit);
      }
    }
    if (!facts_.rope_factors.empty()) llama3(rope, base);
    out_["rope_parameters"] = rope;
  }

  // Which of Llama 3.1's keys give these factors. Their product is all that the model computes with, so that any keys
  // with the same factors are as good.
  void llama3(Json& rope, double base) {
    const auto& factors = facts_.rope_factors;
    const int64_t dims = out_["head_dim"].get<int64_t>();
    const double factor = static_cast<double>(*std::ranges::max_element(factors));
    const auto fits = [&](double original) {
      const auto made = factors_of(base, dims, factor, 1, 4, original);
      return std::ranges::equal(made, factors, [](float a, float b) { return std::fabs(a - b) <= 1e-5F * b; });
    };
    double original = 8192;
    for (double candidate = 16; !fits(original) && candidate <= (1 << 20); candidate *= 2) original = candidate;
    require<ConfigError>(
        rope["rope_type"] == "default" && static_cast<int64_t>(factors.size()) * 2 == dims && fits(original),
        metadata_.source(), ": rope_freqs.weight has ", factors.size(),
        " factors that are not those of Llama 3.1's positions, the only ones that Witan knows");
    rope["rope_type"] = "llama3";
    rope["factor"] = factor;
    rope["low_freq_factor"] = 1.0;
    rope["high_freq_factor"] = 4.0;
    rope["original_max_position_embeddings"] = static_cast<int64_t>(original);
  }

  // llama.cpp stretches positions of the layers with full attention alone, which are every fourth, or every N-th if the
  // pattern is a number: it passes over a list.
  void olmo3() {
    out_["sliding_window"] = integer("attention.sliding_window");
    const int64_t layers = out_["num_hidden_layers"].get<int64_t>();
    const std::string pattern = key("attention.sliding_window_pattern");
    const GgufValue* given = metadata_.find(pattern);
    const int64_t period = given && !given->array ? integer("attention.sliding_window_pattern") : kOlmo3Period;
    Json types = Json::array();
    std::vector<int64_t> windowed;
    for (int64_t layer = 0; layer < layers; ++layer) {
      windowed.push_back(period == 0 || layer % period < period - 1 ? 1 : 0);
      types.push_back(windowed.back() ? "sliding_attention" : "full_attention");
    }
    require<ConfigError>(!given || !given->array || given->integers == windowed, metadata_.source(), ": ", pattern,
                         " must give full attention to every fourth layer, as llama.cpp does whatever this list says");
    out_["layer_types"] = types;
    const Json plain = {{"rope_theta", out_["rope_parameters"]["rope_theta"]}, {"rope_type", "default"}};
    only("rope.freq_base_swa", plain["rope_theta"].get<double>(), "llama.cpp takes rope.freq_base in these layers");
    out_["rope_parameters"] = {{"full_attention", out_["rope_parameters"]}, {"sliding_attention", plain}};
  }

  void gpt_oss() {
    experts("num_local_experts");
    out_["intermediate_size"] = integer("expert_feed_forward_length");
    out_["sliding_window"] = integer("attention.sliding_window");
    only("expert_gating_func", static_cast<double>(kSoftmaxOfChosenGate),
         "gpt-oss's scores are a softmax of the chosen");
  }

  void deepseek() {
    out_["q_lora_rank"] = has("attention.q_lora_rank") ? Json(integer("attention.q_lora_rank")) : Json();
    out_["kv_lora_rank"] = integer("attention.kv_lora_rank");
    const int64_t rotary = integer("rope.dimension_count"), joined = integer("attention.key_length", 0),
                  values = integer("attention.value_length", 0);
    out_["qk_rope_head_dim"] = rotary;
    out_["qk_nope_head_dim"] = integer("attention.key_length_mla", joined) - rotary;
    out_["v_head_dim"] = integer("attention.value_length_mla", values);
    out_["n_routed_experts"] = integer("expert_count");
    out_["num_experts_per_tok"] = integer("expert_used_count");
    out_["n_shared_experts"] = integer("expert_shared_count", 0);
    out_["moe_intermediate_size"] = integer("expert_feed_forward_length");
    out_["first_k_dense_replace"] = integer("leading_dense_block_count", 0);
    out_["routed_scaling_factor"] = number("expert_weights_scale", 1.0);
    out_["norm_topk_prob"] = metadata_.flag(key("expert_weights_norm")).value_or(false);
    const int64_t groups = integer("expert_group_count", 1), chosen = integer("expert_group_used_count", 1);
    require<ConfigError>(groups <= 1 || out_["model_type"] == "deepseek_v3", metadata_.source(), ": ",
                         key("expert_group_count"), " = ", groups,
                         ": llama.cpp scores groups of experts as DeepSeek-V3 does, not as V2");
    out_["n_group"] = std::max<int64_t>(groups, 1);
    out_["topk_group"] = std::max<int64_t>(chosen, 1);
    only("nextn_predict_layers", 0, "Witan reads no layers that predict further tokens from GGUF files");
  }

  void gpt2() {
    out_["n_layer"] = integer("block_count");
    out_["n_embd"] = integer("embedding_length");
    out_["n_head"] = integer("attention.head_count");
    only("attention.head_count_kv", out_["n_head"].get<double>(), "GPT-2 has keys and values for every head");
    out_["n_inner"] = integer("feed_forward_length");
    out_["n_positions"] = integer("context_length");
    out_["layer_norm_epsilon"] = number("attention.layer_norm_epsilon");
    for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out_[dropout] = 0.0;
  }

  // Refuses keys of the architecture that nobody has asked for, unless they say nothing.
  void finish() const {
    const std::string prefix = name_ + ".";
    for (const auto& [full, value] : metadata_.values()) {
      if (!full.starts_with(prefix)) continue;
      const std::string name = full.substr(prefix.size());
      const auto is_zero = [](auto one) { return one == 0; };
      const bool empty = std::ranges::all_of(value.integers, is_zero) && std::ranges::all_of(value.numbers, is_zero) &&
                         std::ranges::all_of(value.texts, &std::string::empty);
      if (empty || asked_.contains(name) || std::ranges::find(kSilentKeys, name) != std::end(kSilentKeys)) continue;
      throw ConfigError(cat(metadata_.source(), ": ", clipped(full),
                            ": Witan does not know what this key asks for in a model of this architecture, so it "
                            "cannot tell whether it computes the same"));
    }
  }

  const GgufMetadata& metadata_;
  const GgufFacts& facts_;
  std::string name_;
  std::set<std::string, std::less<>> asked_;
  Json out_ = Json::object();
};

// A config.json as metadata.
class GgufConfigWriter {
 public:
  GgufConfigWriter(const Architecture& architecture, const ModelConfig& model, const Json& hf)
      : name_(gguf_architecture(architecture)), model_(model), hf_(hf), out_("a GGUF file") {}

  GgufMetadata write() && {
    out_.put_text(std::string(kGgufArchitecture), name_);
    out_.put_text("general.type", "model");
    out_.put_u32("general.quantization_version", 2);
    put("vocab_size", "vocab_size");
    if (name_ == "gpt2")
      gpt2();
    else
      llama_like();
    return std::move(out_);
  }

 private:
  std::string key(std::string_view name) const { return cat(name_, ".", name); }
  void put(std::string_view name, int64_t value) { out_.put_u32(key(name), value); }
  void put(std::string_view name, const char* from) { put(name, hf_.at(from).get<int64_t>()); }
  void put_real(std::string_view name, double value) { out_.put_f32(key(name), value); }

  void llama_like() {
    put("block_count", "num_hidden_layers");
    put("embedding_length", "hidden_size");
    put("feed_forward_length", "intermediate_size");
    put("attention.head_count", "num_attention_heads");
    put("context_length", "max_position_embeddings");
    put_real("attention.layer_norm_rms_epsilon", hf_.at("rms_norm_eps").get<double>());
    rope();
    if (name_ == "deepseek2") {
      deepseek();
    } else {
      put("attention.head_count_kv", "num_key_value_heads");
      for (const char* each : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
        put(each, "head_dim");
    }
    if (hf_.at("model_type") == "olmo3") olmo3();
    if (model_.moe.num_experts == 0) return;
    put("expert_count", model_.moe.num_experts);
    put("expert_used_count", model_.moe.moe_router_topk);
    if (name_ == "qwen3moe") put("expert_feed_forward_length", "moe_intermediate_size");
    if (name_ != "gpt-oss") return;
    put("expert_feed_forward_length", "intermediate_size");
    put("expert_gating_func", kSoftmaxOfChosenGate);
    if (hf_.at("sliding_window").is_number()) put("attention.sliding_window", "sliding_window");
  }

  void olmo3() {
    if (!hf_.at("sliding_window").is_number()) return;
    put("attention.sliding_window", "sliding_window");
    GgufValue pattern{.type = GgufType::flag, .array = true};
    for (const Json& type : hf_.at("layer_types")) pattern.integers.push_back(type == "sliding_attention" ? 1 : 0);
    out_.put(key("attention.sliding_window_pattern"), std::move(pattern));
  }

  void rope() {
    const Json& of_all = hf_.at("rope_parameters");
    const Json& rope = of_all.contains("full_attention") ? of_all.at("full_attention") : of_all;
    const auto& type = rope.at("rope_type").get_ref<const std::string&>();
    put_real("rope.freq_base", rope.at("rope_theta").get<double>());
    if (type != "linear" && type != "yarn") return;
    out_.put_text(key("rope.scaling.type"), type);
    put_real("rope.scaling.factor", rope.at("factor").get<double>());
    if (type == "linear") return;
    put("rope.scaling.original_context_length", rope.at("original_max_position_embeddings").get<int64_t>());
    put_real("rope.scaling.yarn_beta_fast", rope.at("beta_fast").get<double>());
    put_real("rope.scaling.yarn_beta_slow", rope.at("beta_slow").get<double>());
    if (rope.contains("mscale_all_dim"))
      put_real("rope.scaling.yarn_log_multiplier", kMscaleUnit * rope.at("mscale_all_dim").get<double>());
  }

  // Attention is that of one head of keys and values, wide as their latents.
  void deepseek() {
    const int64_t rank = hf_.at("kv_lora_rank").get<int64_t>(), rotary = hf_.at("qk_rope_head_dim").get<int64_t>();
    put("attention.head_count_kv", 1);
    require<ConfigError>(model_.moe.num_experts > 0,
                         "num_experts = 0: llama.cpp's model of type deepseek2 has experts: export --format hf");
    require<ConfigError>(hf_.at("q_lora_rank").is_number() || model_.num_layers == 26 || model_.num_layers == 27,
                         "q_lora_rank = 0: llama.cpp's model of type deepseek2 has queries that are projected at once "
                         "only where it has 26 or 27 layers (DeepSeek-V2-Lite): export --format hf");
    if (hf_.at("q_lora_rank").is_number()) put("attention.q_lora_rank", "q_lora_rank");
    put("attention.kv_lora_rank", rank);
    put("attention.key_length", rank + rotary);
    put("attention.value_length", rank);
    put("attention.key_length_mla", hf_.at("qk_nope_head_dim").get<int64_t>() + rotary);
    put("attention.value_length_mla", "v_head_dim");
    put("rope.dimension_count", rotary);
    put("leading_dense_block_count", "first_k_dense_replace");
    put("expert_feed_forward_length", "moe_intermediate_size");
    put("expert_shared_count", "n_shared_experts");
    put_real("expert_weights_scale", hf_.at("routed_scaling_factor").get<double>());
    out_.put_flag(key("expert_weights_norm"), hf_.value("norm_topk_prob", false));
    put("expert_gating_func", hf_.at("model_type") == "deepseek_v3" ? kSigmoidGate : kSoftmaxGate);
    if (hf_.at("model_type") != "deepseek_v3" || hf_.at("n_group").get<int64_t>() <= 1) return;
    put("expert_group_count", "n_group");
    put("expert_group_used_count", "topk_group");
  }

  void gpt2() {
    put("block_count", "n_layer");
    put("embedding_length", "n_embd");
    put("feed_forward_length", "n_inner");
    put("attention.head_count", "n_head");
    put("context_length", "n_positions");
    put_real("attention.layer_norm_epsilon", hf_.at("layer_norm_epsilon").get<double>());
  }

  const std::string name_;
  const ModelConfig& model_;
  const Json& hf_;
  GgufMetadata out_;
};

}  // namespace

HfModel read_gguf_config(const GgufMetadata& metadata, const GgufFacts& facts) {
  const Json config = GgufConfigReader(metadata, facts).read();
  return read_hf_config(config.dump(), metadata.source());
}

bool gguf_copies_head(const Architecture& architecture, const ModelConfig& model) {
  const std::string_view name = gguf_architecture(architecture);
  return !model.untie_embeddings_and_output_weights &&
         (name == "olmoe" || name == "olmo2" || name == "gpt-oss" || name == "deepseek2");
}

GgufMetadata write_gguf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions) {
  ModelConfig written = model;
  if (gguf_copies_head(architecture, model)) written.untie_embeddings_and_output_weights = true;
  const Json hf = parse_json(write_hf_config(architecture, written, positions, "float32"), "config.json");
  GgufMetadata out = GgufConfigWriter(architecture, written, hf).write();
  const bool tied = !written.untie_embeddings_and_output_weights;
  const HfModel again = read_gguf_config(out, {model.vocab_size, tied, llama3_factors(model)});
  const auto different = differences(again.model, written);
  require<ConfigError>(different.empty(), "llama.cpp's model of type ", gguf_architecture(architecture),
                       " cannot be what this one is: ", different.empty() ? "" : different[0]);
  return out;
}

std::string_view gguf_architecture(const Architecture& architecture) {
  const auto* found =
      std::ranges::find(kGgufNames, architecture.model_type, &std::pair<std::string_view, std::string_view>::first);
  require<ConfigError>(found != std::end(kGgufNames), "Witan writes no GGUF file of a model of type ",
                       architecture.model_type, ": export --format hf");
  return found->second;
}

std::vector<float> llama3_factors(const ModelConfig& model) {
  const AttentionConfig& attention = model.attention;
  if (attention.rope_scaling_type != "llama3") return {};
  return factors_of(attention.rotary_base, attention.qk_head_dim(model.hidden_size), attention.rotary_scaling_factor,
                    attention.rope_low_freq_factor, attention.rope_high_freq_factor,
                    static_cast<double>(attention.original_max_position_embeddings));
}

}  // namespace witan
