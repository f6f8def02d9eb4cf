// Attention over sequences that context-parallel ranks divide, by heads: an all-to-all before it gives each rank some
// heads of all positions, and one behind it gives each its positions of all heads again (DeepSpeed-Ulysses, 2023,
// arXiv:2309.14509; Megatron-LM's cp_comm_type = a2a). In between is attention() as on one rank, in one call.
//
// Bytes sent, with n ranks: (n - 1) / n of what a rank has of each tensor, that of shared heads counted n times. Moving
// changes no bit: of queries, and of keys and values that are not shared, results and gradients have the bits of one
// rank. Those of shared keys and values are sums over the ranks that share, in rank order, each rounded to the dtype.
// Collectives, forward and backward; the group must outlive the tape. Throws ShapeError.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan::ops {

// Each of xs [B, S / n, P, w], of this rank's positions (comm/context.h) -> [B, S, Q, w], of all, in their order. Ranks
// divide the heads, Q = P / n, or where there are fewer than ranks share them: then P divides n, and Q = 1. Up to three
// tensors of one dtype, by one call.
std::vector<Var> gather_sequence(Tape& tape, const std::vector<Var>& xs, Group& context);

// x [B, S, Q, w], all positions of this rank's heads -> [B, S / n, n Q, w]
Var scatter_sequence(Tape& tape, const Var& x, Group& context);

}  // namespace witan::ops
