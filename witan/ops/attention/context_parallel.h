// Causal self-attention over sequences that the ranks of a group divide, by the balanced division of comm/context.h:
// around a ring, where no rank ever holds all keys (Liu, Zaharia and Abbeel, "Ring Attention", 2023, arXiv:2310.01889),
// or by heads. Throws ShapeError.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/ops/attention/attention.h"

namespace witan::ops {

// The output of attention() over the whole sequence at this rank's positions context_positions(n S, n, rank):
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

// By heads: an all-to-all before attention gives each rank some heads of all positions, and one after it gives each
// rank its positions of all heads again (DeepSpeed-Ulysses, 2023, arXiv:2309.14509; Megatron-LM's cp_comm_type = a2a).
// Between them attention() is called as on one rank.
//
// Bytes sent, with n ranks: (n - 1) / n of what a rank has of each tensor, that of shared heads counted n times. Moving
// changes no bit: of queries, and of keys and values that are not shared, results and gradients have the bits of one
// rank. Those of shared keys and values are sums over the ranks that share, in rank order, each rounded to the dtype.
// Collectives, forward and backward; the group must outlive the tape. Throws ShapeError.

// Each of xs [B, S / n, P, w], of this rank's positions (comm/context.h) -> [B, S, Q, w], of all, in their order. Ranks
// divide the heads, Q = P / n, or where there are fewer than ranks share them: then P divides n, and Q = 1. Up to three
// tensors of one dtype, by one call.
std::vector<Var> gather_sequence(Tape& tape, const std::vector<Var>& xs, Group& context);

// x [B, S, Q, w], all positions of this rank's heads -> [B, S / n, n Q, w]
Var scatter_sequence(Tape& tape, const Var& x, Group& context);

}  // namespace witan::ops
