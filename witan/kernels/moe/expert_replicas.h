// Replicas of experts: an expert that is sent more rows than others is also computed on ranks that are sent fewer, so
// that no rank of an expert axis waits for another. R ranks have E/R consecutive experts each, their own, and S slots
// each, of which a slot holds a replica of another rank's expert or nothing.
//
// Places number what may be computed, rank by rank: rank r's own experts are r (E/R + S) + 0 … E/R - 1, its slots come
// behind them. Whoever knows all ranks' counts decides alike: there are whole numbers alone, in a fixed order.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

struct ReplicaChoice {
  Tensor hosted;  // [R, S] int64: the expert whose replica a rank's slot holds; -1: none
  Tensor place;   // [R, E] int64: where each rank's assignments to each expert are computed
};

// counts [R, E] int64: assignments of each rank to each expert -> choice. Time and again the fullest rank gives the
// emptiest that has a slot left one of its own experts, for the assignments of as many ranks as bring both closest to
// the mean: the receiver's, which then travel nowhere, then others'. It ends when nothing would move a 32nd of the mean
// load of a rank, below which a copy of an expert takes longer than what it saves.
void choose_replicas(Stream& stream, const ReplicaChoice& choice, const Tensor& counts);
WITAN_KERNEL_TWINS(choose_replicas)

struct PlacedAssignments {
  Tensor ids;     // [n] int32: place of each assignment; -1: it has no row
  Tensor counts;  // [R (E/R + S)] int64: the histogram of ids
};

// A rank's ids [n] int32, -1 or its assignments' experts, with their histogram counts [E], at place [E], its row of
// ReplicaChoice::place.
void place_assignments(Stream& stream, const PlacedAssignments& placed, const Tensor& ids, const Tensor& counts,
                       const Tensor& place);
WITAN_KERNEL_TWINS(place_assignments)

// Selects the matrices that this rank exchanges with others' slots of one number. An expert's matrix is N rows.
struct ReplicaRound {
  int64_t rank;       // this one, of R
  int64_t slot;       // of each rank
  int64_t rows;       // N
  int64_t part = -1;  // of the gradients, those from this rank's assignments alone; -1: of all
};

// If ranks reach each other's memory, rows are numbered rank * rank_stride + row; -1: none.
// sources [S N] int64: for each row of this rank's slots, that of the expert's own matrix among the E/R N of its rank.
void replica_sources(Stream& stream, const Tensor& sources, const ReplicaChoice& choice, int64_t rank,
                     int64_t rank_stride);
WITAN_KERNEL_TWINS(replica_sources)
// homes [N] int64: for each row of this rank's slot, where it goes on the expert's rank: there, the matrices that come
// in a round lie in the order of the ranks they come from.
void replica_homes(Stream& stream, const Tensor& homes, const ReplicaChoice& choice, const ReplicaRound& round,
                   int64_t rank_stride);
WITAN_KERNEL_TWINS(replica_homes)

// If they do not: the numbers of rows that a round exchanges. All int64.
struct ReplicaCounts {
  Tensor own;     // [R] rows of this rank's own experts that each rank's slot is concerned with: N or 0
  Tensor hosted;  // [R] rows of this rank's slot, by the rank whose expert it holds
  Tensor rows;    // [R N] those of the first, as rows among the E/R N of this rank's matrices; behind the last -1
};
void replica_counts(Stream& stream, const ReplicaCounts& counts, const ReplicaChoice& choice,
                    const ReplicaRound& round);
WITAN_KERNEL_TWINS(replica_counts)

// experts [R] int64: of this rank's own E/R, those whose matrices travel in a round, in the order of the ranks of the
// slots; behind the last -1.
void replica_experts(Stream& stream, const Tensor& experts, const ReplicaChoice& choice, const ReplicaRound& round);
WITAN_KERNEL_TWINS(replica_experts)

// w[experts[i]] += found[i] in the order of i, but for an expert of -1.  w [E, ..], found [R, ..] of one floating dtype
void add_to_experts(Stream& stream, const Tensor& w, const Tensor& found, const Tensor& experts);
WITAN_KERNEL_TWINS(add_to_experts)

}  // namespace witan::kernels
