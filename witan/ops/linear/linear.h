// Affine maps of the last dim. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y = x w^T + bias;  x [.., K], w [N, K], bias [N] or undefined -> [.., N]
Var linear(Tape& tape, const Var& x, const Var& w, const Var& bias);

// y = x + bias;  x [.., N] contiguous, bias [N] -> [.., N]. For a bias that cannot come with its product.
Var add_bias(Tape& tape, const Var& x, const Var& bias);

// y = x w^T in the accumulator dtype of x, which w has;  x [.., K], w [N, K] -> [.., N]. Backward keeps x as it is.
Var wide_linear(Tape& tape, const Var& x, const Var& w);

}  // namespace witan::ops
