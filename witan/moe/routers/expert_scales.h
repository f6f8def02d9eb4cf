// The learned factor of each expert, by which a router multiplies the weights of the experts that it chose (Gemma 4).
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y[t,k] = weights[t,k] scale[ids[t,k]];  weights [T, K] and scale [E] of one floating dtype, ids [T, K] int32 -> [T,
// K]. An id of -1 names no expert: its weight becomes 0. Throws ShapeError.
Var scale_by_expert(Tape& tape, const Var& weights, const Tensor& ids, const Var& scale);

}  // namespace witan::ops
