// Causal self-attention with grouped queries (Ainslie et al., "GQA", 2023) and rotary positions (Su et al., 2021).
#pragma once

#include "witan/base/fields.h"
#include "witan/comm/group.h"
#include "witan/kernels/attention.h"
#include "witan/kernels/rope.h"
#include "witan/nn/dropout.h"
#include "witan/nn/kv_cache.h"
#include "witan/nn/linear.h"

namespace witan {

struct AttentionConfig {
  int64_t num_attention_heads = 4;
  int64_t num_query_groups = 2;  // key/value heads
  int64_t kv_channels = 0;       // head dim; 0: hidden_size / num_attention_heads
  std::string position_embedding_type = "rope";
  int64_t max_position_embeddings = 0;  // rows of learned positions; 0: the run's seq_length
  double attention_dropout = 0;         // of probabilities
  double rotary_base = 10000;
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;

  Fields fields();
  void validate(int64_t hidden_size) const;  // throws ConfigError
  bool rotates() const { return position_embedding_type == "rope"; }
  kernels::RopeArgs rope(int64_t hidden_size) const;  // dims 0 where positions do not rotate
  bool learned_positions() const { return position_embedding_type == "learned_absolute"; }
  int64_t head_dim(int64_t hidden_size) const { return kv_channels ? kv_channels : hidden_size / num_attention_heads; }
};

// Where each token of a micro-batch stands.
struct Positions {
  Tensor positions;     // [B, S] int32
  Tensor sequence_ids;  // [B, S] int32, or undefined: a token attends to earlier tokens of equal id
  Tensor angles = {};   // kernels::rotary_table of the positions, where they rotate; undefined: every block makes them
  kernels::AttentionHints hints = {};
};

// The angles of positions [B, S]; undefined where they do not rotate (rope.dims 0).
Tensor rotary_angles(Stream& stream, const Tensor& positions, const kernels::RopeArgs& rope, DType dtype);

class Attention : public Module {
 public:
  // The tensor axis divides the heads, and num_query_groups, or is divided by it.
  // `context`: the ranks that divide sequences, or null. Must outlive it.
  Attention(const Builder& builder, const AttentionConfig& config, int64_t width, Bias bias = Bias::none,
            Group* context = nullptr);

  // x [B, S, D] of the residual stream -> the same; where sequences are divided, of the tokens at this rank's
  // context_positions()
  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {});
  // The next S positions of a sequence whose earlier ones are in the cache, which grows by S. Tape off.
  Var decode(Tape& tape, const Var& x, const Positions& where, KvCache& cache);
  KvCache make_cache(Stream& stream, int64_t batch, int64_t positions, DType dtype) const;

 private:
  struct Heads {
    Var q, k, v;  // [B, S, H, hd], [B, S, G, hd], [B, S, G, hd]
  };
  Var mix(Tape& tape, const Heads& heads, const Positions& where, const Randomness& randomness);
  Heads project(Tape& tape, const Var& x, const Positions& where);
  Heads project_together(Tape& tape, const Var& x, const Positions& where);
  // Where the tensor axis has more ranks than there are groups, several ask one group. Ranks divide the channels of
  // keys and values then, of all groups, and gather them: a rank's own is its group's, whose gradients are sums of
  // theirs.
  bool shares_groups() const { return axis_ && axis_->group.size() > config_.num_query_groups; }
  Var own_group(Tape& tape, Var channels) const;

  AttentionConfig config_;
  std::optional<TensorAxis> axis_;
  int64_t head_dim_;
  int64_t heads_, groups_;  // H and G of this rank
  int64_t group_channels_;  // of keys that this rank projects, and of values: G hd, or its share of all groups'
  kernels::RopeArgs rope_;
  Dropout dropout_;
  Group* context_;
  Tensor projections_;  // [(H + 2 G) hd, D]: the weights of q, k and v
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
};

}  // namespace witan
