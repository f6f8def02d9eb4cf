// Attention as a kind of token mixer: its sizes, and how ranks divide it.
#pragma once

#include <optional>

#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

// The kinds of attention share this: query heads attend to key heads, at all positions up to their own or within a
// window, and both may have rotary positions.
struct AttentionSpec : public MixerKind {
  int64_t num_attention_heads = 0;  // H, of queries
  int64_t num_query_groups = 0;     // G, heads of keys and values; divides H
  int64_t qk_head_dim = 0;          // hd, channels of a query or key head
  int64_t v_head_dim = 0;           // hd_v, channels of a value head
  int64_t window = 0;               // positions that a token sees, its own included; 0: all up to its own
  kernels::RopeArgs rope = {};      // dims 0: no rotary positions
  double dropout = 0;               // of attention probabilities
  double scale = 0;                 // of logits; 0: 1 / sqrt(qk_head_dim)

  std::string describe() const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  bool attends() const override { return true; }
  double kept_channels() const override;
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;
  bool caches_keys() const override { return true; }

  DividedSizes tensor_sizes() const override { return {{"num_attention_heads", num_attention_heads}}; }
  ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const override;
  bool context_ranks_divide(int64_t tensor, int64_t context) const override;
  int64_t most_context_ranks(int64_t tensor) const override;
  std::string context_parts(int64_t tensor) const override;

  const kernels::RopeArgs* shared_rotation(bool generation) const override;
  int64_t logit_heads() const override { return num_attention_heads; }

 protected:
  // A token's channels in queries and the attention output, and in keys and values.
  int64_t query_channels() const { return num_attention_heads * (qk_head_dim + v_head_dim); }
  int64_t key_channels() const { return num_query_groups * (qk_head_dim + v_head_dim); }
  virtual std::string full_text() const = 0;  // "full attention"
  // The bytes of a position in a KvCache with so many groups, and channels of all groups.
  static int64_t cached_bytes(int64_t groups, int64_t channels, const CacheFormat& format, DType dtype);
};

// Whether `context` ranks can divide the heads that `tensor` ranks leave them: their number divides the query heads,
// and divides the groups or is a multiple of them.
bool ranks_divide_heads(const AttentionSpec& spec, int64_t tensor, int64_t context);
// Whether context-parallel ranks exchange heads in this layer. False for one rank.
bool exchanges_heads(ContextExchange exchange, const AttentionSpec& spec, int64_t tensor, int64_t context);

// The norm of queries and keys: before they rotate, or per_head_rotated after it (HunYuan).
enum class QkNorm : uint8_t { none, per_head, per_head_rotated, full_width, l2 };

// Keys and values to which several layers attend (Gemma 3n and 4's num_kv_shared_layers).
struct KeySharing {
  int64_t of = 0;        // the layer that makes them: this one, or an earlier one
  bool borrows = false;  // an earlier one: this layer has queries only
};

// Multi-head, grouped-query and multi-query attention (nn/attention/grouped_query.h).
struct MultiHeadSpec : public AttentionSpec {
  QkNorm qk_norm = QkNorm::none;
  double clip_qkv = 0;                         // clamps queries, keys and values to [-clip_qkv, clip_qkv]; 0: off
  bool sinks = false;                          // a learned logit of each head that takes probability and adds nothing
  bool qkv_bias = false, output_bias = false;  // biases of projections, also if other linear layers have none
  int64_t value_table = 0;        // number of the value embedding, from 1 on, that is added to values; 0: none
  bool output_gate = false;       // sigmoid(g_proj x) multiplies what o_proj reads (Qiu et al., 2025, arXiv:2505.06708)
  bool value_scale = false;       // values and the value embedding have a learned factor each
  bool v_norm = false;            // heads of values are divided by their root mean squares
  bool values_from_keys = false;  // values are the projection of keys (Gemma 4's attention_k_eq_v)

  std::optional<KeySharing> sharing = {};  // none: the keys and values are for this layer alone

  bool lends() const { return sharing && !sharing->borrows; }
  bool borrows() const { return sharing && sharing->borrows; }
  // Whether queries and keys are normalised or clamped before they rotate.
  bool prepares_heads() const { return qk_norm != QkNorm::none || clip_qkv > 0; }

  std::string describe() const override;
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double megatron_weights(const MixerModel& model, int64_t seq_length) const override;
  double kept_channels() const override;
  // A layer that borrows keys and values has no state. One that lends them keeps all positions even with a window: a
  // layer that borrows them attends after a step's tokens are in the state, which would have pushed the first out.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;
  // Ranks shard the query groups, or several ranks share a group and shard its channels.
  std::string tensor_refusal(int64_t ranks) const override;
  bool sums_over_tensor_ranks() const override { return qk_norm == QkNorm::full_width; }
  std::string_view key_against_lanes() const override { return sharing ? "num_kv_shared_layers" : ""; }
  std::string context_parts(int64_t tensor) const override;
  // Prepared heads make their own angles in training, and read shared ones in generation.
  const kernels::RopeArgs* shared_rotation(bool generation) const override;
  int64_t value_embedding() const override { return value_table; }

 protected:
  std::string full_text() const override { return "full attention"; }
};

// The lightning indexer of DeepSeek Sparse Attention (nn/attention/indexer.h), which chooses the keys that a token
// attends to.
struct IndexerSpec {
  int64_t heads = 0;            // 0: no layer has one, and tokens attend to all keys that they see
  int64_t head_dim = 0;         // channels of its queries, and of its key, which its heads share
  int64_t topk = 0;             // keys that a token attends to
  kernels::RopeArgs rope = {};  // of the first channels of queries and keys
  double loss_coefficient = 0;  // of its divergence from attention; 0: it is not trained
  bool sparse_loss = false;     // the divergence is over the chosen keys, not over all that a token sees
  bool warm_up = false;         // the indexer learns, and tokens attend to all keys that they see
  int64_t layer = 0;            // the number of this layer
  int64_t from = 0;             // of the layer whose choice this layer uses: this one, or an earlier one
  bool lends = false;           // a later layer uses this one's choice

  bool any() const { return heads > 0; }
  bool chooses() const { return any() && !warm_up; }  // tokens attend to chosen keys
  bool own() const { return any() && from == layer; }
  bool learns() const { return own() && loss_coefficient > 0; }
};

// Multi-head latent attention (nn/attention/latent.h). Each head has its own keys: num_query_groups is
// num_attention_heads.
struct LatentSpec : public AttentionSpec {
  int64_t q_rank = 0;  // 0: queries have no latent
  int64_t kv_rank = 0;
  int64_t nope_head_dim = 0,
          rope_head_dim = 0;  // channels without and with rotary positions; they add up to qk_head_dim
  IndexerSpec indexer = {};

  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  // With an indexer, its scores of all keys that a token sees, and attention to those that it chooses.
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  double kept_channels() const override;
  double megatron_weights(const MixerModel& model, int64_t seq_length) const override;
  // The indexer's keys are kept beside those of attention.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;
  std::string cache_refusal(const CacheFormat& format, const MixerModel& model) const override;
  // Channels of a position that a tensor-parallel rank caches: of its latent, or of the rank's share of the heads.
  int64_t latent_channels() const { return kv_rank + rope_head_dim; }
  int64_t head_channels(int64_t tensor) const { return key_channels() / tensor; }
  std::string_view key_against_lanes() const override { return "multi_latent_attention"; }
  // An indexer needs whole sequences.
  std::string context_refusal(ContextExchange exchange, int64_t tensor, int64_t context) const override;

 protected:
  std::string full_text() const override;
};

}  // namespace witan
