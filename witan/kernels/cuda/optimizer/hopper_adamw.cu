#include "witan/kernels/cuda/common/hopper.cuh"
#include "witan/kernels/cuda/optimizer/hopper_adamw.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 2, kStages = 3;
constexpr int kTile = static_cast<int>(kUpdateChunk);

// A chunk of every operand.
template <class T, class G>
struct alignas(128) Tile {
  using A = Acc<T>;
  A m[kTile], v[kTile];
  T value[kTile];
  uint16_t remainder[Weights<T>::kSplit ? kTile : 8];
  G gradient[kTile];

  __device__ Operands<T, G> operands() {
    Operands<T, G> all;
    all.weights = {value, remainder};
    all.m = m;
    all.v = v;
    all.gradient = gradient;
    return all;
  }
};

// What a stage holds, as the thread that fills it tells the others.
template <class T, class G>
struct Turn {
  Operands<T, G> home;
  Acc<T> decay;
  int count;  // elements; 0: there are no more
  bool here;  // in the tile, else where they are: the ends of tensors, and such as the copy engine does not take
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class X>
__device__ __forceinline__ bool is_bulk(const X* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}
template <class T, class G>
__device__ __forceinline__ bool is_bulk(const Operands<T, G>& home) {
  return is_bulk(home.weights.value) && (!Weights<T>::kSplit || is_bulk(home.weights.remainder)) && is_bulk(home.m) &&
         is_bulk(home.v) && is_bulk(home.gradient);
}

template <class T, class G>
__device__ __forceinline__ void load_tile(Tile<T, G>& tile, const Operands<T, G>& home, uint64_t* barrier) {
  constexpr bool kSplit = Weights<T>::kSplit;
  constexpr int kBytes = kTile * (2 * sizeof(Acc<T>) + sizeof(T) + (kSplit ? 2 : 0) + sizeof(G));
  barrier_arrive_and_expect(barrier, kBytes);
  bulk_load(tile.m, home.m, sizeof(tile.m), barrier);
  bulk_load(tile.v, home.v, sizeof(tile.v), barrier);
  bulk_load(tile.value, home.weights.value, sizeof(tile.value), barrier);
  if constexpr (kSplit) bulk_load(tile.remainder, home.weights.remainder, sizeof(tile.remainder), barrier);
  bulk_load(tile.gradient, home.gradient, sizeof(tile.gradient), barrier);
}
template <class T, class G>
__device__ __forceinline__ void store_tile(const Operands<T, G>& home, const Tile<T, G>& tile) {
  bulk_store(home.m, tile.m, sizeof(tile.m));
  bulk_store(home.v, tile.v, sizeof(tile.v));
  bulk_store(home.weights.value, tile.value, sizeof(tile.value));
  if constexpr (Weights<T>::kSplit) bulk_store(home.weights.remainder, tile.remainder, sizeof(tile.remainder));
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Blocks stay and take every so many chunks. The first warp keeps all stages but one on their way; a stage is filled
// again when what it held has been read on its way back.
template <class T, class G>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    hopper_adamw_kernel(const AdamWRow* table, AdamWRow only, int rows, int64_t chunks, const double* step,
                        Betas betas) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using A = Acc<T>;
  extern __shared__ __align__(128) std::byte memory[];
  auto* tiles = reinterpret_cast<Tile<T, G>*>(memory);
  __shared__ Turn<T, G> turns[kStages];
  __shared__ uint64_t full[kStages];
  __shared__ Scalars<A> shared;
  if (step[step_value::skip] != 0) return;
  if (threadIdx.x == 0) {
    shared = scalars_of<A>(step, betas);
    for (uint64_t& barrier : full) barrier_init(&barrier, 1);
    barrier_init_done();
  }
  __syncthreads();
  Scalars<A> scalars = shared;

  AdamWRow row = only;
  int64_t chunk = blockIdx.x;
  const auto fill = [&](int stage) {  // by the first warp
    const bool some = chunk < chunks;
    if (some) find_row(row, table, rows, chunk);
    if (threadIdx.x == 0) {
      Turn<T, G>& turn = turns[stage];
      const int64_t first = (chunk - row.first_chunk) * kUpdateChunk;
      turn.count = some ? static_cast<int>(min(kUpdateChunk, row.elements - first)) : 0;
      turn.home = Operands<T, G>(row, first);
      turn.decay = A(row.weight_decay);
      turn.here = turn.count == kTile && is_bulk(turn.home);
      if (turn.here)
        load_tile(tiles[stage], turn.home, &full[stage]);
      else
        barrier_arrive(&full[stage]);
    }
    chunk += gridDim.x;
  };
  if (threadIdx.x < 32)
    for (int stage = 0; stage < kStages - 1; ++stage) fill(stage);

  for (int turns_done = 0;; ++turns_done) {
    const int stage = turns_done % kStages;
    barrier_wait(&full[stage], turns_done / kStages % 2);
    const Turn<T, G>& turn = turns[stage];
    if (turn.count == 0) break;
    scalars.decay = turn.decay;
    if (turn.here)
      update_all<Local, kThreads, 1>(tiles[stage].operands(), kTile, scalars);
    else
      update_all<Streamed, kThreads, 1>(turn.home, turn.count, scalars);
    fence_shared_for_async();
    __syncthreads();
    if (threadIdx.x >= 32) continue;
    if (threadIdx.x == 0) {
      if (turn.here) store_tile(turn.home, tiles[stage]);
      bulk_commit();  // of nothing too, so that the turn before is always the last group but one
      bulk_wait_read<1>();
    }
    __syncwarp();
    fill((turns_done + kStages - 1) % kStages);
  }
  if (threadIdx.x == 0) bulk_wait_read<0>();
#endif
}

}  // namespace

template <class T, class G>
void hopper_adamw(Stream& stream, const AdamWRow* table, const AdamWRow& only, int rows, int64_t chunks,
                  const double* step, const Betas& betas) {
  constexpr int kBytes = kStages * sizeof(Tile<T, G>);
  const auto kernel = hopper_adamw_kernel<T, G>;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "shared memory of AdamW");
  kernel<<<blocks_for(stream, chunks, kBlocksPerSm), kThreads, kBytes, native(stream)>>>(table, only, rows, chunks,
                                                                                         step, betas);
}

using Half = __nv_bfloat16;
template void hopper_adamw<Half, Half>(Stream&, const AdamWRow*, const AdamWRow&, int, int64_t, const double*,
                                       const Betas&);
template void hopper_adamw<Half, float>(Stream&, const AdamWRow*, const AdamWRow&, int, int64_t, const double*,
                                        const Betas&);
template void hopper_adamw<float, Half>(Stream&, const AdamWRow*, const AdamWRow&, int, int64_t, const double*,
                                        const Betas&);
template void hopper_adamw<float, float>(Stream&, const AdamWRow*, const AdamWRow&, int, int64_t, const double*,
                                         const Betas&);

}  // namespace witan::kernels::cuda
