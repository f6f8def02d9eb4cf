// The memory that the GPUs of a group share: a window on each rank, which its peers write to.
#pragma once

#include <cstdint>

#include "witan/comm/peer_memory.h"

namespace witan::cuda {

inline constexpr int kMostPeers = PeerMemory::kMostRanks;
inline constexpr unsigned kMostBlocks = 320;  // of a call that moves rows
// Of one on a side stream. A product's blocks take all registers of their multiprocessors, so that what computes
// meanwhile runs on those where no block of the call waits; these few fill the links too.
inline constexpr unsigned kMostBlocksBeside = 32;

// Why a rank gave up, with the peer it waited for: a word that the host reads.
enum class Trouble : uint32_t { counts, coming, leaving, capacity };
inline constexpr uint32_t kTroubled = 1u << 31;
inline constexpr int kTroubleBits = 16;

// What peers know of one rank. Peers write came, left, counted and counts at their rank; the rest is the rank's own.
struct Window {
  uint32_t came[kMostPeers], counted[kMostPeers];
  uint32_t left[kMostPeers][kMostBlocks];  // a word of each block of the peer
  uint32_t moves, counts_taken;            // calls that are done
  uint32_t failed;                         // no waiting any more
  int64_t proof;                           // a random number: a rank that reads it has found this window
  // Two of them: a peer may be one call ahead.
  int64_t counts[2][kMostPeers][PeerMemory::kMostExperts];
  int64_t first[PeerMemory::kMostExperts + 1];  // own send rows: the first of each expert, and their number
  int64_t place[PeerMemory::kMostExperts];      // where that row goes: rank * kRank + row
};

// A rank's way to its peers, as an argument of kernels.
struct Peers {
  Window* windows[kMostPeers];
  int rank, size;
  const uint32_t* abort;  // on the host: becomes 1 when a rank fails
  uint32_t* trouble;      // on the host
  uint64_t deadline;      // of one wait, ns
};

}  // namespace witan::cuda
