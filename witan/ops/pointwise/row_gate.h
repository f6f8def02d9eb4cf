// A gate per row. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y = sigmoid(gate) x;  x [.., D], gate [.., 1] of x's dtype -> [.., D]
Var row_gate(Tape& tape, const Var& x, const Var& gate);

}  // namespace witan::ops
