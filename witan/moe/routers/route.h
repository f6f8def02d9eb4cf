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
  Tensor sums = {};  // [E + 1] int64: receives these tokens' sums for the bias update; undefined: not computed
};

// How experts are chosen and weighed. The weights come from the scores alone, whatever decides the choice.
struct TopkSelection {
  int64_t topk = 1;
  kernels::Scoring scoring = kernels::Scores::softmax_of_chosen;
  std::optional<kernels::Selection> choice = {};  // none: the highest scores
  QuantileChoice quantile = {};                   // in place of `choice`
  // [T, K] int32: recorded experts that replace the router's choice (RouteAccess); or undefined
  Tensor recorded = {};
  // [T] int32: a row is padding where it is negative (kernels/moe/router.h); undefined: none is
  Tensor sequence_ids = {};
};

namespace ops {
// logits [T, E] accumulator dtype; kernels/moe/router.h has the mathematics. If `parts` is a group of several ranks,
// each of them holds equally many of a micro-batch's tokens: losses, counts and statistics cover all its tokens and are
// the same on every rank, each rank gets the gradient of its own logits, and the call is a collective. Padding rows are
// not counted and visit no expert. `balance` says how the load is balanced; other ranks may hold more tokens of its
// sequences. Losses are those of the experts with the highest scores, even if others are chosen (DeepSeek-V3, equation
// 18; Megatron-Core); if such experts were recorded, the losses are those of the recorded experts. Throws ShapeError.
Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts, const Balance& balance);
// Balances each of `sequences` runs of T / sequences tokens, or with 1 all tokens together.
Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts = nullptr,
              int64_t sequences = 1);

// The sum of `counts` over the ranks of `parts`, in a new tensor; null: `counts` itself.
Tensor sum_over(Stream& stream, const Tensor& counts, Group* parts);
}  // namespace ops

}  // namespace witan
