// The product of two factors of low rank beside a matrix (Hu et al., "LoRA", 2021, arXiv:2106.09685). Throws
// ShapeError.
#pragma once

#include "witan/autograd/tape.h"

namespace witan::ops {

// y[.., first + n] += scale (x a^T) b^T [.., n], in place: nobody else may need y as it was.
// y [.., M] contiguous, x [.., K], a [r, K], b [N, r] of one dtype -> [.., M]. Backward keeps x and scale x a^T.
Var add_low_rank(Tape& tape, Var y, const Var& x, const Var& a, const Var& b, double scale, int64_t first = 0);

}  // namespace witan::ops
