// The two halves of a batch, for what works on one while the other is on its way between ranks.
#pragma once

#include <array>

#include "witan/autograd/tape.h"

namespace witan::ops {

// x [B, ..], contiguous, of an even B -> its first and its last B / 2 rows, which are views of it. Throws ShapeError.
std::array<Var, 2> split_batch(Tape& tape, const Var& x);
// Its inverse: [B / 2, ..] each, contiguous -> [B, ..]. Throws ShapeError.
Var join_batch(Tape& tape, const std::array<Var, 2>& halves);

}  // namespace witan::ops
