// Dispatch copies every token to the rows of its K assignments, combine sums those rows: they are each other's
// adjoints.
#pragma once

#include "witan/comm/group.h"
#include "witan/comm/peer_memory.h"
#include "witan/moe/dispatchers/row_exchange.h"
#include "witan/moe/routing.h"
#include "witan/tensor/ragged.h"

namespace witan {

// The destination of every assignment. Immutable; shared by dispatch, combine and their backwards. All counts stay on
// the device. `capacity` is the number of rows in the receive buffer of this rank's experts.
struct DispatchMap : RowExchange {
  RowGroups groups;  // the rows of each expert of this rank, within the receive buffer
  // If rows do not travel, the routing's weights [T, K] were sorted with the assignments: [N, 1].
  Tensor weights, row_weights;

  // If experts are divided among ranks: received rows are put into expert order.
  Tensor place;    // [capacity] int64: buffer row of each received row
  Tensor arrival;  // instead, with parts of fixed size. [capacity] int64: received row of each buffer row

  // Instead, if ranks reach each other's memory: rows are written straight into the experts' receive buffers.
  PeerMemory* peers = nullptr;
  Tensor remote;  // [N] int64: the destination of each send row
};

// Whether rows for so many experts are written straight into the memory of the group's ranks.
bool rows_go_by_peers(Group& group, int64_t experts);

// `group` is the expert axis; several ranks exchange counts. If routing.part_rows is set, no rank may have more rows
// for another; ranks that reach each other's memory need no parts.
DispatchMap make_dispatch_map(Stream& stream, const Routing& routing, Group& group);

// The rows that a rank's experts compute, and the experts whose replicas it holds.
struct ExpertRows {
  const RowGroups& groups;
  ops::ExpertReplicas replicas = {};
};

struct Dispatched {
  Var rows;         // [capacity, D] grouped as map.groups says
  Var row_weights;  // [capacity] accumulator dtype
  // Not null: `rows` are the tokens [T, D] themselves. Experts read them in place, by this map, and return the sum of
  // each token's rows, [T, D].
  const DispatchMap* in_place = nullptr;
};
// x [T, D], weights [T, K]. `meanwhile` is computed while rows travel to other ranks, and not at all if none do.
Dispatched dispatch(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map,
                    const ops::Meanwhile* meanwhile = nullptr);
// If no row travels: for experts that read tokens in place. The map must outlive the result.
Dispatched dispatch_in_place(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map);
// Turns such a result into that of dispatch().
Dispatched copied_to_rows(Tape& tape, const Dispatched& in);
// rows [capacity, D] -> [T, D]: sums the K rows of each token. Experts have applied the weights already.
Var combine(Tape& tape, const Var& rows, const DispatchMap& map);

// Dispatch by all-gather: every rank of the expert axis gets the tokens of all ranks and takes those that its experts
// process; their sums over its experts go back by a reduce-scatter. R T rows travel to each of R ranks whatever the
// routing, which is worth it where a token visits nearly as many experts as there are ranks; no rank waits for a count.

// A map of the tokens of all ranks of `group`, in the order of ranks, as if they were one rank's: assignments to other
// ranks' experts are dropped, and rows of the buffer are grouped as an all-to-all groups them, by expert, then source
// rank. All ranks must have equally many tokens. A collective.
DispatchMap make_gathered_map(Stream& stream, const Routing& routing, Group& group);

// x [T, D] of each rank -> [R T, D] of all ranks
Var gather_tokens(Tape& tape, const Var& x, Group& group);
// The adjoint: y [R T, D], whose sum over ranks is wanted -> the sums of the rank's own tokens [T, D]; move y in
Var scatter_token_sums(Tape& tape, Var y, Group& group);

}  // namespace witan
