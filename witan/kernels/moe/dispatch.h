// Moving tokens to experts and back: the map, and the row copies that follow it.
//
// An assignment is a pair (t, k), numbered t K + k. The send order sorts assignments by expert, and by number within an
// expert: a stable counting sort, made of scans, so that no order is left to chance.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels {

// ids [T, K] int32 in [0, E), or -1 where an assignment is dropped and has no row;  counts [E] their histogram ->
// slot [T K] int64: row of each assignment in the send order;  source [N] int64: the assignment in each row,
// N >= sum(counts).  What does not exist is -1.
void send_order(Stream& stream, const Tensor& slot, const Tensor& source, const Tensor& ids, const Tensor& counts);
WITAN_KERNEL_TWINS(send_order)

// The send order of one rank that receives from no other, with the groups of its rows, begin = exclusive scan of
// counts, and the weight of each row.
struct LocalOrder {
  Tensor slot, source;  // as of send_order()
  RowGroups groups;
  Tensor row_weights;  // [N, 1]: weights[source[i]], or 0 where source[i] is -1
};
// weights [T, K], of any floating dtype; undefined: there are none, nor row_weights.
void local_order(Stream& stream, const LocalOrder& order, const Tensor& ids, const Tensor& counts,
                 const Tensor& weights);
WITAN_KERNEL_TWINS(local_order)

// counts [E] -> send_counts [R]: rows for each rank, with E/R consecutive experts on each rank.
void rank_counts(Stream& stream, const Tensor& send_counts, const Tensor& counts);
WITAN_KERNEL_TWINS(rank_counts)

// received [R, E_local] int64: rows from each rank for each of this rank's experts. Rows arrive ordered by source rank,
// then expert; place[i] is where row i goes so that they are ordered by expert, then source rank.
// Fills groups, by source too, recv_counts [R] and place [capacity]; entries of place beyond the received rows are
// undefined.
// Throws ShapeError, on the CPU, when more rows arrive than the capacity.
void receive_order(Stream& stream, const RowGroups& groups, const Tensor& recv_counts, const Tensor& place,
                   const Tensor& received);
WITAN_KERNEL_TWINS(receive_order)

// received [R, E_local] int64: rows that each of R ranks has for each of this rank's experts. Fills groups, by source
// too, as receive_order does.
void gathered_groups(Stream& stream, const RowGroups& groups, const Tensor& received);
WITAN_KERNEL_TWINS(gathered_groups)

// local[i] = ids[i] - first where that lies in [0, experts), else -1;  ids, local [T, K] int32
void local_choices(Stream& stream, const Tensor& local, const Tensor& ids, int64_t first, int64_t experts);
WITAN_KERNEL_TWINS(local_choices)

// ids [T, K] int32 in [0, E), or -1 -> counts [E] int64: the histogram of those that are not -1. Counts [B, E] are
// those of each T / B tokens, one after the other.
void count_assignments(Stream& stream, const Tensor& counts, const Tensor& ids);
WITAN_KERNEL_TWINS(count_assignments)

// buffers [R, 2, E] int64: begin and count of the groups in the receive buffers of R ranks, which lie one after the
// other, `capacity` rows each. Fills groups, whose rows are those of all buffers by expert, then rank, and place: row i
// of them is row place[i] of the buffers. place [R capacity] int64; entries beyond the groups are undefined.
void merge_order(Stream& stream, const RowGroups& groups, const Tensor& place, const Tensor& buffers, int64_t capacity);
WITAN_KERNEL_TWINS(merge_order)

// y[i,:] = x[index[i] / divisor,:] for every row i of y, or 0 where index[i] is -1.  x [M, D], y [N, D] of one floating
// dtype, index [N] int64.
void gather_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, int64_t divisor);
WITAN_KERNEL_TWINS(gather_rows)

// Gathers only the first sum(counts) rows; the inverse is y[index[i],:] = x[i,:].
void gather_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts);
WITAN_KERNEL_TWINS(gather_first_rows)
void scatter_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts);
WITAN_KERNEL_TWINS(scatter_first_rows)

// y[t,:] = sum_k x[slot[t,k],:], summed in the accumulator dtype in the order of k; a slot of -1 adds nothing.
//  slot [T K] int64, K = slot / T.
void sum_assignments(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& slot);
WITAN_KERNEL_TWINS(sum_assignments)

// Bounded exchange: each rank sends each other a part of one size, whatever the counts, of which only the first rows
// are valid, so that the host need not know the counts (moe/dispatchers/dispatch.h). From the send order to parts of B
// rows for each of R ranks.  source [N] int64: the assignment of each send row, by rank;  counts [R] int64: rows for
// each rank, B at most  ->  parts [R B] int64: the assignment of each row, -1 where there is none;  slot [T K] int64,
// the send row of each assignment, becomes its row of the parts, and stays -1 where it has none.  Throws ShapeError, on
// the CPU, where a rank gets more than B.
void spread_to_parts(Stream& stream, const Tensor& slot, const Tensor& parts, const Tensor& source,
                     const Tensor& counts);
WITAN_KERNEL_TWINS(spread_to_parts)

// Finds where the rows of a receive buffer have arrived: in parts of `part_rows` rows, one from each rank, each sorted
// by expert. groups, by source too: the buffer's  ->  arrival [capacity] int64: the row of the parts that is in each
// row of the buffer; undefined beyond the groups.
void find_in_parts(Stream& stream, const Tensor& arrival, const RowGroups& groups, int64_t part_rows);
WITAN_KERNEL_TWINS(find_in_parts)

// Exchange by hosts, each of which has E / H consecutive experts: a copy of a token goes to each host that has any of
// its experts, with their numbers there (moe/dispatchers/host_dispatch.h).
// ids [T, K] int32 in [0, E), or -1 -> hosts [T, C] int32: those that have a token's experts, `experts` each, every one
// once and in their order; then -1.  C = min(K, H) is enough for all.
void choose_hosts(Stream& stream, const Tensor& hosts, const Tensor& ids, int64_t experts);
WITAN_KERNEL_TWINS(choose_hosts)

// The numbers that are sent with copies of tokens: numbers [N, K] int32, of which a token's expert on the copy's host
// becomes 1 and more, counted from the host's first; 0: it is elsewhere.  ids [T, K] and hosts [T, C] as of
// choose_hosts; source [N] int64: the element of hosts that each copy is for, or -1: there is no copy, and all its
// numbers are 0.
void number_on_hosts(Stream& stream, const Tensor& numbers, const Tensor& ids, const Tensor& hosts,
                     const Tensor& source, int64_t experts);
WITAN_KERNEL_TWINS(number_on_hosts)

}  // namespace witan::kernels
