// Rotary position embeddings; mathematics in kernels/rope.h.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// x [B, S, H, hd], positions [B, S] int32 -> [B, S, H, hd]. The first hd * fraction dims of each head are rotated: an
// even number (rotary_percent in Megatron-LM). Throws ShapeError; DataError for a negative position (on the CPU).
Var rope(Tape& tape, const Var& x, const Tensor& positions, double base, bool interleaved, double fraction = 1);

}  // namespace witan::ops
