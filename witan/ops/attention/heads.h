// From the residual stream to the heads of attention: three products of one input, and rotary positions.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/kernels/attention/heads.h"

namespace witan::ops {

struct HeadSizes {
  int64_t queries, groups;
  int64_t head_dim, value_dim;  // hd of queries and keys, hd_v of values
  kernels::RopeArgs rope;       // dims 0: nothing rotates
};

struct ProjectedHeads {
  Var q, k, v;  // [B, S, H, hd], [B, S, G, hd], [B, S, G, hd_v]
};

// x [B, S, D], weights [H hd, D], [G hd, D], [G hd_v, D] of q, k and v, or one that has the rows of all three; table:
// kernels::rotary_table of the B S positions. Weights that lie side by side, and gradients that do, are used as one
// matrix. Throws ShapeError.
ProjectedHeads project_heads(Tape& tape, const Var& x, const std::vector<Var>& weights, const Tensor& table,
                             const HeadSizes& sizes);

}  // namespace witan::ops
