// Collectives by loads and stores in the memory of peers: one kernel each, where NCCL would pass bytes on from rank to
// rank, or round sums of 16 bits on the way.
#pragma once

#include "witan/comm/cuda/peer_window.h"
#include "witan/comm/group.h"

namespace witan::cuda {

// The same array on each rank, as this GPU reaches it: blocks of `block` bytes, `apart` bytes from each other.
struct PeerArrays {
  std::byte* of[kMostPeers];
  int64_t block, apart;
};

// out[i] = the reduction over ranks r of element i of the blocks of in.of[r], i in [0, elements), in the tree of
// comm/reduce.h and its sum types. With one block, out may be this rank's own array of `in`.
void launch_peer_reduce(Stream& stream, const Peers& peers, std::byte* out, const PeerArrays& in, int64_t elements,
                        DType dtype, Reduce reduce, unsigned most_blocks);

// Byte i of the blocks of to.of[r] = from[i] for every rank r, i in [0, bytes). With one block, `from` may be this
// rank's own array of `to`.
void launch_peer_publish(Stream& stream, const Peers& peers, const PeerArrays& to, const std::byte* from, int64_t bytes,
                         unsigned most_blocks);

// The tensors that pieces of each copy go to, of each rank, as this GPU reaches them.
struct PeerPieces {
  std::byte* of[kernels::kMostPieceCopies][kMostPeers];
};

// Piece r of every copy's `from` becomes piece peers.rank of to.of[copy][r].
void launch_peer_pieces(Stream& stream, const Peers& peers, const PeerPieces& to,
                        const std::vector<kernels::PieceCopy>& copies, unsigned most_blocks);

}  // namespace witan::cuda
