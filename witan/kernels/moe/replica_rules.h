// How replicas are chosen and numbered: the same whole numbers on the CPU and on GPUs (kernels/moe/expert_replicas.h).
#pragma once

#include <cstdint>

namespace witan::kernels {

// As pointers to ReplicaChoice's tensors.
struct ReplicaTables {
  int64_t* hosted;  // [R, S]
  int64_t* place;   // [R, E]
  int64_t ranks, slots, experts;

  constexpr int64_t own() const { return experts / ranks; }
  constexpr int64_t width() const { return own() + slots; }  // places of a rank
  constexpr int64_t home(int64_t expert) const { return expert / own(); }
  constexpr int64_t home_place(int64_t expert) const { return home(expert) * width() + expert % own(); }
  constexpr int64_t slot_place(int64_t rank, int64_t slot) const { return rank * width() + own() + slot; }

  // The expert that a rank's slot replicates, if `home_rank` owns it and the assignments of `part` use this replica
  // (part -1: any part's); else -1.
  constexpr int64_t held(int64_t rank, int64_t slot, int64_t home_rank, int64_t part) const {
    const int64_t expert = hosted[rank * slots + slot];
    if (expert < 0 || home(expert) != home_rank) return -1;
    return part < 0 || place[part * experts + expert] == slot_place(rank, slot) ? expert : -1;
  }
  // Returns the expert that a slot holds for part `part`, whichever rank owns the expert; -1: none.
  constexpr int64_t held(int64_t rank, int64_t slot, int64_t part) const {
    const int64_t expert = hosted[rank * slots + slot];
    return expert < 0 ? -1 : held(rank, slot, home(expert), part);
  }
  // The number of ranks before this one that replicate an expert of the same owner.
  constexpr int64_t held_before(int64_t rank, int64_t slot, int64_t home_rank, int64_t part) const {
    int64_t before = 0;
    for (int64_t other = 0; other < rank; ++other) before += held(other, slot, home_rank, part) >= 0 ? 1 : 0;
    return before;
  }
};

// A replica on rank `to` of one of the own experts of rank `from`.
struct ReplicaMove {
  int64_t from, to;
  int64_t wanted;  // assignments, times R, that would bring one of both to the mean and neither beyond

  // The i-th rank whose assignments move, if there are more than i of them.
  constexpr int64_t source(int64_t i, int64_t ranks) const {
    if (i == 0) return to;
    if (i == ranks - 1) return from;
    const int64_t low = from < to ? from : to, high = from < to ? to : from;
    int64_t rank = i - 1;
    if (rank >= low) ++rank;
    if (rank >= high) ++rank;
    return rank;
  }
};

struct ReplicaGain {
  int64_t gain = 0;     // assignments, times R, that come closer to the mean; 0: it is better not to move
  int64_t sources = 0;  // ranks that are asked for theirs
};

constexpr ReplicaGain gain_of(const ReplicaTables& tables, const int64_t* counts, const ReplicaMove& move,
                              int64_t expert) {
  ReplicaGain best;
  for (int64_t slot = 0; slot < tables.slots; ++slot)
    if (tables.hosted[move.to * tables.slots + slot] == expert) return best;
  int64_t moved = 0;
  for (int64_t i = 0; i < tables.ranks; ++i) {
    const int64_t at = move.source(i, tables.ranks) * tables.experts + expert;
    if (tables.place[at] != tables.home_place(expert)) continue;
    moved += counts[at] * tables.ranks;
    const int64_t gain = moved <= move.wanted ? moved : 2 * move.wanted - moved;
    if (gain > best.gain) best = {gain, i + 1};
  }
  return best;
}

// Returns the assignments that moved.
constexpr int64_t make_move(const ReplicaTables& tables, const int64_t* counts, const ReplicaMove& move, int64_t expert,
                            int64_t slot, int64_t sources) {
  int64_t moved = 0;
  tables.hosted[move.to * tables.slots + slot] = expert;
  for (int64_t i = 0; i < sources; ++i) {
    const int64_t at = move.source(i, tables.ranks) * tables.experts + expert;
    if (tables.place[at] != tables.home_place(expert)) continue;
    moved += counts[at];
    tables.place[at] = tables.slot_place(move.to, slot);
  }
  return moved;
}

// Copying stops when no expert's copy gains this share of a rank's mean load.
inline constexpr int64_t kLeastReplicaGain = 32;

// The next move between ranks of these loads, of which `used` slots each are taken; none where from = to.
constexpr ReplicaMove next_move(const int64_t* loads, const int64_t* used, int64_t total, int64_t ranks,
                                int64_t slots) {
  ReplicaMove move{0, 0, 0};
  for (int64_t rank = 1; rank < ranks; ++rank)
    if (loads[rank] > loads[move.from]) move.from = rank;
  move.to = move.from;
  for (int64_t rank = 0; rank < ranks; ++rank)
    if (rank != move.from && used[rank] < slots && (move.to == move.from || loads[rank] < loads[move.to]))
      move.to = rank;
  const int64_t above = loads[move.from] * ranks - total, below = total - loads[move.to] * ranks;
  move.wanted = above < below ? above : below;
  return move;
}

}  // namespace witan::kernels
