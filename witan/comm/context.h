// Computes which positions of a sequence each context-parallel rank holds: pure arithmetic.
//
// A causal query sees all keys before it, so that equal consecutive parts would leave most of the work to the last
// rank. The sequence is split into twice as many chunks as there are ranks, and rank r holds chunks r and 2n - 1 - r,
// an early one and a late one: every rank forms as many query-key pairs as every other, with itself and with each of
// them. This is how Megatron-LM and Llama 3 (2024, arXiv:2407.21783) shard sequences.
#pragma once

#include "witan/comm/group.h"
#include "witan/kernels/attention/attention.h"

namespace witan {

// The positions of the S / ranks tokens that `rank` holds, in the order in which it holds them, which rises. Throws
// ConfigError, naming the nearest lengths that work, unless 2 ranks divide S; one rank holds any sequence.
kernels::PositionRuns context_positions(int64_t S, int ranks, int rank);

// part [B, S / n, I], at this rank's positions of B sequences -> [B, S, I], whole and in their order, on all n ranks. A
// collective.
Tensor gather_positions(Stream& stream, const Tensor& part, Group& context);
// The other way round: of whole [B, S, I] this rank's [B, S / n, I].
Tensor own_positions(Stream& stream, const Tensor& whole, const Group& context);

}  // namespace witan
