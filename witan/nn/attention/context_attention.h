// Attention of heads over sequences that context-parallel ranks divide, in whichever way they do it.
#pragma once

#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/mixer/positions.h"
#include "witan/ops/attention/attention.h"

namespace witan {

// Of the ids [B, S / n] of this rank's positions those of whole sequences, [B, S]. A collective.
Tensor gather_sequence_ids(Stream& stream, const Tensor& sequence_ids, Group& context);

// A layer's attention as a rank of the axis calls it.
class ContextAttention {
 public:
  // `tensor`: the ranks that divide heads before.
  ContextAttention(const ContextAxis& context, const AttentionSpec& spec, int64_t tensor);

  // q [B, S / n, H, hd], k [B, S / n, G, hd], v [B, S / n, G, hd_v] of this rank's positions -> [B, S / n, H, hd_v].
  // args and sinks [H] are of all H heads: each rank takes the part that its heads need, so that its gradient of sinks
  // is a summand.
  Var forward(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
              const ops::AttentionArgs& args, const Var& sinks = {}) const;

 private:
  Var of_own_heads(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
                   ops::AttentionArgs args, Var sinks) const;

  Group* group_ = nullptr;  // null: sequences are whole
  bool by_heads_ = false;
};

}  // namespace witan
