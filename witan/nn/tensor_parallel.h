// Layers divided among the ranks of an axis: tensor parallelism (Shoeybi et al., 2019), with the residual stream whole
// on every rank or divided by tokens (sequence parallelism: Korthikanti et al., 2022).
//
// A layer's first maps give each of n ranks columns of its own (heads, inner features), for which it needs all tokens;
// the last one takes the columns back to the width of the model, where each rank has a summand:
//
//   x [B, S/n or S, D] -> to_sharded_layer -> [B, S, D] -> w [F/n, D] -> heads or features [B, S, F/n]
//     -> w [D, F/n] -> summands [B, S, D] -> from_sharded_layer -> [B, S/n or S, D]
//
// Gradients. A cut weight's is the rank's own. That of a weight which every rank holds whole and applies to the
// residual stream (norms, the bias behind a sum) is placed as the stream is used: Replicate where the stream is,
// Partial where it is divided by tokens. That of a whole weight applied to a divided layer's input (a router, shared
// keys and values) is Partial.
//
// Collectives, forward and backward, as ops/shape/redistribute.h says; with a group of one rank there are none, and the
// results are those of the undivided layer, bit for bit.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/comm/placement.h"

namespace witan {

struct TensorAxis {
  // What backward keeps of the tokens gathered from all ranks: all of them, so that nothing waits for another gather,
  // or the rank's own, to gather them again.
  enum class Keeps : uint8_t { all, own };

  Group& group;
  Placement residual = Placement::replicate();  // of the residual stream [B, S, D]: Replicate, or Shard(1)
  Keeps keeps = Keeps::own;                     // where the stream is divided
};

// x of the residual stream, whole, for the rank's own part of a layer. Layers that use it more than once call this
// once.
Var to_sharded_layer(Tape& tape, const Var& x, const TensorAxis& axis);
// The sum of the ranks' y [B, S, D], + bias [D] (whole) unless that is undefined, in the residual stream; move y in.
Var from_sharded_layer(Tape& tape, Var y, const TensorAxis& axis, const Var& bias = {});

}  // namespace witan
