// A short causal convolution between two gates, as in LFM2 (Liquid AI, 2025, arXiv:2511.23404). Mathematics in
// kernels/linear_attention/short_convolution.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// bcx [B, S, 3 C] contiguous: the channels of two gates b and c and of x, side by side -> c conv(b x), [B, S, C].
// w [C, W], W at least 2: the taps; bias [C], or undefined. sequence_ids [B, S] int32 keeps documents apart; undefined:
// each row is one document. The backward keeps bcx, and computes the rest again.
Var gated_convolution(Tape& tape, const Var& bcx, const Var& w, const Var& bias, const Tensor& sequence_ids);

}  // namespace witan::ops
