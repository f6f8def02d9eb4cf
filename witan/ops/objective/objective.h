// Losses of the log probabilities of targets, from the losses of tokens (ops::token_losses); mathematics in
// kernels/objective/objective.h. Each computes its gradient along with its value.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/kernels/objective/objective.h"

namespace witan::ops {

// The tokens of a micro-batch that a loss is over.
struct ObjectiveTokens {
  Tensor mask;                      // [T] float32
  kernels::RowSequences sequences;  // of the whole rows, of which these may be a part
  Group* context = nullptr;         // ranks that divide rows; null: none do
};

// A loss, and weighted sums of other terms, through which no gradient flows.
struct TermSums {
  Var loss;                     // [1] accumulator dtype
  std::vector<Tensor> figures;  // [1] each
};

// The number of each sequence's tokens that count, [sequences] float64. A collective of the context ranks.
Tensor sequence_counts(Stream& stream, const ObjectiveTokens& tokens);

struct PolicyColumns {
  Tensor advantages, old_logprobs;  // [T] float32
  Tensor rollout_logprobs;          // likewise; only with importance weights
};
// sum_t weights[t] surrogate[t], with ratios of whole sequences if `counts` is defined (sequence_counts()). Figures are
// the terms after the surrogate, in the order of kernels::policy_term, weighted by `shares`. weights, shares [T] in
// the accumulator dtype; 0 where a token does not count. Ratios of sequences take two collectives of the context ranks.
TermSums policy_loss(Tape& tape, const Var& losses, const PolicyColumns& columns, const ObjectiveTokens& tokens,
                     const Tensor& weights, const Tensor& shares, const Tensor& counts,
                     const kernels::PolicyOptions& options);

// sum_t weights[t] (k3 estimate of the divergence from a model). reference [T] float32 or in the accumulator dtype: its
// log probabilities.
Var kl_loss(Tape& tape, const Var& losses, const Tensor& reference, const Tensor& mask, const Tensor& weights);

// The mean over pairs of sequences, with the reference's log probabilities as in kl_loss(), or undefined for a loss
// without a reference; `weights` are those of kernels::sequence_weights() with `counts`. Figures are the
// terms after the loss, in the order of kernels::preference_term. A collective of the context ranks.
TermSums preference_loss(Tape& tape, const Var& losses, const Tensor& reference, const ObjectiveTokens& tokens,
                         const Tensor& weights, const Tensor& counts, const kernels::PreferenceOptions& options);

}  // namespace witan::ops
