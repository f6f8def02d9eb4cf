// How the host launches the kernels of this folder: sums in a fixed order, rows that go to peers' receive buffers, and
// collectives by loads and stores in the memory of peers. Of those each is one kernel, where NCCL would pass bytes on
// from rank to rank, or round sums of 16 bits on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/comm/cuda/peer_window.h"
#include "witan/comm/group.h"
#include "witan/tensor/tensor.h"

namespace witan::cuda {

inline constexpr int kMostParts = 256;

// out[i] = the reduction over p of parts[p * stride + i], i in [0, elements), in the binary tree of comm/reduce.h and
// its sum types: the same bits as on the CPU. parts, out of `dtype`; at most kMostParts parts.
void reduce_parts(Stream& stream, std::byte* out, const std::byte* parts, int64_t stride, int count, int64_t elements,
                  DType dtype, Reduce reduce);

// The receive buffers of all ranks; null if there are no rows, or no weights.
struct RankBuffers {
  std::byte* rows[kMostPeers];
  std::byte* weights[kMostPeers];
};

void launch_place(Stream& stream, const Peers& peers, const RowGroups& groups, const Tensor& remote,
                  const Tensor& counts, int64_t capacity);
// Launch at most `most_blocks` blocks, up to kMostBlocks.
void launch_push(Stream& stream, const Peers& peers, const RankBuffers& to, const PeerMemory::Rows& from,
                 const Tensor& source, int64_t topk, const Tensor& remote, unsigned most_blocks);
void launch_pull(Stream& stream, const Peers& peers, const PeerMemory::Rows& to, const RankBuffers& from,
                 const Tensor& slot, const Tensor& remote, unsigned most_blocks);
// Only synchronizes the ranks.
void launch_barrier(Stream& stream, const Peers& peers);

// An array on each rank, as this GPU addresses it: blocks of `block` bytes whose starts are `stride` bytes apart.
struct PeerArrays {
  std::byte* of[kMostPeers];
  int64_t block, stride;
};

// out[i] = the reduction over ranks r of element i of the blocks of in.of[r], i in [0, elements), in the tree of
// comm/reduce.h and its sum types. With one block, out may be this rank's own array of `in`.
void launch_peer_reduce(Stream& stream, const Peers& peers, std::byte* out, const PeerArrays& in, int64_t elements,
                        DType dtype, Reduce reduce, unsigned most_blocks);

// Byte i of the blocks of to.of[r] = from[i] for every rank r, i in [0, bytes). With one block, `from` may be this
// rank's own array of `to`.
void launch_peer_publish(Stream& stream, const Peers& peers, const PeerArrays& to, const std::byte* from, int64_t bytes,
                         unsigned most_blocks);

// The destinations of each copy's pieces on each rank, as this GPU addresses them.
struct PeerPieces {
  std::byte* of[kernels::kMostPieceCopies][kMostPeers];
};

// Piece r of every copy's `from` becomes piece peers.rank of to.of[copy][r].
void launch_peer_pieces(Stream& stream, const Peers& peers, const PeerPieces& to,
                        const std::vector<kernels::PieceCopy>& copies, unsigned most_blocks);

}  // namespace witan::cuda
