// Who holds which positions of a sequence that is divided among the ranks of a context axis: pure arithmetic.
//
// A causal query sees all keys before it, so that even parts in order would leave most of the work to the last rank.
// The sequence is cut into twice as many chunks as there are ranks, and rank r holds chunks r and 2n - 1 - r, an early
// one and a late one: every rank forms as many query-key pairs as every other, with itself and with each of them. It is
// the division of Megatron-LM and of Llama 3 (2024, arXiv:2407.21783).
#pragma once

#include "witan/kernels/attention.h"

namespace witan {

// The positions of the S / ranks tokens that `rank` holds, in the order in which it holds them, which rises. Throws
// ConfigError, naming the nearest lengths that work, unless 2 ranks divide S; one rank holds any sequence.
kernels::PositionRuns context_positions(int64_t S, int ranks, int rank);

}  // namespace witan
