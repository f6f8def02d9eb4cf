// Expert capacity: how many of a micro-batch's assignments an expert keeps, and which ones.
#pragma once

#include "witan/comm/group.h"
#include "witan/kernels/moe/capacity.h"
#include "witan/moe/config.h"
#include "witan/moe/routing.h"

namespace witan {

// Derived: the share of assignments that exceed their expert's capacity. Not declared for dropless experts.
inline constexpr const char* kDroppedShare = "dropped_share";
std::vector<RouterStatistic> declare_capacity_statistics(const MoeConfig& config);

// The capacity for a micro-batch of `rows` rows, of which `tokens` [1] int64 are not padding; undefined: all.
kernels::Capacity capacity_of(const MoeConfig& config, int64_t rows, Tensor tokens = {});

namespace ops {
// Drops assignments beyond the capacity (kernels/moe/capacity.h). Weights and losses stay: a dropped assignment has no
// row, so that its weight has neither effect nor gradient, and the balance loss counts it, as in Megatron-LM. If
// `parts` is a group of several ranks, each of them holds a part of each of the micro-batch's `sequences`
// (comm/context.h); the decision is then made over all tokens, which is a collective. The first tokens of all sequences
// precede all second tokens, as in Megatron-LM, whose residual stream is [S, B, D]: DropPolicy::position, and ties of
// weights, follow this order.
Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity, Group* parts = nullptr,
                          int64_t sequences = 1);
}  // namespace ops

}  // namespace witan
