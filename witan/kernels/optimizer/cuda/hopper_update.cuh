// Updates with Hopper's copy engine: whole chunks of every operand are copied to the block's shared memory and back, so
// that memory is accessed in long runs of addresses.
#pragma once

#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/optimizer/cuda/update_rows.cuh"

namespace witan::kernels::cuda {

inline constexpr int kHopperThreads = 256, kHopperBlocksPerSm = 2;
inline constexpr int kTile = static_cast<int>(kUpdateChunk);

// A chunk of every operand; those of the state tensors follow each other.
template <class T, class G, class... S>
struct alignas(128) Tile {
  static constexpr int kStateBytes = (0 + ... + static_cast<int>(sizeof(S))) * kTile;
  std::byte state[kStateBytes > 0 ? kStateBytes : 16];
  T value[kTile];
  G gradient[kTile];
  Remainder<T> remainder[Weights<T>::kSplit ? kTile : 8];

  __device__ Operands<T, G, S...> operands() {
    Operands<T, G, S...> all;
    all.weights = {value, remainder};
    all.gradient = gradient;
    [[maybe_unused]] int n = 0, begin = 0;
    ((all.state[n++] = state + begin, begin += static_cast<int>(sizeof(S)) * kTile), ...);
    return all;
  }
};

// The stages that fit in a multiprocessor's shared memory for two blocks: three, or two for the largest operands.
template <class T, class G, class... S>
inline constexpr int kStages = 2 * 3 * sizeof(Tile<T, G, S...>) <= 220 * 1024 ? 3 : 2;

// The content of a stage, written by the thread that fills it and read by the others.
template <class T, class G, class... S>
struct Turn {
  Operands<T, G, S...> home;
  Acc<T> decay;
  int count;  // elements; 0: no more chunks
  bool here;  // whether the operands are in the tile; the ends of tensors and unaligned ones stay in global memory
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class X>
__device__ __forceinline__ bool is_bulk(const X* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}
template <class T, class G, class... S>
__device__ __forceinline__ bool is_bulk(const Operands<T, G, S...>& home) {
  bool all =
      is_bulk(home.weights.value) && (!Weights<T>::kSplit || is_bulk(home.weights.remainder)) && is_bulk(home.gradient);
  home.for_state([&](int, const auto* address) { all = all && is_bulk(address); });
  return all;
}

template <class T, class G, class... S>
__device__ __forceinline__ void load_tile(Tile<T, G, S...>& tile, const Operands<T, G, S...>& home, uint64_t* barrier) {
  using Here = Tile<T, G, S...>;
  constexpr bool kSplit = Weights<T>::kSplit;
  constexpr size_t kOfWeight = sizeof(T) + (kSplit ? sizeof(Remainder<T>) : 0);
  barrier_arrive_and_expect(barrier, Here::kStateBytes + kTile * (kOfWeight + sizeof(G)));
  const auto here = tile.operands();
  home.for_state([&]<class Own>(int n, const Own* address) {
    bulk_load(static_cast<Own*>(here.state[n]), address, kTile * sizeof(Own), barrier);
  });
  bulk_load(tile.value, home.weights.value, sizeof(tile.value), barrier);
  if constexpr (kSplit) bulk_load(tile.remainder, home.weights.remainder, sizeof(tile.remainder), barrier);
  bulk_load(tile.gradient, home.gradient, sizeof(tile.gradient), barrier);
}
template <class T, class G, class... S>
__device__ __forceinline__ void store_tile(const Operands<T, G, S...>& home, Tile<T, G, S...>& tile) {
  const auto here = tile.operands();
  home.for_state([&]<class Own>(int n, Own* address) {
    bulk_store(address, static_cast<const Own*>(here.state[n]), kTile * sizeof(Own));
  });
  bulk_store(home.weights.value, tile.value, sizeof(tile.value));
  if constexpr (Weights<T>::kSplit) bulk_store(home.weights.remainder, tile.remainder, sizeof(tile.remainder));
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Persistent blocks stride over the chunks. The first warp keeps all stages but one loading, and refills a stage once
// its stores have been read from shared memory.
template <class Rule, class Args, class T, class G, class... S>
__global__ void __launch_bounds__(kHopperThreads, kHopperBlocksPerSm)
    hopper_update_kernel(const UpdateRow* table, int rows, int64_t chunks, const double* step, Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kThreads = kHopperThreads, kInFlight = kStages<T, G, S...>;
  extern __shared__ __align__(128) std::byte memory[];
  auto* tiles = reinterpret_cast<Tile<T, G, S...>*>(memory);
  __shared__ Turn<T, G, S...> turns[kInFlight];
  __shared__ uint64_t full[kInFlight];
  __shared__ Rule shared;
  if (step[step_value::skip] != 0) return;
  if (threadIdx.x == 0) {
    shared = Rule::make(step, args);
    for (uint64_t& barrier : full) barrier_init(&barrier, 1);
    barrier_init_done();
  }
  __syncthreads();
  Rule rule = shared;

  UpdateRow row{};
  int64_t chunk = blockIdx.x;
  const auto fill = [&](int stage) {  // called by the first warp
    const bool some = chunk < chunks;
    if (some) find_row(row, table, rows, chunk);
    if (threadIdx.x == 0) {
      Turn<T, G, S...>& turn = turns[stage];
      const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
      turn.count = some ? static_cast<int>(min(kUpdateChunk, row.elements - first)) : 0;
      turn.home = Operands<T, G, S...>(row, first);
      turn.decay = Acc<T>(row.weight_decay * step[step_value::weight_decay]);
      turn.here = turn.count == kTile && is_bulk(turn.home);
      if (turn.here)
        load_tile(tiles[stage], turn.home, &full[stage]);
      else
        barrier_arrive(&full[stage]);
    }
    chunk += gridDim.x;
  };
  if (threadIdx.x < 32)
    for (int stage = 0; stage < kInFlight - 1; ++stage) fill(stage);

  for (int turns_done = 0;; ++turns_done) {
    const int stage = turns_done % kInFlight;
    barrier_wait(&full[stage], turns_done / kInFlight % 2);
    const Turn<T, G, S...>& turn = turns[stage];
    if (turn.count == 0) break;
    rule.decay = turn.decay;
    if (turn.here)
      update_all<Local, kThreads, 1>(tiles[stage].operands(), kTile, rule);
    else
      update_all<Streamed, kThreads, 1>(turn.home, turn.count, rule);
    fence_shared_for_async();
    __syncthreads();
    if (threadIdx.x >= 32) continue;
    if (threadIdx.x == 0) {
      if (turn.here) store_tile(turn.home, tiles[stage]);
      bulk_commit();  // also an empty group, so that the previous turn is always the last group but one
      bulk_wait_read<1>();
    }
    __syncwarp();
    fill((turns_done + kInFlight - 1) % kInFlight);
  }
  if (threadIdx.x == 0) bulk_wait_read<0>();
#endif
}

template <class Rule, class T, class G, class... S, class Args>
void hopper_update(Stream& stream, const UpdateRow* table, int rows, int64_t chunks, const double* step,
                   const Args& args) {
  constexpr int kBytes = kStages<T, G, S...> * sizeof(Tile<T, G, S...>);
  const auto kernel = hopper_update_kernel<Rule, Args, T, G, S...>;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "shared memory of an optimizer's update");
  kernel<<<blocks_for(stream, chunks, kHopperBlocksPerSm), kHopperThreads, kBytes, native(stream)>>>(
      table, rows, chunks, step, args);
}

}  // namespace witan::kernels::cuda
