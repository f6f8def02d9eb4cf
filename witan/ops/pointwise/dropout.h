// Dropout of elements. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::ops {

// x [..] floating, contiguous -> [..];  mathematics in kernels/pointwise/dropout.h. Nothing is saved: backward draws
// the mask again, and must find the same iteration in how.step. Where how.p is 0, x itself.
Var dropout(Tape& tape, const Var& x, const kernels::Dropout& how);

// Throws ShapeError unless p is in [0, 1) and, where something is dropped, the step is there.
void check_dropout(const char* op, const kernels::Dropout& how);

// Noise on what a router reads. Throws ShapeError.

// y = x times noise of 1 - eps to 1 + eps, as in kernels/pointwise/dropout.h; x [..] floating and contiguous. eps in
// [0, 1); 0: x itself.
Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, double eps);

}  // namespace witan::ops
