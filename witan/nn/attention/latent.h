// Multi-head latent attention (DeepSeek-V2, 2024, arXiv:2405.04434, and V3): keys and values of all heads are projected
// from one latent of each token, and queries from another or directly. Each head has channels without positions, and
// channels with positions, whose keys all heads share. With an indexer (nn/attention/indexer.h) a token attends to the
// keys that it chooses.
#pragma once

#include <optional>

#include "witan/nn/attention/attention.h"
#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/attention/indexer.h"
#include "witan/nn/layers.h"
#include "witan/ops/attention/heads.h"

namespace witan {

// A KvCache with the keys of the layer's indexer.
class IndexedCache : public KvCache {
 public:
  // `index_channels`: of an indexer's key; 0: the layer has no indexer of its own.
  IndexedCache(Stream& stream, const StateSize& size, const CachedChannels& channels, int64_t index_channels,
               DType dtype);

  int64_t bytes() const override;
  void copy_row(Stream& stream, int64_t from, int64_t to) override;

  const Tensor index_keys;  // [R, C, 1, d], or undefined
};

// A cache of latents instead of the heads' keys and values: K + R elements a position instead of H (hd + hd_v), on
// every tensor-parallel rank, with K and R as below. All heads are one group, whose keys are the turned rotary key and
// whose values are the latent: [rows, C, 1, R] and [rows, C, 1, K].
class LatentCache : public KvCache {
 public:
  using KvCache::KvCache;
};

class LatentAttention : public Attention {
 public:
  // Parameters, by Hugging Face's names; n + R = hd, of LatentSpec, Q and K its ranks of queries, of keys and values:
  //   q_proj [H hd, D] if Q is 0; else q_a_proj [Q, D], q_a_layernorm [Q], q_b_proj [H hd, Q]
  //   kv_a_proj_with_mqa [K + R, D], kv_a_layernorm [K], kv_b_proj [H (n + hd_v), K], o_proj [D, H hd_v]
  //   and those of `indexer`, if the layer has its own
  // The tensor axis shards the heads. The projections to latents are whole on every rank and applied to its part of the
  // residual stream: if that is divided by tokens, the latents are gathered, since they are narrower.
  LatentAttention(const Builder& builder, const LatentSpec& spec, int64_t width, const ContextAxis& context = {});

  Var forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness = {},
              const Var& embedded = {}) override;
  Var decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state, const Var& embedded = {}) override;
  // Makes the backward recompute queries, keys and values from latents instead of keeping them. If ranks divide
  // sequences by heads (cp_comm_type = a2a), attention keeps the exchanged tensors, and no memory is saved.
  void recompute_up_projections() { recompute_up_ = true; }
  std::vector<Projection> clipped() override;
  int64_t logit_heads() const override { return spec_.num_attention_heads; }
  int64_t key_groups() const override { return spec_.num_attention_heads; }
  // The heads' keys and values or, with CacheFormat::latents, a LatentCache.
  std::unique_ptr<SequenceState> make_state(Stream& stream, const StateSize& size, DType dtype) const override;

 private:
  struct Heads {
    Var q, k, v;  // [B, S, H, hd], [B, S, H, hd], [B, S, H, hd_v]
  };
  Var sharded(Tape& tape, const Var& x) const;
  // The input of q_proj or q_b_proj, of the residual stream's tokens.
  Var query_input(Tape& tape, const Var& x, const Randomness& randomness);
  // The input of queries, latents and rotary keys, of all tokens that the tensor-parallel ranks share.
  std::vector<Var> narrow_inputs(Tape& tape, const Var& x, const Var& query_input, const Randomness& randomness);
  Heads project(Tape& tape, const Var& x, const Var& query_input, const Positions& where,
                const Randomness& randomness = {});
  // Attention to the keys that an indexer chooses, and its loss: x [B, S, D] and its latents of queries ->
  // [B, S, H, hd_v].
  Var attend_to_chosen(Tape& tape, const Var& x, const Var& latent, const Heads& heads, const Positions& where,
                       const Randomness& randomness);
  // Decoding with a cache of latents. Sequences that begin are computed as in the forward. For other tokens kv_b_proj
  // is absorbed (DeepSeek-V2, section 2.1.2): its rows for keys multiply queries, which then meet latents, and its rows
  // for values multiply what attention makes of latents. So the forward's results are met to rounding, not to the bit.
  Tensor decode_latents(Tape& tape, const Var& x, const Var& query_input, const Positions& where,
                        const LatentCache& cache);
  // The heads' output y [1, T, H, hd_v] of queries q [T, H, hd], whose rotary channels are in `heads`.
  void absorb(Tape& tape, const Tensor& y, const Tensor& q, CachedHeads heads, const kernels::CacheTokens& tokens,
              const kernels::AttentionHints& hints, const LatentCache& cache);
  // The heads' output [1, T, H, hd_v] of a step.
  Tensor decode_heads(Tape& tape, const Var& x, const Var& query_input, const Positions& where, SequenceState& state);
  Tensor decode_chosen(Tape& tape, const Var& x, const Var& latent, const Heads& heads, const Positions& where,
                       SequenceState& state);
  // The choice of this layer's indexer, which `choose` makes, or of the one that it shares.
  template <class Choose>
  Tensor chosen_keys(const Positions& where, const Choose& choose) const;

  ops::LatentHeadSizes head_sizes() const;

  LatentSpec spec_;  // of all ranks together
  bool recompute_up_ = false;
  std::optional<TensorAxis> axis_;
  int64_t heads_;  // H of this rank
  Dropout dropout_;
  ContextAttention context_;
  // Built in the order in which a PyTorch program draws them. Whether there is q_proj or q_b_proj depends on the rank
  // of queries.
  std::optional<Linear> q_proj_, q_a_proj_, q_b_proj_, kv_a_proj_, kv_b_proj_, o_proj_;
  std::optional<Norm> q_a_layernorm_, kv_a_layernorm_;
  std::optional<Indexer> indexer_;  // none: the layer attends to all keys, or uses another layer's choice
};

}  // namespace witan
