// From tokens to experts and back. Dispatch and combine are each other's adjoints: one copies every token to the rows
// of its K assignments, the other sums those rows.
#pragma once

#include "witan/comm/group.h"
#include "witan/comm/threads/peer_memory.h"
#include "witan/moe/routing.h"
#include "witan/ops/overlap.h"
#include "witan/tensor/ragged.h"

namespace witan {

// Where every assignment goes. Immutable; shared by dispatch, combine and their backwards. All counts stay on the
// device.
struct DispatchMap {
  int64_t tokens = 0, topk = 0;
  int64_t capacity = 0;  // rows of this rank's expert pool: a bound, never exceeded
  Tensor slot;           // [T K] int64: send row of each assignment; -1: dropped
  Tensor source;         // [N] int64: assignment of each send row; -1: none, the row is not sent
  RowGroups groups;      // of the experts on this rank, within the pool

  // Only where experts are divided among ranks: send rows travel, and are put into expert order where they arrive.
  Group* group = nullptr;           // null: this rank holds all experts
  Tensor send_counts, recv_counts;  // [R] int64
  Tensor place;                     // [capacity] int64: pool row of each received row

  // Where rows travel in parts of one size (Routing::part_rows), instead of counts and place: `slot` and `source` are
  // of the rows of these parts, [R part_rows], one for each rank.
  int64_t part_rows = 0;  // 0: they do not
  Tensor arrival;         // [capacity] int64: received row of each pool row

  // Where ranks reach each other's memory, instead: rows go straight to where they belong.
  PeerMemory* peers = nullptr;
  Tensor remote;  // [N] int64: where each send row goes
};

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

}  // namespace witan
