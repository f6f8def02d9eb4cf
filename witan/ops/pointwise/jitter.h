// Noise on what a router reads. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::ops {

// y = x times noise of 1 - eps to 1 + eps, as in kernels/pointwise/dropout.h; x [..] floating and contiguous. eps in
// [0, 1); 0: x itself.
Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, double eps);

}  // namespace witan::ops
