// Dropout and input jitter; mathematics in kernels/pointwise/dropout.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::ops {

// x [..] floating, contiguous -> [..]. Nothing is saved: backward draws the mask again, and must find the same
// iteration in how.step. Returns x itself if how.p is 0.
Var dropout(Tape& tape, const Var& x, const kernels::Dropout& how);

// Throws ShapeError unless p is in [0, 1) and, where something is dropped, the step is there.
void check_dropout(const char* op, const kernels::Dropout& how);

// Multiplies a router's input x [..] floating, contiguous by noise in [1 - eps, 1 + eps);  eps in [0, 1). Returns x
// itself if eps is 0.
Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, double eps);

}  // namespace witan::ops
