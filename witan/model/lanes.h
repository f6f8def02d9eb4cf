// Tensor parallelism beside computation: the two halves of a micro-batch go through the blocks in turns, and while
// ranks compute heads or inner features of one half, a side stream sums what they gave for the other half, normalises
// it and gathers it for the next part (Domino, Wang et al., 2024, arXiv:2409.15241; what Megatron-LM's tp_comm_overlap
// is for). The backward is the mirror image.
//
//   main:      attention of A   | attention of B     | MLP of A           | MLP of B           | attention of A ..
//   beside:    gather B         | sum, gather A      | sum, gather B      | sum, gather A      | sum, gather B ..
//
// An MoE layer behind attention takes both halves together, so that routing and its losses are those of the
// micro-batch. Results are those of the blocks one after the other, but for the order in which a weight's gradient is
// summed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "witan/model/block.h"

namespace witan {

// Of an MoE block: x + added -> the same behind its experts.
using MoePass = std::function<Residual(Block& block, const Residual& x)>;

// x [B, S / n, D] of an even B, through `blocks` whose Block::guard() etc. may be called. `side`: a side stream of the
// tape's, which must outlive the tape, or the tape's own: then nothing is at the same time.
Residual through_in_lanes(Tape& tape, Stream& side, const std::vector<std::unique_ptr<Block>>& blocks, Residual x,
                          const Positions& where, const MoePass& moe);

}  // namespace witan
