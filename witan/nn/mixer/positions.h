// The places that the tokens of a micro-batch, or of a step of generation, have in their sequences, with tensors that
// are computed from them once for all layers.
#pragma once

#include <vector>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/attention/rope.h"

namespace witan {

// The sines and cosines of a micro-batch's positions, for the layers that rotate by these arguments.
struct RotaryTable {
  kernels::RopeArgs rope;
  Tensor angles;  // kernels::rotary_table, [B S, rope.dims]
};

struct Positions {
  Tensor positions;                      // [B, S] int32
  Tensor sequence_ids;                   // [B, S] int32, or undefined: a token sees earlier tokens of equal id alone
  std::vector<RotaryTable> tables = {};  // made once for all layers; a layer makes its own where it is missing here
  kernels::AttentionHints hints = {};
  Tensor whole_ids = {};  // [B, n S]: sequence_ids of whole sequences, where n ranks divide them and exchange channels
  kernels::CacheTokens cached = {};  // in a step of generation: the rows of the states that the tokens belong to
};

// The angles of positions [B, S], as `where` has them or made anew; undefined where nothing rotates (rope.dims 0).
Tensor rotary_angles(Stream& stream, const Positions& where, const kernels::RopeArgs& rope, DType dtype);

}  // namespace witan
