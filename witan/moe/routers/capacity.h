// How many assignments an expert takes of a micro-batch, and which.
#pragma once

#include "witan/comm/group.h"
#include "witan/kernels/moe/capacity.h"
#include "witan/moe/config.h"
#include "witan/moe/routing.h"

namespace witan {

// Derived: assignments beyond their experts' capacity, as a share of all. None where experts take all that come.
inline constexpr const char* kDroppedShare = "dropped_share";
std::vector<RouterStatistic> declare_capacity_statistics(const MoeConfig& config);

// Of a micro-batch of so many rows, of which `tokens` [1] int64 are not padding; undefined: all.
kernels::Capacity capacity_of(const MoeConfig& config, int64_t rows, Tensor tokens = {});

namespace ops {
// Drops what is beyond the capacity (kernels/moe/capacity.h). Weights and losses stay: a dropped assignment has no row,
// so that its weight has no effect and no gradient, and the balance loss counts it, as Megatron-LM's. Where `parts` is
// a group of several ranks, the tokens are a micro-batch's on one of them, which hold a part of each of its `sequences`
// (comm/context.h): what is dropped is decided over all its tokens. A collective then. The first token of each sequence
// comes before the second of any, as in Megatron-LM, whose residual stream is [S, B, D]: that is the order of
// DropPolicy::position, and of equal weights.
Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity, Group* parts = nullptr,
                          int64_t sequences = 1);
}  // namespace ops

}  // namespace witan
