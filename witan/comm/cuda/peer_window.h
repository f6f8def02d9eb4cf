// The memory that the GPUs of a group share: a window on each rank, which its peers write to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "witan/comm/cuda/waits.h"
#include "witan/comm/peer_memory.h"

namespace witan::cuda {

inline constexpr int kMostPeers = PeerMemory::kMostRanks;
inline constexpr unsigned kMostBlocks = 320;  // of a call that moves rows
// The blocks of a call on a side stream. A product's blocks take all registers of their multiprocessors, so that
// concurrent products run on multiprocessors where no block of the call waits. These few blocks still fill the links.
inline constexpr unsigned kMostBlocksBeside = 32;

// The memory of one rank that its peers access. Peers write came, left, counted and counts at their rank; the rank
// itself writes the rest.
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
  Waits waits;
};

// Several processes of a host may use the memory of a GPU: the one that allocated it exports a handle, others open it.
//
// These are CUDA's IPC handles: 64 bytes that fit into any message, and that can be opened for GPUs that the opening
// process does not see (CUDA_VISIBLE_DEVICES). The driver's newer handles of virtual memory are file descriptors, which
// only Unix sockets carry, and would require every arena to consist of mapped pieces, without a benefit here.
//
// CUDA shares whole blocks of this size with a handle, so that exported memory must not share its blocks.
inline constexpr int64_t kSharedBlock = int64_t{2} << 20;

using MemoryHandle = std::array<int64_t, 8>;

// Exports the whole allocation that begins at `base`. It must stay until all processes have closed it. Throws
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
