// From tokens to experts and back. Dispatch and combine are each other's adjoints: one copies every token to the rows
// of its K assignments, the other sums those rows.
#pragma once

#include "witan/comm/group.h"
#include "witan/comm/peer_memory.h"
#include "witan/moe/dispatchers/row_exchange.h"
#include "witan/moe/routing.h"
#include "witan/tensor/ragged.h"

namespace witan {

// Where every assignment goes. Immutable; shared by dispatch, combine and their backwards. All counts stay on the
// device. `capacity` is the rows of this rank's expert pool.
struct DispatchMap : RowExchange {
  RowGroups groups;  // of the experts on this rank, within the pool

  // Only where experts are divided among ranks: rows are put into expert order where they arrive.
  Tensor place;    // [capacity] int64: pool row of each received row
  Tensor arrival;  // in parts, instead. [capacity] int64: received row of each pool row

  // Where ranks reach each other's memory, instead: rows go straight to where they belong.
  PeerMemory* peers = nullptr;
  Tensor remote;  // [N] int64: where each send row goes
};

// Whether rows for so many experts go straight into the memory of the group's ranks.
bool rows_go_by_peers(Group& group, int64_t experts);

// `group` is the expert axis. Exchanges counts when it has more than one rank. Parts of routing.part_rows must have
// room for what each rank has for each other; ranks that reach each other's memory need no parts.
DispatchMap make_dispatch_map(Stream& stream, const Routing& routing, Group& group);

// What a rank's experts compute: their rows, and whose weights those of its slots are.
struct ExpertRows {
  const RowGroups& groups;
  ops::ExpertReplicas replicas = {};
};

struct Dispatched {
  Var rows;         // [capacity, D] grouped as map.groups says
  Var row_weights;  // [capacity] accumulator dtype
  // Not null: `rows` are the tokens [T, D] themselves. Experts read them where they lie, by this map, and return the
  // sum of each token's rows, [T, D].
  const DispatchMap* in_place = nullptr;
};
// x [T, D], weights [T, K]. `meanwhile` is computed while rows travel to other ranks, and not at all where none do.
Dispatched dispatch(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map,
                    const ops::Meanwhile* meanwhile = nullptr);
// Where no row travels, for experts that read tokens where they lie. The map must outlive what is returned.
Dispatched dispatch_in_place(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map);
// Of such, what dispatch() gives.
Dispatched copied_to_rows(Tape& tape, const Dispatched& in);
// rows [capacity, D] -> [T, D]: sums the K rows of each token. Weights are not applied here: experts did.
Var combine(Tape& tape, const Var& rows, const DispatchMap& map);

// Dispatch by all-gather: every rank of the expert axis gets the tokens of all ranks and takes those that its experts
// process; their sums over its experts go back by a reduce-scatter. R T rows travel to each of R ranks whatever the
// routing, which is worth it where a token visits nearly as many experts as there are ranks; no rank waits for a count.

// The tokens of all ranks of `group`, one rank's after the other, as a rank sees them that receives from no other: the
// assignments of other ranks' experts are dropped, and rows of the pool are grouped as an all-to-all groups them, by
// expert, then source rank. All ranks must have equally many tokens. A collective.
DispatchMap make_gathered_map(Stream& stream, const Routing& routing, Group& group);

// x [T, D] of each rank -> those of all [R T, D]
Var gather_tokens(Tape& tape, const Var& x, Group& group);
// The adjoint: y [R T, D], a summand of every rank -> the sums of the rank's own tokens [T, D]; move y in
Var scatter_token_sums(Tape& tape, Var y, Group& group);

}  // namespace witan
