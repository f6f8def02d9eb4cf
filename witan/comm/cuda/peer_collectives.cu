#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/peer_device.cuh"
#include "witan/comm/cuda/reduce_tree.cuh"

namespace witan::cuda {
namespace {

using kernels::cuda::Pack;

constexpr int kThreads = 512;
constexpr int kFlight = 2;  // packs of a thread on their way

// The beginning of unit i of an array, in units.
struct Blocks {
  uint32_t block;  // units of a block; 0: there is one
  int64_t stride;
  __device__ __forceinline__ int64_t at(int64_t i) const {
    if (block == 0) return i;
    const uint32_t of = static_cast<uint32_t>(i) / block;
    return of * stride + (static_cast<uint32_t>(i) - of * block);
  }
};

// kRanks: their number, where it is known before, or 0.
template <class T, class Op, int N, int kRanks>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const __grid_constant__ Peers peers, const __grid_constant__ PeerArrays in, const Blocks blocks,
                  T* out, int64_t packs) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  const bool came = all_came(peers, epoch);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const auto load = [&](int rank, int64_t at) {
    return load_far<T, N>(reinterpret_cast<const T*>(in.of[rank]) + at * N);
  };
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; came && i < packs; i += kFlight * stride) {
    if constexpr (kRanks > 0) {
      Pack<T, N> held[kFlight][kRanks];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        const bool inside = i + f * stride < packs;
        const int64_t at = blocks.at(i + f * stride);
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank)
          if (inside) held[f][rank] = load(rank, at);
      }
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        if (i + f * stride < packs)
          kernels::cuda::store_pack<T, N>(
              out + (i + f * stride) * N,
              reduce_in_tree<T, Op, N, kRanks>(kRanks, [&](int rank) { return held[f][rank]; }));
    } else {
      for (int64_t pack = i; pack < packs && pack < i + kFlight * stride; pack += stride) {
        const int64_t at = blocks.at(pack);
        kernels::cuda::store_pack<T, N>(
            out + pack * N, reduce_in_tree<T, Op, N, 0>(peers.size, [&](int rank) { return load(rank, at); }));
      }
    }
  }
  leave(peers, epoch, came);
}

// Each thread's first units are loaded while ranks wait for each other. Ranks begin with different peers, so that all
// links are busy at any time.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    publish_kernel(const __grid_constant__ Peers peers, const __grid_constant__ PeerArrays to, const Blocks blocks,
                   const Unit* from, int64_t units) {
  const uint32_t epoch = epoch_of_move(peers);
  come(peers, epoch);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  Unit held[kFlight];
  const auto load = [&] {
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (i + f * stride < units) held[f] = from[i + f * stride];
  };
  load();
  const bool came = all_came(peers, epoch);
  while (came && i < units) {
    int64_t at[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) at[f] = blocks.at(i + f * stride);
    for (int p = 0; p < peers.size; ++p) {
      const int rank = (peers.rank + 1 + p) % peers.size;
      Unit* const there = reinterpret_cast<Unit*>(to.of[rank]);
      if (there == from) continue;
#pragma unroll
      for (int f = 0; f < kFlight; ++f)
        if (i + f * stride < units) there[at[f]] = held[f];
    }
    i += kFlight * stride;
    load();
  }
  leave(peers, epoch, came);
}

// Has a bit set below 16 unless all addresses and sizes are multiples of 16, as moving 16 bytes at a time requires.
uintptr_t bits_of(const PeerArrays& arrays, int ranks) {
  uintptr_t bits = static_cast<uintptr_t>(arrays.block) | static_cast<uintptr_t>(arrays.stride);
  for (int rank = 0; rank < ranks; ++rank) bits |= reinterpret_cast<uintptr_t>(arrays.of[rank]);
  return bits;
}

// The blocks in units of `unit` bytes; `bytes` is the size of all blocks.
Blocks blocks_of(const PeerArrays& arrays, int64_t unit, int64_t bytes) {
  if (arrays.block >= bytes) return {0, 0};
  require<ShapeError>(bytes / unit < int64_t{1} << 32,
                      "a collective in peers' memory moves up to 2^32 units in blocks");
  return {static_cast<uint32_t>(arrays.block / unit), arrays.stride / unit};
}

// Enough blocks to fill the links, and no more: others may compute beside them.
unsigned blocks_for_items(Stream& stream, int64_t items, unsigned most) {
  return std::min(most, kernels::cuda::blocks_for(stream, (items + kThreads - 1) / kThreads, 1));
}

template <class T, class Op, int N>
void launch_reduce(Stream& stream, const Peers& peers, T* out, const PeerArrays& in, int64_t packs, unsigned most) {
  constexpr int64_t kUnit = N * static_cast<int64_t>(sizeof(T));
  const Blocks blocks = blocks_of(in, kUnit, packs * kUnit);
  const auto launch = [&]<int kRanks>() {
    reduce_kernel<T, Op, N, kRanks>
        <<<blocks_for_items(stream, packs, most), kThreads, 0, native(stream)>>>(peers, in, blocks, out, packs);
  };
  if constexpr (N > 1) {
    if (peers.size == 2) return launch.template operator()<2>();
    if (peers.size == 4) return launch.template operator()<4>();
  }
  launch.template operator()<0>();
}

}  // namespace

void launch_peer_reduce(Stream& stream, const Peers& peers, std::byte* out, const PeerArrays& in, int64_t elements,
                        DType dtype, Reduce reduce, unsigned most_blocks) {
  with_reduction(dtype, reduce, [&]<class T, class Op>() {
    constexpr int N = kernels::cuda::kPack<T>;
    T* const to = reinterpret_cast<T*>(out);
    if ((reinterpret_cast<uintptr_t>(out) | bits_of(in, peers.size)) % 16 == 0 && elements % N == 0)
      launch_reduce<T, Op, N>(stream, peers, to, in, elements / N, most_blocks);
    else
      launch_reduce<T, Op, 1>(stream, peers, to, in, elements, most_blocks);
  });
  stream.queue()->check("launch_peer_reduce");
}

void launch_peer_publish(Stream& stream, const Peers& peers, const PeerArrays& to, const std::byte* from, int64_t bytes,
                         unsigned most_blocks) {
  const auto launch = [&]<class Unit>() {
    const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
    publish_kernel<Unit><<<blocks_for_items(stream, units, most_blocks), kThreads, 0, native(stream)>>>(
        peers, to, blocks_of(to, sizeof(Unit), bytes), reinterpret_cast<const Unit*>(from), units);
  };
  const auto bits = reinterpret_cast<uintptr_t>(from) | bits_of(to, peers.size) | static_cast<uintptr_t>(bytes);
  if (bits % 16 == 0)
    launch.template operator()<uint4>();
  else if (bits % 4 == 0)
    launch.template operator()<uint32_t>();
  else
    launch.template operator()<uint16_t>();
  stream.queue()->check("launch_peer_publish");
}

}  // namespace witan::cuda
