// Causal self-attention over a sequence that is divided among the ranks of a group, none of which ever holds all keys:
// ring attention (Liu, Zaharia and Abbeel, 2023, arXiv:2310.01889), with the balanced division of comm/context.h.
// Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/ops/attention/attention.h"

namespace witan::ops {

// What attention() gives for the whole sequence, at this rank's positions context_positions(n S, n, rank):
// q [B, S, H, hd], k [B, S, G, hd], v [B, S, G, hd_v], sequence_ids [B, S] of this rank's tokens -> [B, S, H, hd_v]
// `side`: a stream of the same device, on which blocks are sent while others are used; null: one after the other.
//
// Forward, keys and values travel once around the ring and each rank attends to every block as it passes; results are
// joined in float32 or wider. Backward, they travel again, and with each block the sum of its dk and dv, in float32 or
// wider, which comes home at the end. Beside this rank's tensors there are two blocks at a time, the one in use and the
// one that arrives meanwhile. Every rank is charged for as many pairs as every other, unless a window hides some. Bytes
// sent, with K those of k and v (B S G (hd + hd_v) elements), I those of sequence_ids, and W of dk and dv in the
// accumulator dtype: forward (n - 1)(K + I), backward (n - 1)(K + I + W). Where hints promise one sequence per row, no
// ids travel. A window changes no call: blocks outside of it travel too, and cost a kernel that finds no pair.
//
// Dropout drops what it would drop in the whole sequence, for which chunks, S / 2 tokens, must be a multiple of 4.
// The order of sums is fixed, but it is n's: results agree with attention() to roundings of the accumulator and, in
// bfloat16, of each block's part.
// Sinks, as in attention(), are joined once all blocks have been met; each rank's gradient of them is that of its
// tokens. A collective, forward and backward; the group and the side stream must outlive the tape.
Var ring_attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids, Group& context,
                   const AttentionArgs& args, Stream* side = nullptr, const Var& sinks = {});

}  // namespace witan::ops
