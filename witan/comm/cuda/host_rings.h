// Rings of slots in memory of the host, through which GPUs that do not reach each other's memory send each other bytes.
// Each pair of ranks has some rings in each direction; of a message, each ring carries every n-th slot's worth of
// bytes. A block of the sending rank fills a ring's slots, a block of the receiving rank empties them. Both count slots
// on, so that the same launch can be replayed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "witan/comm/cuda/waits.h"
#include "witan/tensor/tensor.h"

namespace witan::cuda {

inline constexpr int kMostRingRanks = 16;  // of a group
inline constexpr int kMostRings = 16;      // of a pair of ranks in one direction
inline constexpr int kRingSlots = 8;
inline constexpr int64_t kRingSlotBytes = int64_t{32} << 10;

// With fewer ranks a pair has more rings, so that each rank has about equally many blocks at work.
constexpr int rings_of_pair(int ranks) {
  return std::max(kMostRings / std::max(ranks - 1, 1), 2);
}

struct Ring {
  alignas(128) uint32_t sent;   // slots so far; written by the sender, polled by the receiver
  alignas(128) uint32_t taken;  // the reverse
  alignas(128) std::byte slots[kRingSlots][kRingSlotBytes];
};

// A rank's progress in the rings of each peer, on its device.
struct RingProgress {
  uint32_t failed;  // see Waits
  uint32_t sent[kMostRingRanks][kMostRings], taken[kMostRingRanks][kMostRings];
};

// A rank's end of its group's rings, as an argument of kernels.
struct Rings {
  Ring* all;  // [receiving rank][other ranks, counted on from it][rings of a pair]
  RingProgress* progress;
  int rank, size, of_pair;
  Waits waits;
};

// The rows that a rank sends and receives, grouped by rank.
struct RingRows {
  const std::byte* in;
  std::byte* out;
  int64_t in_rows, out_rows;  // room
  int64_t row_bytes;
  const int64_t *send_counts, *recv_counts;  // [n] rows for and from each rank; null: `part` each
  int64_t part;
};

// The all-to-all of group.h; sets no word of `out` after the last received row.
void launch_ring_exchange(Stream& stream, const Rings& rings, const RingRows& rows);

}  // namespace witan::cuda
