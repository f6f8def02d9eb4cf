// The arguments that the host passes to the kernels of peer memory.
#pragma once

#include "witan/comm/cuda/peer_window.h"
#include "witan/tensor/tensor.h"

namespace witan::cuda {

// The pools of all ranks; null where there are no rows, or no weights.
struct Pools {
  std::byte* rows[kMostPeers];
  std::byte* weights[kMostPeers];
};

void launch_place(Stream& stream, const Peers& peers, const RowGroups& groups, const Tensor& remote,
                  const Tensor& counts, int64_t capacity);
// In at most so many blocks, up to kMostBlocks.
void launch_push(Stream& stream, const Peers& peers, const Pools& to, const PeerMemory::Rows& from,
                 const Tensor& source, int64_t topk, const Tensor& remote, unsigned most_blocks);
void launch_pull(Stream& stream, const Peers& peers, const PeerMemory::Rows& to, const Pools& from, const Tensor& slot,
                 const Tensor& remote, unsigned most_blocks);
// Nothing but coming together.
void launch_barrier(Stream& stream, const Peers& peers);

}  // namespace witan::cuda
