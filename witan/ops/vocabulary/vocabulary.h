// The two ends of a model that know its vocabulary, which tensor-parallel ranks may divide: token embeddings (rows of
// the table) and the loss (columns of the logits).
#pragma once

#include <algorithm>
#include <cstdint>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan::ops {

// The ids that a rank holds: from `begin` on, as many as its tensor has rows or columns, perhaps none. Together the
// ranks hold each of the ids [0, size) once, followed by `padding` entries that make sizes suit the hardware: no id
// names them, the loss ignores them, and their gradients are exactly 0.
struct VocabularyPart {
  int64_t begin = 0, size = 0, padding = 0;

  int64_t entries() const { return size + padding; }
  // The number of ids among `count` entries from `begin` on; the rest is padding.
  int64_t words(int64_t count) const { return std::clamp<int64_t>(size - begin, 0, count); }
};

// The loss of a language model; mathematics in kernels/vocabulary/vocabulary.h.
struct CrossEntropy {
  Var loss;             // [1] accumulator dtype: sum_t weights[t] * token_losses[t]
  Tensor token_losses;  // [T] accumulator dtype, for evaluation; 0 where the weight is 0. No gradient flows through it.
};

// The gradient that the loss will get. `one`, for a loss that is itself a root of the backward, allows the gradient of
// the logits to be computed along with the loss.
enum class LossGradient : uint8_t { any, one };

// logits [T, V], targets [T] int32, weights [T] in the accumulator dtype (loss mask over denominator; constants).
// Tokens of weight 0 are skipped, whatever their target. Throws ShapeError; on the CPU, DataError naming the first
// target outside [0, V) of a token that counts.
//
// Logits are the largest tensor of a step, so only one ever exists: their gradient is written over them, by the
// backward or, with LossGradient::one, at once. That is done where nobody else holds the logits, so move them in; while
// anybody does (the caller's Var, another op's Saved) they stay as they are and the gradient gets memory of its own.
// The bits are the same.
CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           LossGradient gradient = LossGradient::any);

// Cross entropy of logits [T, n] with padding or, if `group` is not null, for logits divided by vocabulary (loss
// parallel): n are this rank's columns, and targets are ids of the whole vocabulary. The ranks exchange two numbers for
// each token once (an all-gather of [2, T] in the accumulator dtype). Loss, token losses and the gradient of the loss
// are the same on every rank; the gradient of the logits is the rank's own. A collective in the forward only: all ranks
// call it with equal targets and weights. A group of one rank changes nothing.
CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           const VocabularyPart& part, Group* group, LossGradient gradient = LossGradient::any);

// The losses of tokens with their gradients, for objectives that are functions of the targets' log probabilities.
struct TokenLosses {
  Var losses;        // [T] accumulator dtype: -log p of the targets; 0 where the weight is 0
  Tensor entropies;  // [T]: of the tokens' distributions, in nats, likewise. No gradient flows through them.
};

// Logits, targets, part and group as above, with which it shares kernels and memory; of weights [T] it only matters
// whether they are 0. A collective like cross_entropy(), followed by a sum of [T].
TokenLosses token_losses(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                         const VocabularyPart& part, Group* group);

// ids [..] int32 (at most 4 dims), w [V, D] -> [.., D] with y[t] = w[ids[t]]. Throws ShapeError; on the CPU, where
// looking is cheap, DataError naming the first id outside [0, V) and its index.
Var embedding(Tape& tape, const Tensor& ids, const Var& w);

// Looks up a table that ranks divide: w [n, D] is this rank's part. Rows of other ranks' ids are 0, so that y is
// Partial over the ranks' axis; the gradient of w is that of the part. ids must be equal on all ranks.
Var embedding(Tape& tape, const Tensor& ids, const Var& w, const VocabularyPart& part);

}  // namespace witan::ops
