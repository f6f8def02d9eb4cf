// Rotary position embeddings; mathematics in kernels/attention/rope.h.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/attention/rope.h"

namespace witan::ops {

// x [B, S, H, hd], positions [B, S] int32 -> [B, S, H, hd]. The first rope.dims channels of each head are rotated: an
// even number; rope.inverse is not asked. Throws ShapeError; DataError for a negative position (on the CPU).
Var rope(Tape& tape, const Var& x, const Tensor& positions, const kernels::RopeArgs& rope);

}  // namespace witan::ops
