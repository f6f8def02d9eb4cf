// From the residual stream to the heads of attention: projections, norms of heads and rotary positions.
#pragma once

#include <utility>
#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/attention/rope.h"

namespace witan::ops {

struct HeadSizes {
  int64_t queries, groups;
  int64_t head_dim, value_dim;  // hd of queries and keys, hd_v of values
  kernels::RopeArgs rope;       // dims 0: no rotary positions
};

struct ProjectedHeads {
  Var q, k, v;  // [B, S, H, hd], [B, S, G, hd], [B, S, G, hd_v]
};

// x [B, S, D], weights [H hd, D], [G hd, D], [G hd_v, D] of q, k and v, or one that has the rows of all three; table:
// kernels::rotary_table of the B S positions. Weights that lie side by side, and gradients that do, are used as one
// matrix. Throws ShapeError.
ProjectedHeads project_heads(Tape& tape, const Var& x, const std::vector<Var>& weights, const Tensor& table,
                             const HeadSizes& sizes);

// The product of project_heads() alone, without a gradient: [B S, (H + G) hd + G hd_v], a row is [q | k | v].
Tensor project_rows(Stream& stream, const Var& x, const std::vector<Var>& weights, const HeadSizes& sizes);

// Rotary position embeddings; mathematics in kernels/attention/rope.h.
// x [B, S, H, hd], positions [B, S] int32 -> [B, S, H, hd]. The first rope.dims channels of each head are rotated, or
// with rope.tail the last: an even number. Throws ShapeError; DataError for a negative position (on the CPU).
Var rope(Tape& tape, const Var& x, const Tensor& positions, const kernels::RopeArgs& rope);

// Queries and keys whose heads are normalised, then rotated. Throws ShapeError.
struct NormedHeads {
  Var q, k;
};

// q [B, S, H, hd], k [B, S, G, hd], wq, wk [hd] -> the same shapes;  mathematics in kernels/attention/heads.h. Weights
// that are centred at zero multiply as 1 + w.
// table: kernels::rotary_table of the B S positions, undefined where rope.dims is 0: nothing rotates.
NormedHeads rmsnorm_heads(Tape& tape, const Var& q, const Var& k, const Var& wq, const Var& wk, const Tensor& table,
                          const kernels::RopeArgs& rope, double eps, bool zero_centered = false);

// Sizes of the heads of multi-head latent attention; mathematics in kernels/attention/heads.h.
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

// Weights of attention's projections if ranks of the tensor axis share groups of heads: grouped-query attention over
// more ranks than groups (Ainslie et al., 2023, arXiv:2305.13245). Each rank holds a part of the weights of keys and
// values, but computes with all of its group's weights, which are smaller than the keys of its tokens.
struct SharedProjections {
  Var q, k, v;     // [Hq, D] of this rank's heads; [G hd / n, D] and [G hd_v / n, D]: the n-th part of all G groups'
  int64_t groups;  // G, which divides n
};

// -> [Hq + hd + hd_v, D]: the rows of q, and those of the keys and values of this rank's group, number rank G / n. The
// gradient, in the accumulator dtype, goes to q unchanged, and to keys and values summed over the ranks of their group.
// Collectives, forward and backward; the group must outlive the tape. Throws ShapeError.
Var gather_group_weights(Tape& tape, const SharedProjections& parts, Group& group);

}  // namespace witan::ops
