// Causal self-attention. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/attention/attention.h"

namespace witan::ops {

struct AttentionArgs {
  double scale = 1;               // usually 1 / sqrt(hd)
  kernels::Dropout dropout = {};  // of probabilities; backward draws the mask again
  kernels::AttentionHints hints = {};
  int64_t window = 0;  // sliding window: positions that a query sees, itself included; 0: all up to its own
  // Positions of a row that dropout counts by (nn/layers.h), where they are more than the sequence has.
  int64_t counted_positions = 0;
  Tensor max_logits =
      {};  // [H] accumulator dtype: the forward raises it to the largest logits (kernels/attention/qk_clip.h)
};

// q [B, S, H, hd], k [B, S, G, hd], v [B, S, G, hd_v] with H % G == 0 -> [B, S, H, hd_v];  mathematics in
// kernels/attention/attention.h
// sequence_ids [B, S] int32 keeps packed sequences apart; undefined: each row is one sequence.
// sinks [H]: a logit of each head that takes part in every query's softmax and adds nothing
// (kernels/attention/attention.h); undefined: there is none.
Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
              const AttentionArgs& args, const Var& sinks = {});

// Throws ShapeError, in the name of `op`, unless the arguments are as above.
void check_attention(const char* op, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
                     const AttentionArgs& args);

// Throws ShapeError, in the name of `op`, unless sinks are undefined or [H] of the queries q.
void check_sinks(const char* op, const Var& q, const Var& sinks);

// Backward of sinks, given y and lse of the forward with them. Nothing where sinks are not wanted.
void write_sinks_gradient(Backward& b, const Saved& sinks, const Tensor& dy, const Tensor& y, const Tensor& lse);

// attention()'s arguments for a kernel, of the whole sequence.
kernels::AttentionInputs attention_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sequence_ids,
                                          const AttentionArgs& args);

}  // namespace witan::ops
