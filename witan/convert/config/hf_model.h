// The parts of config.json that several architectures share, read and written. A family (convert/models) composes its
// own reading and writing of them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "witan/convert/config/hf_keys.h"
#include "witan/model/config.h"
#include "witan/nn/attention/config.h"
#include "witan/nn/mlp.h"

namespace witan {

struct Architecture;

// The object of a vision-language model's config.json that describes its text decoder.
inline constexpr const char* kTextConfig = "text_config";

struct HfModel {
  const Architecture* architecture = nullptr;
  ModelConfig model;          // float32 whatever the file says; the weights decide the dtype
  int64_t positions = 0;      // the length of context that it is meant for
  bool text_decoder = false;  // of a vision-language model, whose config.json describes it under kTextConfig
  int64_t mtp_layers = 0;     // layers of multi-token prediction, whose weights may be missing
  int64_t fp8_block = 0;      // rows and columns of a float8 block with one scale; 0: no float8 weights
  int packed_bits = 0;        // 4 or 8 bits of an element packed by compressed-tensors; 0: none
};

enum class HfHeads : bool { grouped, latent };

// How an architecture's rotary positions differ from those of Llama.
enum class HfRope : uint8_t {
  plain,
  partial,   // the share of a head's channels given by partial_rotary_factor rotates
  sections,  // keys of a vision-language model's sections, which say nothing about text
  partial_sections,
  ntk_alpha,  // "dynamic" with a factor alpha, which raises the base for all lengths
};

// One config.json as Witan's keys. The functions read some keys each; a key that none of them read is refused at the
// end. All throw ConfigError naming the key, its value and the reason. Keeps references to its arguments.
struct HfReader {
  HfReader(const Json& json, const std::string& where, const Json& defaults, HfModel& model);

  // Layers, widths, heads, norm, tied embeddings and positions. An architecture whose layers all have experts may lack
  // intermediate_size.
  void sizes(HfHeads heads = HfHeads::grouped);
  void activation();  // hidden_act
  void rope(HfRope kind = HfRope::plain);
  void llama_like();  // these three
  void dense() { to.set("num_experts", int64_t{0}); }

  // Architectures whose projections have biases if the file says so, and those that never have any, for this reason.
  void attention_bias();
  void no_attention_bias(
      const char* why = "transformers' models of this type have no such biases, whatever this key says");
  void no_mlp_bias();
  // initializer_range, and dropout under the name that the architecture has for it.
  void training_keys(const char* attention_dropout);

  // Refuses layer_types that say something, for architectures in which transformers ignores them.
  void full_attention();
  // A window of W tokens, the querying one included, in these layers; none of them: no window.
  void window(int64_t tokens, const std::vector<bool>& windowed);
  // sliding_window in every layer; null is none.
  void window_everywhere();
  // The layers without rotary positions.
  void no_rope_layers(const std::vector<bool>& still);
  // The layers of sliding_attention by layer_types, or by `otherwise` if there is no such key.
  std::vector<bool> windowed_layers(const std::function<bool(int64_t)>& otherwise);

  void experts(int64_t count, int64_t chosen);
  void experts();         // their number is num_local_experts or num_experts
  void softmax_router();  // norm_topk_prob: the softmax is taken over the chosen experts, not over all
  // The layers with experts by decoder_sparse_step and mlp_only_layers.
  std::vector<bool> layers_by_sparse_step();
  // DeepSeek's keys of routed and shared experts in the layers `moe`, which follow from `key`. False if no layer has
  // experts; these keys say nothing then.
  bool routed_experts(const std::vector<bool>& moe, const char* key, const char* count = "n_routed_experts",
                      const char* shared = "n_shared_experts");
  // The layers with experts by first_k_dense_replace and moe_layer_freq, and by mlp_layer_types, which overrides
  // `otherwise`.
  std::vector<bool> layers_after_dense();
  std::vector<bool> sparse_layers(std::vector<bool> otherwise);
  // n_group and topk_group. A group's score is the sum of so many of its best experts' scores.
  void expert_groups(int64_t scores);
  void sigmoid_router();  // DeepSeek-V3's
  // The layers that have experts. Refuses, naming the key, that none has.
  void moe_layers(const std::vector<bool>& moe, const char* key);

  // The bound of a clamp: 0 turns it off in Witan, and makes all values 0 in transformers.
  double bound(const char* key);

  HfKeys keys;
  HfSettings to;
  HfModel& model;
  int64_t layers = 0, hidden = 0;
};

// Writes the same keys, in the order of the calls. Settings that an architecture cannot express are found by reading
// the result back.
struct HfWriter {
  using Out = nlohmann::ordered_json;

  HfWriter(const ModelConfig& model, int64_t positions);

  void sizes(HfHeads heads = HfHeads::grouped);
  void rope();
  // The largest window of a layer, in tokens; null if there is none.
  void sliding_window();
  void layer_types();
  // Their number under this key, how many a token has, and their width under `size`.
  void experts(const char* count, const char* size);
  void dense_layers_first();  // first_k_dense_replace
  void mlp_only_layers();
  void norm_topk_prob();
  void mlp_layer_types();
  // DeepSeek's keys of routed and shared experts; false if no layer has experts.
  int64_t width_of_expert() const;  // moe_ffn_hidden_size, or else that of dense MLPs
  bool routed_experts(const char* count = "n_routed_experts", const char* shared = "n_shared_experts");
  void sigmoid_router();  // DeepSeek-V3's
  bool has_attention_biases() const { return model.add_bias_linear || model.attention.add_attention_bias; }

  const ModelConfig& model;
  const std::vector<LayerSpec> layers;
  const int64_t positions;
  Out out = Out::object();
};

// Activations have their names in transformers (ACT2FN in activations.py): hidden_act of layers with a gate,
// activation_function of GPT-2's, which have none.

// Sets Witan's keys for the function that `key` names, or for `otherwise` if the key is absent. Throws ConfigError for
// a function that Witan lacks.
void read_hf_activation(HfKeys& keys, const HfSettings& to, const char* key, const char* otherwise, bool gated);
// The name that read_hf_activation() reads as these keys, or another function's if there is none.
std::string hf_activation(const MlpConfig& mlp);

// Rotary positions are rope_parameters, as transformers writes them since v5, or rope_theta and rope_scaling before.
// Source: transformers' modeling_rope_utils.py.

// The rotation of an architecture whose layers all rotate alike. `positions` is max_position_embeddings. Keys of other
// kinds are refused. Throws ConfigError.
void read_hf_rope(HfKeys& keys, const HfSettings& to, int64_t positions, HfRope kind = HfRope::plain);
nlohmann::ordered_json hf_rope(const AttentionConfig& attention);

// The rotations of an architecture such as OLMo 3, whose windowed layers (layer_types = sliding_attention) have their
// own: rope_parameters holds an object for each of the two types. A rope_scaling applies to full_attention only, as in
// transformers before v5, which wrote such files. Throws ConfigError, also if the two types stretch positions
// differently, and for a rope_theta beside these objects, since versions of transformers disagree about its layers.
// With a `windowed_theta`, rope_theta is that of full_attention, and this is that of sliding_attention without an own
// one.
void read_hf_rope_of_layer_types(HfKeys& keys, const HfSettings& to, int64_t positions,
                                 const std::vector<bool>& windowed, std::optional<double> windowed_theta = {});
nlohmann::ordered_json hf_rope_of_layer_types(const AttentionConfig& attention);

}  // namespace witan
