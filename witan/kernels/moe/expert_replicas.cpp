#include "witan/kernels/moe/expert_replicas.h"

namespace witan::kernels {

void choose_replicas(Stream& stream, const ReplicaChoice& choice, const Tensor& counts) {
  WITAN_LAUNCH(stream, choose_replicas, (Cost{0, bytes_of(choice.hosted, choice.place, counts)}), choice, counts);
}

void place_assignments(Stream& stream, const PlacedAssignments& placed, const Tensor& ids, const Tensor& counts,
                       const Tensor& place) {
  WITAN_LAUNCH(stream, place_assignments, (Cost{0, bytes_of(placed.ids, placed.counts, ids, counts, place)}), placed,
               ids, counts, place);
}

void replica_sources(Stream& stream, const Tensor& sources, const ReplicaChoice& choice, int64_t rank,
                     int64_t rank_stride) {
  WITAN_LAUNCH(stream, replica_sources, (Cost{0, bytes_of(sources, choice.hosted)}), sources, choice, rank,
               rank_stride);
}

void replica_homes(Stream& stream, const Tensor& homes, const ReplicaChoice& choice, const ReplicaRound& round,
                   int64_t rank_stride) {
  WITAN_LAUNCH(stream, replica_homes, (Cost{0, bytes_of(homes, choice.hosted)}), homes, choice, round, rank_stride);
}

void replica_counts(Stream& stream, const ReplicaCounts& counts, const ReplicaChoice& choice,
                    const ReplicaRound& round) {
  WITAN_LAUNCH(stream, replica_counts, (Cost{0, bytes_of(counts.own, counts.hosted, counts.rows, choice.hosted)}),
               counts, choice, round);
}

void replica_experts(Stream& stream, const Tensor& experts, const ReplicaChoice& choice, const ReplicaRound& round) {
  WITAN_LAUNCH(stream, replica_experts, (Cost{0, bytes_of(experts, choice.hosted)}), experts, choice, round);
}

// With an even load nothing is added; the bytes are those of a replica of each rank's.
void add_to_experts(Stream& stream, const Tensor& w, const Tensor& found, const Tensor& experts) {
  const double matrix = bytes_of(found) / static_cast<double>(found.size(0));
  const Cost cost{matrix / static_cast<double>(size_of(w.dtype())), 3 * matrix};
  WITAN_LAUNCH(stream, add_to_experts, cost, w, found, experts);
}

}  // namespace witan::kernels
