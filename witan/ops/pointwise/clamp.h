// Values held between two bounds. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// x [..] -> [..], each at least -bound and at most bound, which is above 0. The gradient is 0 where x is beyond a
// bound.
Var clamp(Tape& tape, const Var& x, double bound);

}  // namespace witan::ops
