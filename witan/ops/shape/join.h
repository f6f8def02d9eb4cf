// Tensors side by side.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y[t,:] = a[t,:], then b[t,:];  a [.., I], b [.., J] -> [.., I + J]. Throws ShapeError.
Var join_columns(Tape& tape, const Var& a, const Var& b);

}  // namespace witan::ops
