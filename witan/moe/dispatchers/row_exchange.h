// Rows of assignments, copied from their tokens, travel to the ranks of a group and back. Senders have them in send
// order, receivers in the order of arrival.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/ops/shape/overlap.h"

namespace witan {

// Describes which rows are sent, and how. Immutable; shared by both directions and their backwards. All counts stay on
// the device.
struct RowExchange {
  int64_t tokens = 0, topk = 0;
  int64_t capacity = 0;  // the bound of received rows that are kept, never exceeded
  Tensor slot;           // [T K] int64: send row of each assignment; -1: dropped
  Tensor source;         // [N] int64: assignment of each send row; -1: the row is not sent

  // If rows travel to other ranks with exact counts.
  Group* group = nullptr;           // null: no row travels
  Tensor send_counts, recv_counts;  // [R] int64

  // If rows travel in parts of fixed size instead, one for each rank, without those counts: `slot` and `source` refer
  // to the rows of these parts, [R part_rows].
  int64_t part_rows = 0;  // 0: rows travel with exact counts

  // Rows of the tensors that receive, unused rows of parts included.
  int64_t arriving_rows() const { return part_rows > 0 ? source.size(0) : capacity; }
};

// x [T, D] -> [N, D] in send order
Var copy_to_assignments(Tape& tape, const Var& x, const RowExchange& map);
// Its adjoint: rows [N, D] in send order -> [T, D], the sum of each token's K rows in the order of k
Var sum_assignments(Tape& tape, const Var& rows, const RowExchange& map);

// Send rows [N, D] -> received rows [arriving_rows, D]; rows without a sender are undefined, or zeros in parts.
Var send_rows(Tape& tape, const Var& rows, const RowExchange& map);
// Received rows -> send rows, on the ranks that sent them
Var return_rows(Tape& tape, const Var& rows, const RowExchange& map);
// send_rows() of rows [N, D] and of their weights [N, D'], while `meanwhile` is computed.
std::vector<Var> send_rows_with_weights(Tape& tape, const Var& rows, const Var& weights, const RowExchange& map,
                                        const ops::Meanwhile& meanwhile);

}  // namespace witan
