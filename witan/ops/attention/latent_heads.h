// From the projections of multi-head latent attention to the heads of attention; mathematics in
// kernels/attention/heads.h.
#pragma once

#include <utility>

#include "witan/ops/attention/heads.h"

namespace witan::ops {

struct LatentHeadSizes {
  int64_t heads;           // H
  int64_t still, turning;  // n channels of a query or key without positions, R with
  int64_t value;           // hd_v
  kernels::RopeArgs rope;  // dims: R, or 0: nothing rotates
};

// q [B, S, H (n + R)], kv [B, S, H (n + hd_v)], rope_key [B, S, R]; table: kernels::rotary_table of the B S positions,
// undefined where nothing rotates. Keys and values are of H heads. Throws ShapeError.
ProjectedHeads latent_heads(Tape& tape, const Var& q, const Var& kv, const Var& rope_key, const Tensor& table,
                            const LatentHeadSizes& sizes);

// x [.., N] -> its first `first` columns, and the others. Throws ShapeError.
std::pair<Var, Var> split_columns(Tape& tape, const Var& x, int64_t first);

}  // namespace witan::ops
