// Causal self-attention, also over sequences that the ranks of a group divide by the balanced division of
// comm/context.h: around a ring, where no rank ever holds all keys (Liu, Zaharia and Abbeel, "Ring Attention", 2023,
// arXiv:2310.01889), or by heads. Throws ShapeError.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/context.h"
#include "witan/comm/group.h"
#include "witan/kernels/attention/attention.h"

namespace witan::ops {

struct AttentionArgs {
  double scale = 1;               // usually 1 / sqrt(hd)
  kernels::Dropout dropout = {};  // of probabilities; backward draws the mask again
  kernels::AttentionHints hints = {};
  int64_t window = 0;  // sliding window: positions that a query sees, itself included; 0: all up to its own
  // Positions of a row by which dropout counts (nn/layers.h), if they are more than the sequence has.
  int64_t counted_positions = 0;
  Tensor max_logits =
      {};  // [H] accumulator dtype: the forward raises it to the largest logits (kernels/attention/qk_clip.h)
};

// q [B, S, H, hd], k [B, S, G, hd], v [B, S, G, hd_v] with H % G == 0 -> [B, S, H, hd_v];  mathematics in
// kernels/attention/attention.h
// sequence_ids [B, S] int32 keeps packed sequences apart; undefined: each row is one sequence.
// sinks [H]: a logit of each head that takes part in every query's softmax and adds nothing
// (kernels/attention/attention.h), or undefined.
Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
              const AttentionArgs& args, const Var& sinks = {});

// Throws ShapeError, in the name of `op`, unless the arguments are as above.
void check_attention(const char* op, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
                     const AttentionArgs& args);

// Throws ShapeError, in the name of `op`, unless sinks are undefined or [H] of the queries q.
void check_sinks(const char* op, const Var& q, const Var& sinks);

// The backward of sinks, given y and lse of the forward with them. Does nothing if their gradient is not wanted.
void write_sinks_gradient(Backward& b, const Saved& sinks, const Tensor& dy, const Tensor& y, const Tensor& lse);

// The arguments of attention() for a kernel, for whole sequences.
kernels::AttentionInputs attention_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sequence_ids,
                                          const AttentionArgs& args);

// The output of attention() over the whole sequence at this rank's positions context_positions(n S, n, rank):
// q [B, S, H, hd], k [B, S, G, hd], v [B, S, G, hd_v], sequence_ids [B, S] of this rank's tokens -> [B, S, H, hd_v]
// `side`: a stream of the same device, on which blocks are sent while others are used; null: without overlap.
//
// In the forward keys and values travel once around the ring, and each rank attends to every block as it passes;
// results are joined in float32 or wider. In the backward they travel again, each block with the sum of its dk and dv,
// in float32 or wider, which returns to its rank at the end. Beside a rank's own tensors two blocks exist at a time,
// the one in use and the one that arrives. Every rank is charged for the same number of pairs, unless a window hides
// some. Bytes sent, with K those of k and v (B S G (hd + hd_v) elements), I those of sequence_ids, and W those of dk
// and dv in the accumulator dtype: forward (n - 1)(K + I), backward (n - 1)(K + I + W). If hints promise one sequence
// per row, no ids travel. A window changes no call: blocks outside of it travel too, and cost a kernel that finds no
// pair.
//
// Dropout draws the mask of the whole sequence, for which chunks of S / 2 tokens must be a multiple of 4. The order of
// sums is fixed for each n: results agree with attention() to roundings of the accumulator and, in bfloat16, of each
// block's part. Sinks, as in attention(), are joined after all blocks; a rank's gradient of them is that of its tokens.
// A collective, forward and backward; the group and the side stream must outlive the tape.
Var ring_attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids, Group& context,
                   const AttentionArgs& args, Stream* side = nullptr, const Var& sinks = {});

// By heads: an all-to-all before attention gives each rank some heads of all positions, and one after it gives each
// rank its positions of all heads again (DeepSpeed-Ulysses, 2023, arXiv:2309.14509; Megatron-LM's cp_comm_type = a2a).
// attention() between them runs as on one rank.
//
// Each of xs [B, S / n, P, w], of this rank's positions (comm/context.h) -> [B, S, Q, w], of all positions in order.
// Ranks divide the heads, Q = P / n; if there are fewer heads than ranks, ranks share them: P divides n, and Q = 1. Up
// to three tensors of one dtype are moved by one call.
//
// Bytes sent: (n - 1) / n of a rank's part of each tensor, n times that for shared heads. Moving changes no bit:
// results, and gradients of queries and of keys and values that are not shared, have the bits of one rank. Gradients of
// shared keys and values are sums over the ranks that share them, in rank order, each rounded to the dtype.
// Collectives, forward and backward; the group must outlive the tape.
std::vector<Var> gather_sequence(Tape& tape, const std::vector<Var>& xs, Group& context);
// The same for up to three sections of heads that lie side by side: x [B, S / n, sum of P w] -> [B, S, sum of Q w].
Var gather_sequence(Tape& tape, const Var& x, const HeadSections& sections, Group& context);

// The inverse: x [B, S, Q, w], all positions of this rank's heads -> [B, S / n, n Q, w].
Var scatter_sequence(Tape& tape, const Var& x, Group& context);

}  // namespace witan::ops
