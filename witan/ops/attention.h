// Causal self-attention. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/attention.h"

namespace witan::ops {

// q [B, S, H, hd], k, v [B, S, G, hd] with H % G == 0 -> [B, S, H, hd];  mathematics in kernels/attention.h
// sequence_ids [B, S] int32 keeps packed sequences apart; undefined: each row is one sequence.
// scale is usually 1 / sqrt(hd). `dropout` drops probabilities; backward draws the mask again.
Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids, double scale,
              const kernels::Dropout& dropout = {}, const kernels::AttentionHints& hints = {});

// Throws ShapeError, in the name of `op`, unless the arguments are as above.
void check_attention(const char* op, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
                     const kernels::Dropout& dropout);

}  // namespace witan::ops
