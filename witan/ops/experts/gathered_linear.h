// Linear maps of experts whose rows are those of tokens, which are read, and summed, where they lie: what
// grouped_linear (ops/experts/grouped_linear.h) makes of a copy of every token for each of its experts, without that
// copy, to the bit. Nothing that has a row of the residual stream's width for each assignment is kept for the backward.
// Throws ShapeError.
#pragma once

#include <functional>

#include "witan/autograd/tape.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// Which rows are which tokens'. Assignment (t, k) is numbered t K + k.
struct TokenRows {
  Tensor source;     // [capacity] int64: the assignment of each row of the groups
  Tensor slot;       // [T K] int64: the row of each assignment; -1: it has none
  int64_t topk = 1;  // K
};

// y[i,:] = w[e] x[source[i] / K,:] for the rows i of group e;  x [T, D], w [E, N, D] -> [capacity, N].
// Rows outside the groups are undefined, as in grouped_linear.
Var gathered_linear(Tape& tape, const Var& x, const TokenRows& rows, const RowGroups& groups, const Var& w);

// The same, where forward(y) computes the output.
Var gathered_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& x,
                                const TokenRows& rows, const RowGroups& groups, const Var& w);

// y[t,:] = sum_k w[e] in[slot[t K + k],:] in the order of k, each product rounded before it is added;
// in [capacity, F], w [E, D, F] -> [T, D]
Var summed_linear(Tape& tape, const Var& in, const TokenRows& rows, const RowGroups& groups, const Var& w);

}  // namespace witan::ops
