// Compressed attention as a kind of token mixer (nn/compressed_attention/compressed_attention.h): its sizes, and how
// ranks divide it.
#pragma once

#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

struct CompressedSpec : public MixerKind {
  int64_t num_attention_heads = 0;   // N
  int64_t head_dim = 0;              // d, channels of a query head and of the key that all heads share
  int64_t q_rank = 0;                // Q, of the latent of queries
  int64_t o_groups = 0, o_rank = 0;  // groups of heads whose outputs are projected together, each to o_rank channels
  int64_t window = 0;                // tokens that a token sees, itself included
  int64_t ratio = 0;                 // m, tokens of an entry; 0: there are no entries
  // Entries overlap, and an indexer chooses those that a token attends to (CSA); else it attends to all (HCA).
  bool sparse = false;
  int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
  kernels::RopeArgs rope = {};  // of the last channels of queries, keys and entries

  std::string describe() const override;
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  double kept_channels() const override;
  // Keys of all positions, entries, and what the next ones are made of.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;

  // All heads share a key, whose projections are whole.
  std::string tensor_refusal(int64_t ranks) const override;
  std::string_view key_against_lanes() const override { return "experimental_attention_variant"; }
  ContextUse context_use(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t /*context*/) const override {
    return {};
  }
  std::string context_refusal(ContextExchange exchange, int64_t tensor, int64_t context) const override;

  int64_t entry_values() const { return (sparse ? 2 : 1) * head_dim; }  // w d, channels of values and of gates
  int64_t index_values() const { return 2 * index_head_dim; }

 private:
  double attended(double position) const;  // keys and entries of the token at a position
};

}  // namespace witan
