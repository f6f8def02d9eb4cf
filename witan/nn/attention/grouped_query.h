// Attention with grouped queries (Ainslie et al., "GQA", 2023, arXiv:2305.13245) and rotary positions (Su et al., 2021,
// arXiv:2104.09864), full or in a sliding window. With as many groups as heads it is multi-head attention, with one
// group multi-query attention.
//
// After their projections queries and keys are normalised (Henry et al., "Query-Key Normalization", 2020,
// arXiv:2010.04245), each head by itself or all heads of a token together, then clamped, as values are, then rotated:
// the order of transformers' OlmoeAttention and Qwen3MoeAttention. Values may be mixed with rows of a value embedding
// (Zhou et al., 2024, arXiv:2410.17897; Jordan et al., modded-nanogpt, 2024): v = value_scale v_proj x + embedded_scale
// row. Values may also be the projection of keys, and their heads divided by their root mean squares (Gemma 4, 2026).
// Keys and values may be an earlier layer's (KeySharing; Brandon et al., "Cross-Layer Attention", 2024,
// arXiv:2405.12981). A gate may multiply what o_proj reads by sigmoid(g_proj x) (Qiu et al., "Gated Attention for Large
// Language Models", 2025, arXiv:2505.06708; Qwen3-Next).
#pragma once

#include <memory>
#include <optional>

#include "witan/nn/attention/attention.h"
#include "witan/nn/attention/attention_spec.h"

namespace witan {

class GroupedQueryAttention : public Attention, public LaneMixer {
 public:
  // The tensor axis shards the heads; the number of groups is a multiple of its ranks, or divides it. Parameters:
  // q_proj [H hd, D], o_proj [D, H hd_v]; unless they are another layer's k_proj [G hd, D] and, unless values come from
  // keys, v_proj [G hd_v, D]; if the spec asks for them g_proj [H hd_v, D], q_norm and k_norm, [hd] or of the full
  // width [H hd] and [G hd], sinks [H], value_scale and embedded_scale [1].
  GroupedQueryAttention(const Builder& builder, const MultiHeadSpec& spec, int64_t width, Bias bias = Bias::none,
                        const ContextAxis& context = {}, const NormConfig& norm = {});

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

  LaneMixer* lanes() override { return spec_.sharing ? nullptr : this; }
  Var summands(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
               const Randomness& randomness = {}, const Var& embedded = {}) override;
  Var total(Tape& tape, Var y) override { return o_proj_.total(tape, std::move(y)); }
  // Returns the weights of the projections to q, k and v or, if ranks share groups and gather them, one matrix for this
  // rank's heads and its group.
  std::vector<Var> projection_weights(Tape& tape) override;

  std::vector<Projection> clipped() override;
  int64_t logit_heads() const override { return spec_.num_attention_heads; }
  int64_t key_groups() const override { return spec_.num_query_groups; }

 private:
  struct Heads {
    Var q, k, v;  // [B, S, H, hd], [B, S, G, hd], [B, S, G, hd_v]
  };
  // The input of o_proj [B, S, H hd_v].
  Var attend(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
             const Randomness& randomness, const Var& embedded);
  Var mix(Tape& tape, const Heads& heads, const Positions& where, const Randomness& randomness);
  // The heads of x, for a forward and for decode(), by one of the two ways below.
  Heads heads_of(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                 const Randomness& randomness, const Var& embedded);
  // With the keys and values of another layer.
  Heads borrow(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness);
  Heads project(Tape& tape, const Var& x, const Positions& where, const Var& embedded, const Randomness& randomness);
  // Whether each projection is a separate product, since some have a bias, an adapter or 8-bit operands, or there are
  // only two.
  bool projects_separately() const;
  Var mix_values(Tape& tape, const Var& v, const Var& embedded);
  Heads project_together(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                         const Var& embedded);
  // Normalises q [B, S, H hd] and k [B, S, G hd], unless it is undefined, or their heads, over the full width, the
  // channels of all ranks.
  void normalise_width(Tape& tape, Var& q, Var& k);
  // Prepares the heads that are defined for the softmax: normalises each, clamps and rotates them.
  bool normalises_in_one_pass() const;  // whether one kernel normalises and rotates heads
  Heads prepare(Tape& tape, Heads heads, const Positions& where);
  // In generation one kernel may prepare heads and write them to the cache, if all runs have one token.
  bool fills_cache_at_once(const kernels::CacheTokens& tokens) const;
  Tensor heads_to_cache(Tape& tape, const Var& x, const Positions& where, const KvCache& cache);
  // If the tensor axis has more ranks than groups, several ranks attend to one group. They shard the channels of keys
  // and values of all groups, and gather either the weights of their group or, if channels are changed before
  // attention, the channels of all tokens. The gradients of a group are sums over its ranks.
  bool shares_groups() const { return axis_ && axis_->group.size() > spec_.num_query_groups; }
  bool gathers_channels() const {
    return shares_groups() && (projects_separately() || spec_.qk_norm == QkNorm::full_width || embedded_scale_);
  }
  Var own_group(Tape& tape, Var channels) const;
  // mixed [B, S, H hd_v] of attention times the gate of x, if there is one.
  Var gated(Tape& tape, Var mixed, const Var& x, const Randomness& randomness);
  double scale() const;

  MultiHeadSpec spec_;  // of all ranks together
  std::optional<TensorAxis> axis_;
  int64_t heads_, groups_;                 // H and G of this rank
  int64_t key_channels_, value_channels_;  // projected by this rank: G hd and G hd_v, or its share of all groups
  Dropout dropout_;
  ContextAttention context_;
  Tensor projections_;  // [H hd + G hd + G hd_v, D]: the weights of q, k and v
  Linear q_proj_;
  std::unique_ptr<Linear> k_proj_, v_proj_;  // null if keys and values are another layer's, or values come from keys
  Linear o_proj_;
  std::optional<Linear> g_proj_;
  std::optional<Norm> q_norm_, k_norm_, v_norm_;
  Parameter* sinks_ = nullptr;
  Parameter *value_scale_ = nullptr, *embedded_scale_ = nullptr;
};

}  // namespace witan
