// Linear maps of experts over rows grouped by expert, their biases, and whole SwiGLU experts. Throws ShapeError.
#pragma once

#include <functional>

#include "witan/autograd/tape.h"
#include "witan/kernels/grouped/block_sparse.h"
#include "witan/ops/experts/expert_replicas.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// y[i,:] = w[e] rows[i,:] for the rows i of group e;  rows [capacity, K], w [E, N, K] -> [capacity, N].
// Rows outside the groups are undefined, in the output and in the gradient of `rows`. The groups must not change before
// the backward. With replicas there are groups of slots too, whose matrices are copied in forward and backward.
Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                   const ExpertReplicas& replicas = {});

// Records grouped_linear() with an output that forward(y) computes.
Var grouped_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& rows,
                               const RowGroups& groups, const Var& w, const ExpertReplicas& replicas);

// The next three ops gather tokens and sum results without a copy of every token for each of its experts. They have the
// bits of grouped_linear on such copies, and the backward keeps no row of the residual stream's width for each
// assignment.

// The tokens of rows. Assignment (t, k) is numbered t K + k.
struct TokenRows {
  Tensor source;     // [capacity] int64: the assignment of each row of the groups
  Tensor slot;       // [T K] int64: the row of each assignment; -1: it has none
  int64_t topk = 1;  // K
};

// y[i,:] = w[e] x[source[i] / K,:] for the rows i of group e;  x [T, D], w [E, N, D] -> [capacity, N].
// Rows outside the groups are undefined, as in grouped_linear.
Var gathered_linear(Tape& tape, const Var& x, const TokenRows& rows, const RowGroups& groups, const Var& w);

// Records gathered_linear() with an output that forward(y) computes.
Var gathered_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& x,
                                const TokenRows& rows, const RowGroups& groups, const Var& w);

// y[t,:] = sum_k w[e] in[slot[t K + k],:] in the order of k, each product rounded before it is added;
// in [capacity, F], w [E, D, F] -> [T, D]
Var summed_linear(Tape& tape, const Var& in, const TokenRows& rows, const RowGroups& groups, const Var& w);

// A bias of each expert:  y[i, first + j] + row_weight[i] bias[e,j] for the rows i of group e;  y [capacity, N], bias
// [E, M] of y's dtype with first + M <= N, row_weight [capacity] accumulator dtype, or undefined: 1. The result is
// written over y, which must have no other reference: move y in. Rows outside the groups are undefined. With replicas
// there are groups of slots too.
Var grouped_bias(Tape& tape, Var y, const RowGroups& groups, const Var& bias, const Var& row_weight, int64_t first = 0,
                 const ExpertReplicas& replicas = {});

// The topology of these groups in a pool of `capacity` rows, for all block_sparse_linear() with them.
kernels::BlockTopology block_topology(Stream& stream, const RowGroups& groups, int64_t capacity);

// grouped_linear() as a product with a block-sparse matrix (kernels/grouped/block_sparse.h): y[i,:] = w[e] rows[i,:]
// for the rows i of group e;  rows [capacity, K], w [E, N, K] -> [capacity, N].
Var block_sparse_linear(Tape& tape, const Var& rows, const kernels::BlockTopology& topology, const Var& w);

// Whole SwiGLU experts: two linear maps per expert with the activation between them.
struct SwigluExperts {
  Var first, second;           // [E, 2F, D], [E, D, F]
  bool rematerialise = false;  // the backward recomputes the activations
};

// grouped_linear(swiglu(grouped_linear(rows, groups, first), row_weight, &groups), groups, second), with the same bits
// except for the order in which a GPU sums the gradient of row_weight. Where there are such kernels, the first product
// also computes the activation, and the backward of the second its gradient; the gradient of the activations has no
// memory of its own.
// rows [capacity, D], row_weight [capacity] accumulator dtype, or undefined -> [capacity, D]
Var swiglu_experts(Tape& tape, const Var& rows, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts, const ExpertReplicas& replicas = {});

// Composes gathered_linear and summed_linear, whose rows are those of tokens.
// x [T, D] -> [T, D]
Var swiglu_experts(Tape& tape, const Var& x, const TokenRows& tokens, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts);

}  // namespace witan::ops
