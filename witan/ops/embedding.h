// Token embeddings.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// ids [..] int32 (at most 4 dims), w [V, D] -> [.., D] with y[t] = w[ids[t]]. Throws ShapeError; on the CPU, where
// looking is cheap, DataError naming the first id outside [0, V) and its index.
Var embedding(Tape& tape, const Tensor& ids, const Var& w);

}  // namespace witan::ops
