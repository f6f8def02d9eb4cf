// Chunks of a sequence that ranks divide, with the few tokens before them (comm/earlier_tokens.h), so that a
// convolution runs on a rank's chunks as on sequences of their own. Collectives, forward and backward; the group must
// outlive the tape. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"

namespace witan::ops {

// x [B, S / n, I] of this rank's tokens, two chunks of C -> [2 B, count + C, I]: each chunk after the `count` tokens
// before it, 0 before a sequence's first. The gradients of these go back to their ranks.
Var with_earlier_tokens(Tape& tape, const Var& x, int64_t count, Group& context);

// y [2 B, count + C, I] -> [B, 2 C, I], without the earlier tokens. Not a collective.
Var without_earlier_tokens(Tape& tape, const Var& y, int64_t count);

// Without a gradient: ids [B, S / n] int32 -> [2 B, count + C].
Tensor ids_with_earlier_tokens(Stream& stream, const Tensor& ids, int64_t count, Group& context);

}  // namespace witan::ops
