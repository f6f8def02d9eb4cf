// Normalisation over the last dim, with a weight w or, undefined, without; a weight that is centred at zero multiplies
// as w + 1 (kernels/norm/norm.h). Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan::ops {

// x [.., D], w [D] -> [.., D];  mathematics in kernels/norm/norm.h
Var rmsnorm(Tape& tape, const Var& x, const Var& w, double eps, bool zero_centered = false);
// The residual stream and its norm:  sum = a + b, normed = rmsnorm(sum).  a, b [.., D], w [D]
struct SumAndNorm {
  Var sum, normed;
};
SumAndNorm add_rmsnorm(Tape& tape, const Var& a, const Var& b, const Var& w, double eps, bool zero_centered = false);
// RMSNorm of rows that the group's n ranks hold in equal parts, Shard(last dim) of x and w: x [.., D / n], w [D / n] ->
// the rank's part of the norm over all D channels. A collective: the ranks add up a number per row, forward and again
// backward, in float32 or wider; the gradient of w is the rank's own. The group must outlive the tape. With one rank
// rmsnorm().
Var sharded_rmsnorm(Tape& tape, const Var& x, const Var& w, double eps, Group& group, bool zero_centered = false);
// b may be undefined: no bias
Var layernorm(Tape& tape, const Var& x, const Var& w, const Var& b, double eps, bool zero_centered = false);
// The residual stream and its LayerNorm, as in add_rmsnorm().
SumAndNorm add_layernorm(Tape& tape, const Var& a, const Var& b, const Var& w, const Var& bias, double eps,
                         bool zero_centered = false);

}  // namespace witan::ops
