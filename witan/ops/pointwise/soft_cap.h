// Logits kept within a bound; mathematics in kernels/pointwise/elementwise.h. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// x [..] -> cap tanh(scale x / cap). Written over x where nobody else holds it: move x in.
Var soft_cap(Tape& tape, Var x, double scale, double cap);

}  // namespace witan::ops
