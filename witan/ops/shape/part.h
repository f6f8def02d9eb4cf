// One of several equal parts of a tensor.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y[a,:] = x[a,part,:];  x [A, N, I] -> [A, I]. The other parts' gradient is zero. Throws ShapeError.
Var take_part(Tape& tape, const Var& x, int64_t part);

}  // namespace witan::ops
