// The parts of a GGUF file's keys that several architectures share, read as a config.json that says the same, and
// written from one. A family (convert/models) composes its own reading and writing of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/json.h"
#include "witan/formats/gguf.h"
#include "witan/model/config.h"

namespace witan {

inline constexpr const char* kGgufArchitecture = "general.architecture";
inline constexpr int64_t kSoftmaxGate = 1, kSigmoidGate = 2, kSoftmaxOfChosenGate = 3;  // expert_gating_func

// Facts about a model that only the file's tensors reveal.
struct GgufFacts {
  int64_t vocab_size = 0;                // rows of token_embd.weight
  bool tied = false;                     // there is no output.weight
  std::vector<float> rope_factors = {};  // rope_freqs.weight: divisors of the frequencies; empty if there is none
  std::optional<int64_t> tensors = {};   // how many there are
  bool qkv_biases = false;               // there is blk.0.attn_q.bias
  bool qk_norms = false;                 // there is blk.0.attn_q_norm.weight
  bool mlp_biases = false;               // some layer has ffn_up.bias
  bool values_from_keys = false;         // a block has attn_k.weight and no attn_v.weight
};

// The divisor of the frequency of a pair that does not turn.
inline constexpr float kStillPair = 1e30F;

// The factors by which Llama 3.1 divides each frequency of its positions, [dims / 2].
struct Llama3Factors {
  double base = 0;
  int64_t dims = 0;
  double factor = 1, low = 1, high = 4, original = 8192;

  std::vector<float> values() const;
};

// Whether all MLPs have one width, or the family reads those of layers.
enum class GgufWidths : bool { one, of_layers };

// Names of keys are those below "ARCHITECTURE.". All functions throw ConfigError naming a key that is missing or says
// what Witan cannot represent; CorruptionError for a value of another type.
class GgufReader {
 public:
  // Throws ConfigError if the file does not name its architecture.
  GgufReader(const GgufMetadata& metadata, const GgufFacts& facts);

  const std::string& architecture() const { return name_; }
  const std::string& source() const { return metadata_.source(); }
  const GgufFacts& facts() const { return facts_; }

  std::string key(std::string_view name) { return name_ + "." + *asked_.emplace(name).first; }
  const GgufValue* find(std::string_view name) { return metadata_.find(key(name)); }
  // Refused if it is absent and there is no `otherwise`.
  int64_t integer(std::string_view name, std::optional<int64_t> otherwise = {});
  double number(std::string_view name, std::optional<double> otherwise = {});
  std::optional<bool> flag(std::string_view name) { return metadata_.flag(key(name)); }
  // A number for each layer of block_count; one number is that of all layers.
  std::vector<int64_t> of_layers(std::string_view name);
  // The number of those layers that have one above 0, in which it must be the same; 0 if there is no such layer.
  int64_t same_in_layers(std::string_view name);
  // Refuses any other value; an absent key has this one.
  void only(std::string_view name, double value, const char* why);

  // Layers, widths, number of heads, norm and positions.
  void sizes(GgufWidths mlps = GgufWidths::one);
  // Heads of values have as many channels as those of keys, all of which rotate; with `partial` perhaps only some.
  void grouped_heads(bool partial = false);
  // After grouped_heads(): refuses heads that are not as wide together as the residual stream, which llama.cpp does not
  // load in models of some types.
  void heads_fill_stream();
  void rope();
  void llama_like();  // sizes(), grouped_heads() and rope()
  void experts(const char* count);
  // Routed and shared experts, as DeepSeek has them.
  void routed_experts();
  // nextn_predict_layers: how many of the layers are modules of multi-token prediction.
  void mtp_layers();
  // Keys of models without experts, and whether llama.cpp divides the weights of a token's experts by their sum.
  void check_experts(bool weights_norm = true);
  void no_experts_chosen();
  // Refuses keys of the architecture that were not read, unless they have no effect.
  void finish() const;

  Json out = Json::object();

 private:
  template <class T>
  T given(std::string_view name, std::optional<T> otherwise);
  void llama3(Json& rope, double base);

  const GgufMetadata& metadata_;
  const GgufFacts& facts_;
  std::string name_;
  std::set<std::string, std::less<>> asked_;
};

// Keys of the model whose config.json is `hf`.
class GgufWriter {
 public:
  GgufWriter(std::string_view architecture, const ModelConfig& model, const Json& hf);

  std::string key(std::string_view name) const { return name_ + "." + std::string(name); }
  void put(std::string_view name, int64_t value) { out.put_u32(key(name), value); }
  void put(std::string_view name, const char* from) { put(name, hf.at(from).get<int64_t>()); }
  void put_real(std::string_view name, double value) { out.put_f32(key(name), value); }
  void put_list(std::string_view name, std::vector<int64_t> values, GgufType type = GgufType::i32) {
    out.put(key(name), {.type = type, .array = true, .integers = std::move(values)});
  }

  void sizes();
  void grouped_heads();
  void rope();
  void rope(const Json& rotation);  // one of several
  void llama_like();                // sizes(), grouped_heads() and rope()
  void routed_experts();            // and shared ones, as DeepSeek has them
  void expert_groups();
  void mtp_layers();          // counts modules of multi-token prediction among the layers
  bool experts();             // how many there are, and how many a token has; false if there are none
  void need_experts() const;  // throws ConfigError if there are none, which llama.cpp's architecture must have

  const ModelConfig& model;
  const Json& hf;
  GgufMetadata out{"a GGUF file"};

 private:
  const std::string name_;
};

// The value as files give it back: the shortest decimal that rounds to the same float32, 0.707 and not 0.70700001.
double gguf_real(double value);

// llama.cpp's yarn_log_multiplier is this times mscale_all_dim.
inline constexpr double kMscaleUnit = 0.1;

}  // namespace witan
