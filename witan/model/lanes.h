// Tensor parallelism overlapped with computation: the two halves A and B of a micro-batch, the lanes, go through the
// blocks in turns. While ranks compute heads or inner features of one lane, a side stream sums the other lane's
// results, normalises them and gathers them for the next part (Domino, Wang et al., 2024, arXiv:2409.15241;
// Megatron-LM's tp_comm_overlap). The backward mirrors the forward.
//
//   main:      attention of A   | attention of B     | MLP of A           | MLP of B           | attention of A ..
//   beside:    gather B         | sum, gather A      | sum, gather B      | sum, gather A      | sum, gather B ..
//
// The MoE half of a block takes both lanes together, so that routing and its losses are those of the micro-batch.
// Results are those of Block::forward(), but for the order in which a weight's gradient is summed.
//
// Block::forward() is not made of these parts: it also has mixers without lanes, recomputation, dropout, measured
// activations and inputs beside the residual stream, and a mixer charges its own exchanges to its part of the model.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "witan/model/block.h"

namespace witan {

// The MoE half of a block: the residual stream before -> the residual stream after it.
using MoePass = std::function<Residual(Block& block, const Residual& x)>;

// x [B, S / n, D] with an even B -> [B, S / n, D], through `blocks` that have lanes (Block::guard). `side`: a side
// stream of the tape's stream, which must outlive the tape, or the tape's own stream, without overlap.
Residual through_in_lanes(Tape& tape, Stream& side, const std::vector<std::unique_ptr<Block>>& blocks, Residual x,
                          const Positions& where, const MoePass& moe);

}  // namespace witan
