// Dispatch by all-gather: every rank of the expert axis gets the tokens of all, and takes those that its experts are to
// see. What the experts make of them, sums of some of a token's experts, goes back by a reduce-scatter.
// It carries R T rows to each of R ranks whatever the routes are, so that it is worth it where a token visits nearly as
// many experts as there are ranks; no rank waits for a count.
#pragma once

#include "witan/moe/dispatchers/dispatch.h"

namespace witan {

// The tokens of all ranks of `group`, one rank's after the other, as a rank sees them that receives from no other: the
// assignments of other ranks' experts are dropped, and rows of the pool are grouped as an all-to-all groups them, by
// expert, then source rank. All ranks must have equally many tokens. A collective.
DispatchMap make_gathered_map(Stream& stream, const Routing& routing, Group& group);

// x [T, D] of each rank -> those of all [R T, D]
Var gather_tokens(Tape& tape, const Var& x, Group& group);
// The adjoint: y [R T, D], a summand of every rank -> the sums of the rank's own tokens [T, D]; move y in
Var scatter_token_sums(Tape& tape, Var y, Group& group);

}  // namespace witan
