// The loss of a language model; mathematics in kernels/vocabulary/vocabulary.h.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan::ops {

struct CrossEntropy {
  Var loss;             // [1] accumulator dtype: sum_t weights[t] * token_losses[t]
  Tensor token_losses;  // [T] accumulator dtype, for evaluation; 0 where the weight is 0. No gradient flows through it.
};

// What gradient the loss will get: `one`, where it is a root of the backward by itself, allows that of the logits to be
// computed along with the loss.
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

// The same for logits [T, n] with padding in them or, where `group` is not null, loss parallel: they are this rank's
// columns, part of the vocabulary that the group's ranks hold between them; targets are ids of the whole. What the
// ranks know of each token, two numbers, goes round once (an all-gather of [2, T] in the accumulator dtype); loss,
// token losses and the gradient of the loss are the same on every rank, the logits' gradient is the rank's own. A
// collective forward only: all ranks make the call with equal targets and weights. A group of one rank is as none.
CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           const VocabularyPart& part, Group* group, LossGradient gradient = LossGradient::any);

}  // namespace witan::ops
