// Gated DeltaNet (Yang, Kautz & Hatamizadeh, 2024, arXiv:2412.06464): a short convolution, gates, the gated delta rule,
// and a norm with a gate. Mathematics in kernels/linear_attention. Throws ShapeError.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/kernels/linear_attention/gated_delta.h"

namespace witan::ops {

// x [B, S, C] contiguous -> silu of each channel's causal convolution, [B, S, C]. ws [C1, W], [C2, W] …, W at least 2:
// the taps of the first C1 channels, of the next C2, and so on up to C. biases [C1], [C2] …: of the same channels;
// empty: none. sequence_ids [B, S] int32 keeps documents apart; undefined: each row is one document. The backward keeps
// x.
Var short_convolution(Tape& tape, const Var& x, const std::vector<Var>& ws, const std::vector<Var>& biases,
                      const Tensor& sequence_ids);

// The decay (its logarithm) and the writing strength of each head, in the accumulator dtype.
struct DeltaGates {
  Var g, beta;
};
// a [.., C], b [.., H], A_log [H] and dt_bias [C] in the accumulator dtype -> g [.., C], beta [.., H].  C = H or, for
// decays of each of dk channels of a head, H dk.
DeltaGates delta_gates(Tape& tape, const Var& a, const Var& b, const Var& A_log, const Var& dt_bias);

// qkv [B, S, 2 G dk + H dv], gates beta [B, S, H], g [B, S, H] or [B, S, H dk] -> [B, S, H dv]. The backward keeps qkv
// and the gates.
Var gated_delta_rule(Tape& tape, const Var& qkv, const DeltaGates& gates, const Tensor& sequence_ids,
                     const kernels::DeltaHeads& heads);

// x, z [.., D], w [D] in the accumulator dtype -> rmsnorm(x) w silu(z), [.., D]
Var gated_rmsnorm(Tape& tape, const Var& x, const Var& z, const Var& w, double eps);

}  // namespace witan::ops
