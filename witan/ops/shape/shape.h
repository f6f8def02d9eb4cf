// Ops that view the same elements with another shape.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// The same elements under another shape of equal size; no copy. Throws ShapeError.
Var reshape(Tape& tape, const Var& x, const Shape& shape);

}  // namespace witan::ops
