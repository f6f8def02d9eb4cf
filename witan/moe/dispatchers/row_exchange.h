// Rows of assignments, copied from their tokens, to the ranks of a group and back: in the order that they are sent in
// on one side, as they arrive on the other.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/ops/shape/overlap.h"

namespace witan {

// Which rows are sent, and how they travel. Immutable; shared by both ways and their backwards. All counts stay on the
// device.
struct RowExchange {
  int64_t tokens = 0, topk = 0;
  int64_t capacity = 0;  // rows that are kept of those that arrive: a bound, never exceeded
  Tensor slot;           // [T K] int64: send row of each assignment; -1: dropped
  Tensor source;         // [N] int64: assignment of each send row; -1: none, the row is not sent

  // Only where rows travel to other ranks, as they come.
  Group* group = nullptr;           // null: they do not
  Tensor send_counts, recv_counts;  // [R] int64

  // Where they travel in parts of one size instead, without those counts: `slot` and `source` are of the rows of these
  // parts, [R part_rows], one for each rank.
  int64_t part_rows = 0;  // 0: they do not

  // Rows of the tensors in which rows arrive, in parts those that are not there included.
  int64_t arriving_rows() const { return part_rows > 0 ? source.size(0) : capacity; }
};

// x [T, D] -> [N, D] in send order
Var copy_to_assignments(Tape& tape, const Var& x, const RowExchange& map);
// Its adjoint: rows [N, D] in send order -> [T, D], the sum of the K rows of each token in the order of k
Var sum_assignments(Tape& tape, const Var& rows, const RowExchange& map);

// Send rows [N, D] -> as they arrive, [arriving_rows, D]; rows that nobody sends are undefined, in parts zeros.
Var exchange_there(Tape& tape, const Var& rows, const RowExchange& map);
// Rows as they arrived -> send rows, on the ranks that they are from
Var exchange_back(Tape& tape, const Var& rows, const RowExchange& map);
// exchange_there() of rows and of what belongs to them, [N, D] and [N, D'], while something else is computed.
std::vector<Var> exchange_both(Tape& tape, const Var& rows, const Var& weights, const RowExchange& map,
                               const ops::Meanwhile& meanwhile);

}  // namespace witan
