// Normalisation over the last dim. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// x [.., D], w [D] -> [.., D];  mathematics in kernels/norm.h
Var rmsnorm(Tape& tape, const Var& x, const Var& w, double eps);
// The residual stream and its norm:  sum = a + b, normed = rmsnorm(sum).  a, b [.., D], w [D]
struct SumAndNorm {
  Var sum, normed;
};
SumAndNorm add_rmsnorm(Tape& tape, const Var& a, const Var& b, const Var& w, double eps);
// b may be undefined: no bias
Var layernorm(Tape& tape, const Var& x, const Var& w, const Var& b, double eps);

}  // namespace witan::ops
