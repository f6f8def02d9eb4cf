// Layers divided among the ranks of an axis: tensor parallelism (Shoeybi et al., 2019), with the residual stream whole
// on every rank or divided by tokens (sequence parallelism: Korthikanti et al., 2022).
//
// The first matrices of a layer are divided by columns: each of n ranks computes its own heads or inner features, of
// all tokens. The last matrix is divided by rows, and gives each rank a summand of the output:
//
//   x [B, S/n or S, D] -> to_sharded_layer -> [B, S, D] -> w [F/n, D] -> heads or features [B, S, F/n]
//     -> w [D, F/n] -> summands [B, S, D] -> from_sharded_layer -> [B, S/n or S, D]
//
// Gradients: that of a divided weight is the rank's own. That of a weight which every rank holds whole and applies to
// the residual stream (norms, the bias after a sum) is Replicate if the stream is whole, and Partial if it is divided
// by tokens. That of a whole weight applied to a divided layer's input (a router, shared keys and values) is Partial.
//
// Collectives, forward and backward, are those of ops/shape/redistribute.h. With a group of one rank there are none,
// and results have the bits of the undivided layer.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/comm/placement.h"

namespace witan {

struct TensorAxis {
  // Whether the backward keeps the tokens gathered from all ranks, or the rank's own, which are gathered again.
  enum class Keeps : uint8_t { all, own };

  Group& group;
  Placement residual = Placement::replicate();  // of the residual stream [B, S, D]: Replicate, or Shard(1)
  Keeps keeps = Keeps::own;                     // if the stream is divided
};

// x of the residual stream -> x of all tokens, for the rank's own part of a layer. Layers that use it more than once
// call this once.
Var to_sharded_layer(Tape& tape, const Var& x, const TensorAxis& axis);
// The sum of the ranks' y [B, S, D], + bias [D] (whole) unless that is undefined, in the residual stream; move y in.
Var from_sharded_layer(Tape& tape, Var y, const TensorAxis& axis, const Var& bias = {});

}  // namespace witan
