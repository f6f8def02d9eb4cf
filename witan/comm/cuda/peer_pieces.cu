#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/peer_device.cuh"
#include "witan/kernels/attention/cuda/sequence_pieces.cuh"

namespace witan::cuda {
namespace {

using kernels::cuda::PieceUnit;
using kernels::cuda::PieceUnits;

constexpr int kThreads = 512;
constexpr int kFlight = 2;  // units of a thread on their way

// Each thread's first units are loaded while ranks wait for each other. Ranks begin with different peers and end with
// themselves, so that all links are busy at any time.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    peer_pieces_kernel(const __grid_constant__ Peers peers, const __grid_constant__ PeerPieces to,
                       const __grid_constant__ PieceUnits units) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  const uint32_t stride = gridDim.x * kThreads;
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  Unit held[kFlight];
  Unit* there[kFlight];
  const auto load = [&] {
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      if (i + f * stride >= units.all) continue;
      const PieceUnit unit = units.find(i + f * stride);
      const uint32_t size = peers.size, rank = (peers.rank + 1 + unit.nth) % size;
      held[f] = reinterpret_cast<const Unit*>(units.source[unit.copy])[units.from[unit.copy].at(rank, unit)];
      there[f] = reinterpret_cast<Unit*>(to.of[unit.copy][rank]) + units.to[unit.copy].at(peers.rank, unit);
    }
  };
  load();
  const bool came = all_came(peers, epoch);
  while (came && i < units.all) {
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (i + f * stride < units.all) *there[f] = held[f];
    i += kFlight * stride;
    load();
  }
  leave(peers, epoch, came);
}

}  // namespace

void launch_peer_pieces(Stream& stream, const Peers& peers, const PeerPieces& to,
                        const std::vector<kernels::PieceCopy>& copies, unsigned most_blocks) {
  uintptr_t bits = kernels::cuda::piece_bits(copies);
  for (size_t copy = 0; copy < copies.size(); ++copy)
    for (int rank = 0; rank < peers.size; ++rank) bits |= reinterpret_cast<uintptr_t>(to.of[copy][rank]);
  kernels::cuda::with_piece_unit(bits, [&]<class Unit>() {
    const PieceUnits units = kernels::cuda::piece_units<Unit>(copies, peers.size);
    const unsigned blocks =
        std::min(most_blocks, kernels::cuda::blocks_for(stream, (int64_t{units.all} + kThreads - 1) / kThreads, 1));
    peer_pieces_kernel<Unit><<<blocks, kThreads, 0, native(stream)>>>(peers, to, units);
  });
  stream.queue()->check("launch_peer_pieces");
}

}  // namespace witan::cuda
