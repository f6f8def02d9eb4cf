// The memory that the GPUs of a group share: a window on each rank, which its peers write to.
#pragma once

#include <array>
#include <cstddef>
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

// Memory of a GPU that several processes of a host use: the one that allocated it exports a handle, others open it.
//
// These are CUDA's IPC handles: 64 bytes that any message carries, which are opened for GPUs that the opening process
// does not see too (CUDA_VISIBLE_DEVICES). The driver's newer handles of virtual memory are file descriptors, which
// only Unix sockets carry, and would have every arena made of mapped pieces; they would give nothing more here.

// CUDA shares whole blocks of this size with a handle: what is exported has its blocks for itself.
inline constexpr int64_t kSharedBlock = int64_t{2} << 20;

using MemoryHandle = std::array<int64_t, 8>;

// Of all of an allocation, which begins at `base`. It must stay until all have closed what they opened of it. Throws
// DeviceError.
MemoryHandle export_memory(int device, std::byte* base);

// Another process's allocation, as kernels on `device` reach it. Closed when it is destroyed, which work of the device
// that uses it must not outlast.
class MappedMemory {
 public:
  // Throws DeviceError where the device cannot reach it.
  MappedMemory(int device, const MemoryHandle& handle);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* base() const { return base_; }

 private:
  int device_;
  std::byte* base_ = nullptr;
};

}  // namespace witan::cuda
