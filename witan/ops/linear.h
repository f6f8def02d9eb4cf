// Affine maps of the last dim. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y = x w^T + bias;  x [.., K], w [N, K], bias [N] or undefined -> [.., N]
Var linear(Tape& tape, const Var& x, const Var& w, const Var& bias);

}  // namespace witan::ops
