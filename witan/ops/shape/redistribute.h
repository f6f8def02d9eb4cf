// The only place where model code meets an axis: how a tensor is held by the ranks of a group is changed here.
// Collectives, forward and backward: every rank of the group makes the same calls, and lets the gradient of the result
// be used, or not, like the others. The group must outlive the tape.
#pragma once

#include <span>

#include "witan/autograd/tape.h"
#include "witan/comm/group.h"
#include "witan/comm/placement.h"

namespace witan::ops {

// x, held by the group's n ranks as `from` says, held as `to` says. The global tensor does not change, so on global
// tensors the operation and its adjoint are both the identity; the gradient goes back from to.of_gradient() to
// from.of_gradient(), by the same rules (comm/placement.h says why a gradient is held as it is):
//
//   from                  to                    forward          backward
//   Shard(d)              Replicate(own uses)   all-gather       reduce-scatter
//   Shard(d)              Replicate             all-gather       slice
//   Replicate             Shard(d)              slice            all-gather
//   Replicate(own uses)   Shard(d)              slice            zeros around the part
//   Partial               Replicate             all-reduce       identity
//   Partial               Replicate(own uses)   all-reduce       all-reduce
//   Partial               Shard(d)              reduce-scatter   all-gather
//   Shard(d)              Partial               zeros around     slice
//   Shard(i)              Shard(j)              all-to-all       all-to-all
//   Replicate             Replicate(own uses)   identity         all-reduce
//   Replicate(own uses)   Replicate             identity         rank 0 keeps it, zeros elsewhere
//   Replicate             Partial               rank 0 keeps it  identity
//   Replicate(own uses)   Partial               rank 0 keeps it  rank 0 keeps it
//
// Local shapes: a Shard(d) holds 1/n of dim d. x itself when nothing changes or the group has one rank. Sums of all
// ranks are written over x, and over the gradient, if there are no other references: move x in. Throws ShapeError when
// a dim does not divide by n or does not exist.
Var redistribute(Tape& tape, Var x, Group& group, Placement from, Placement to);

// x [T, n], this rank's columns of [T, columns] that ranks hold side by side, as many each as they may be -> all of
// them on every rank, which compute the same from it: Shard(1) -> Replicate where parts need not be even. `begins`
// [ranks + 1]: where each rank's begin, from 0 to `columns`, the same on all. With one rank it is x itself.
Var gather_columns(Tape& tape, const Var& x, Group& group, std::span<const int64_t> begins);

// The uneven all-to-all of Group::all_to_all as an op: rows [R, D] grouped by destination rank -> [capacity, D] grouped
// by source rank. send_counts, recv_counts [n] int64 on the device. Rows of the result after the last received one are
// not written, and their gradients not read. The gradient goes back by the reversed exchange; rows that were not sent
// get 0. With one rank it is a copy.
Var exchange_rows(Tape& tape, const Var& rows, Group& group, const Tensor& send_counts, const Tensor& recv_counts,
                  int64_t capacity);

// Group::all_to_all_equal as an op, its own adjoint: rows [n R, D], R for each of n ranks -> [n R, D], R of each. Rows
// that nobody reads may be undefined, and so their gradients.
Var exchange_parts(Tape& tape, const Var& rows, Group& group);

}  // namespace witan::ops
