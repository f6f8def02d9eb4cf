// A sum of two tensors, each times a learned factor. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

struct ScaledTerm {
  Var x;  // [..]
  Var w;  // [1] of x's dtype; undefined: 1
};

// a.w a.x + b.w b.x;  both x of one shape and dtype. b.x may be undefined: nothing.
Var scaled_sum(Tape& tape, const ScaledTerm& a, const ScaledTerm& b = {});

}  // namespace witan::ops
