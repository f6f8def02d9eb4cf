// Every head of queries and keys normalised, then rotated. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/attention/rope.h"

namespace witan::ops {

struct NormedHeads {
  Var q, k;
};

// q [B, S, H, hd], k [B, S, G, hd], wq, wk [hd] -> the same shapes;  mathematics in kernels/attention/heads.h
// table: kernels::rotary_table of the B S positions, undefined where rope.dims is 0: nothing rotates.
NormedHeads rmsnorm_heads(Tape& tape, const Var& q, const Var& k, const Var& wq, const Var& wk, const Tensor& table,
                          const kernels::RopeArgs& rope, double eps);

}  // namespace witan::ops
