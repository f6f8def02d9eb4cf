// The op of a router whose tokens choose their K best experts: it chooses and weighs the experts, and forms the losses
// and statistics.
#pragma once

#include <optional>

#include "witan/comm/group.h"
#include "witan/kernels/moe/selection.h"
#include "witan/moe/routers/balance.h"
#include "witan/moe/routing.h"

namespace witan {

// Names of the statistics that ops::route() records, beside the losses of moe/routers/balance.h.
inline constexpr const char* kRouterEntropy = "router_entropy";  // mean over tokens, nats
inline constexpr const char* kExpertCounts = "expert_counts";    // assignments, dropped ones included

// A choice by logits plus a bias that is set from their quantiles (kernels/moe/selection.h).
struct QuantileChoice {
  Tensor bias = {};  // [E] float32; undefined: experts are not chosen so
  Tensor sums = {};  // [E + 1] int64: where to write what these tokens tell of the bias; undefined: nowhere
};

// How experts are chosen, and the chosen weighed: the weights come from the scores alone, whatever decides the choice.
struct TopkSelection {
  int64_t topk = 1;
  kernels::Scoring scoring = kernels::Scores::softmax_of_chosen;
  std::optional<kernels::Selection> choice = {};  // none: the highest scores
  QuantileChoice quantile = {};                   // in place of `choice`
  // [T, K] int32: the experts to take, whoever else would choose (moe/routers/router.h); or undefined
  Tensor recorded = {};
  // [T] int32: a row is padding where it is negative (kernels/moe/router.h); undefined: none is
  Tensor sequence_ids = {};
};

namespace ops {
// logits [T, E] accumulator dtype; mathematics in kernels/moe/router.h. Where `parts` is a group of several ranks,
// these are a micro-batch's tokens on one of them, which all have as many; losses, counts and statistics are of all its
// tokens, the same on every rank, and a loss's gradient on each is that of its own logits. A collective then. Rows that
// are padding count nowhere, and visit no expert.
// The load is balanced as `balance` says, of whose sequences other ranks may hold more tokens each. Losses are those of
// the choice of the highest scores, whatever the choice (DeepSeek-V3, equation 18; Megatron-Core); but where experts
// that were chosen so are recorded, of those. Throws ShapeError.
Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts, const Balance& balance);
// Within each of `sequences` runs of T / sequences tokens; with 1 over all tokens together.
Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts = nullptr,
              int64_t sequences = 1);

// counts, summed over the ranks of `parts`, in a tensor of its own; null: `counts` itself.
Tensor sum_over(Stream& stream, const Tensor& counts, Group* parts);
}  // namespace ops

}  // namespace witan
