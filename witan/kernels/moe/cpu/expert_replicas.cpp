#include "witan/kernels/moe/expert_replicas.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/moe/replica_rules.h"

namespace witan::kernels::cpu {
namespace {

ReplicaTables tables_of(const ReplicaChoice& choice) {
  return {choice.hosted.data<int64_t>(), choice.place.data<int64_t>(), choice.hosted.size(0), choice.hosted.size(1),
          choice.place.size(1)};
}

void fill_rows(int64_t* to, int64_t first, int64_t rows) {
  std::iota(to, to + rows, first);
}

}  // namespace

void choose_replicas(Stream&, const ReplicaChoice& choice, const Tensor& counts) {
  const ReplicaTables tables = tables_of(choice);
  const int64_t R = tables.ranks, E = tables.experts;
  const int64_t* count = counts.data<int64_t>();
  std::fill_n(tables.hosted, R * tables.slots, -1);
  std::vector<int64_t> loads(static_cast<size_t>(R)), used(loads);
  for (int64_t i = 0; i < R * E; ++i) {
    tables.place[i] = tables.home_place(i % E);
    loads[static_cast<size_t>(tables.home(i % E))] += count[i];
  }
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  while (true) {
    const ReplicaMove move = next_move(loads.data(), used.data(), total, R, tables.slots);
    if (move.to == move.from) return;
    ReplicaGain best;
    int64_t expert = -1;
    for (int64_t e = move.from * tables.own(); e < (move.from + 1) * tables.own(); ++e)
      if (const ReplicaGain found = gain_of(tables, count, move, e); found.gain > best.gain) {
        best = found;
        expert = e;
      }
    if (expert < 0 || best.gain * kLeastReplicaGain < total) return;
    const auto from = static_cast<size_t>(move.from), to = static_cast<size_t>(move.to);
    const int64_t moved = make_move(tables, count, move, expert, used[to]++, best.sources);
    loads[from] -= moved;
    loads[to] += moved;
  }
}

void place_assignments(Stream&, const PlacedAssignments& placed, const Tensor& ids, const Tensor& counts,
                       const Tensor& place) {
  const auto at = place.span<int64_t>();
  std::ranges::transform(ids.span<int32_t>(), placed.ids.data<int32_t>(),
                         [&](int32_t id) { return id < 0 ? -1 : static_cast<int32_t>(at[static_cast<size_t>(id)]); });
  std::ranges::fill(placed.counts.span<int64_t>(), 0);
  for (size_t e = 0; e < at.size(); ++e) placed.counts.data<int64_t>()[at[e]] = counts.data<int64_t>()[e];
}

void replica_sources(Stream&, const Tensor& sources, const ReplicaChoice& choice, int64_t rank, int64_t rank_stride) {
  const ReplicaTables tables = tables_of(choice);
  const int64_t N = sources.elements() / tables.slots;
  for (int64_t slot = 0; slot < tables.slots; ++slot) {
    int64_t* of_slot = sources.data<int64_t>() + slot * N;
    if (const int64_t expert = tables.held(rank, slot, -1); expert >= 0)
      fill_rows(of_slot, tables.home(expert) * rank_stride + expert % tables.own() * N, N);
    else
      std::fill_n(of_slot, N, -1);
  }
}

void replica_homes(Stream&, const Tensor& homes, const ReplicaChoice& choice, const ReplicaRound& round,
                   int64_t rank_stride) {
  const ReplicaTables tables = tables_of(choice);
  const int64_t expert = tables.held(round.rank, round.slot, round.part);
  if (expert < 0) {
    std::ranges::fill(homes.span<int64_t>(), -1);
    return;
  }
  const int64_t home = tables.home(expert), before = tables.held_before(round.rank, round.slot, home, round.part);
  fill_rows(homes.data<int64_t>(), home * rank_stride + before * round.rows, round.rows);
}

void replica_counts(Stream&, const ReplicaCounts& counts, const ReplicaChoice& choice, const ReplicaRound& round) {
  const ReplicaTables tables = tables_of(choice);
  const int64_t mine = tables.held(round.rank, round.slot, round.part);
  int64_t* rows = counts.rows.data<int64_t>();
  for (int64_t rank = 0; rank < tables.ranks; ++rank) {
    const int64_t expert = tables.held(rank, round.slot, round.rank, round.part);
    counts.own.data<int64_t>()[rank] = expert >= 0 ? round.rows : 0;
    counts.hosted.data<int64_t>()[rank] = mine >= 0 && tables.home(mine) == rank ? round.rows : 0;
    if (expert < 0) continue;
    fill_rows(rows, expert % tables.own() * round.rows, round.rows);
    rows += round.rows;
  }
  std::fill(rows, counts.rows.data<int64_t>() + counts.rows.elements(), -1);
}

void replica_experts(Stream&, const Tensor& experts, const ReplicaChoice& choice, const ReplicaRound& round) {
  const ReplicaTables tables = tables_of(choice);
  int64_t* next = experts.data<int64_t>();
  for (int64_t rank = 0; rank < tables.ranks; ++rank)
    if (const int64_t expert = tables.held(rank, round.slot, round.rank, round.part); expert >= 0)
      *next++ = expert % tables.own();
  std::fill(next, experts.data<int64_t>() + experts.elements(), -1);
}

void add_to_experts(Stream& stream, const Tensor& w, const Tensor& found, const Tensor& experts) {
  const int64_t n = experts.elements(), elements = n == 0 ? 0 : found.elements() / n;
  dispatch_floating(w.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t expert = experts.data<int64_t>()[i];
      if (expert < 0) continue;
      T* to = w.data<T>() + expert * elements;
      const T* from = found.data<T>() + i * elements;
      stream.pool().for_ranges(elements, kTaskElements, [&](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) store(to[j], A(to[j]) + A(from[j]));
      });
    }
  });
}

}  // namespace witan::kernels::cpu
