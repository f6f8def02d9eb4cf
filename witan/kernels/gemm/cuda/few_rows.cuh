// A block multiplies few rows of x by 16 rows of a weight, both of 16-bit numbers. Lanes share only the sums: each
// copies 16 bytes of two of the weight's rows at a time, and reads them in the layout of the tensor cores' fragments.
// Elements 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of K in the instruction may be any four of K, provided that both operands
// agree; here they are adjacent in memory. Warps divide K, and their sums are added in order.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/common/cuda/mma.cuh"

namespace witan::kernels::cuda::few {

constexpr int kWeightRows = 16;  // rows of the weight per block
constexpr int kColumns = 8;      // rows of x per tile of sums
constexpr int kStep = 64;        // of K, per warp at a time: 128 bytes of a row
constexpr int kPitch = 20;       // between columns of a tile in shared memory: avoids bank conflicts

// The rows that a lane reads. Results of rows beyond the last are discarded: the pointer may be to any row of the
// weight, and null for a column.
template <class T, int kTiles>
struct Operands {
  const T* weight_rows[2];   // rows lane / 4 of each 8 of the block's rows of the weight
  const T* columns[kTiles];  // rows lane / 4 of each tile's rows of x
};

// The block's sums per warp. Row r of the weight and row m of x: at[warp][m / 8][m % 8 * kPitch + r].
template <int kTiles, int kWarps>
struct WarpSums {
  float at[kWarps][kTiles][kColumns * kPitch];

  __device__ __forceinline__ float sum(int weight_row, int tile, int column) const {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += at[warp][tile][column * kPitch + weight_row];
    return total;
  }
};

// A thread's ring of copies in flight: the slices of K that its warp multiplies next, in pieces of 16 bytes that no
// other thread reads.
template <int kTiles, int kWarps>
struct Ring {
  static constexpr int kThreads = kWarps * 32, kPieces = 4 + 2 * kTiles;  // two halves of weight rows and columns
  static constexpr int kStages = kTiles == 1 ? 4 : 3;
  static constexpr int kBytes = kStages * kPieces * kThreads * static_cast<int>(sizeof(uint4));

  // The pieces of a half are kThreads apart: weight rows, then columns.
  __device__ static __forceinline__ uint4* half(uint4* ring, int step, int half) {
    return ring + (step % kStages * kPieces + half * (kPieces / 2)) * kThreads + threadIdx.x;
  }
};

// Like copy_async, for data that other blocks read too.
__device__ __forceinline__ void copy_shared_async(void* to, const void* from, bool wanted) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(wanted ? 16 : 0)
      : "memory");
}

// A warp's walk over K in a ring: its own steps, every kWarps-th of the row.
template <int kTiles, int kWarps>
struct Walk {
  using Pieces = Ring<kTiles, kWarps>;
  static constexpr int kApart = kWarps * kStep;
  uint4* ring;
  int K;

  __device__ __forceinline__ int first() const { return static_cast<int>(threadIdx.x) / 32 * kStep; }
  __device__ __forceinline__ int own_steps() const { return max(K - first() + kApart - 1, 0) / kApart; }
  // Calls copy(to, step, inside) for both halves of the own-th step; beyond K, zeros are wanted.
  template <class Copy>
  __device__ __forceinline__ void halves(int own, const Copy& copy) const {
    if (own >= own_steps()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = first() + own * kApart + half * (kStep / 2) + static_cast<int>(threadIdx.x) % 4 * 8;
      copy(Pieces::half(ring, own, half), step < K ? step : 0, step < K);
    }
  }
  template <class T>
  __device__ __forceinline__ void copy_weights(const Operands<T, kTiles>& of, int own) const {
    halves(own, [&](uint4* to, int step, bool inside) {
#pragma unroll
      for (int i = 0; i < 2; ++i) copy_async(to + i * Pieces::kThreads, of.weight_rows[i] + step, inside);
    });
  }
  template <class T>
  __device__ __forceinline__ void copy_columns(const Operands<T, kTiles>& of, int own) const {
    halves(own, [&](uint4* to, int step, bool inside) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        if (of.columns[tile] != nullptr)
          copy_shared_async(to + (2 + tile) * Pieces::kThreads, of.columns[tile] + step, inside);
    });
  }
};

// Begins to copy the weights that fill the ring. add_up() is then told so; the columns may still be unknown.
template <class T, int kTiles, int kWarps>
__device__ __forceinline__ void begin_weights(uint4* ring, const Operands<T, kTiles>& of, int K) {
  const Walk<kTiles, kWarps> walk{ring, K};
#pragma unroll
  for (int own = 0; own < Ring<kTiles, kWarps>::kStages; ++own) walk.copy_weights(of, own);
}

// Adds up the products over K, a multiple of 8; called by all threads of the block. A barrier must come before the sums
// are read, and another before the next call.
template <class T, int kTiles, int kWarps>
__device__ __forceinline__ void add_up(WarpSums<kTiles, kWarps>& shared, uint4* ring, const Operands<T, kTiles>& of,
                                       int K, bool weights_begun) {
  using Pieces = Ring<kTiles, kWarps>;
  constexpr int kThreads = Pieces::kThreads;
  const Walk<kTiles, kWarps> walk{ring, K};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_steps = walk.own_steps();

  float sums[kTiles][4] = {};
#pragma unroll
  for (int own = 0; own < Pieces::kStages; ++own) {
    if (!weights_begun) walk.copy_weights(of, own);
    walk.copy_columns(of, own);
    commit_copies();
  }
  for (int own = 0; own < own_steps; ++own) {
    wait_copies<Pieces::kStages - 1>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4* const from = Pieces::half(ring, own, half);
      const uint4 low = from[0], high = from[kThreads];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 x = from[(2 + tile) * kThreads];
        multiply_add<T>(sums[tile], FragmentA{{low.x, high.x, low.y, high.y}}, FragmentB{{x.x, x.y}});
        multiply_add<T>(sums[tile], FragmentA{{low.z, high.z, low.w, high.w}}, FragmentB{{x.z, x.w}});
      }
    }
    walk.copy_weights(of, own + Pieces::kStages);
    walk.copy_columns(of, own + Pieces::kStages);
    commit_copies();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float* const to = shared.at[warp][tile] + lane % 4 * 2 * kPitch + lane / 4;
    to[0] = sums[tile][0];
    to[kPitch] = sums[tile][1];
    to[8] = sums[tile][2];
    to[kPitch + 8] = sums[tile][3];
  }
}

// The number of blocks whose shared memory fills a multiprocessor.
template <int kWarps>
inline constexpr int kBlocks = 16 / kWarps;

template <int kTiles, int kWarps, class Call>
void launch(Stream& stream, void (*kernel)(Call), const dim3& blocks, const Call& call) {
  constexpr int kBytes = Ring<kTiles, kWarps>::kBytes;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "asking for shared memory");
  launch_early(stream, kernel, blocks, kWarps * 32, kBytes, call);
}

// Whether the device has enough shared memory for the largest blocks, as Hopper and later GPUs do.
inline bool has_room(Stream& stream) {
  constexpr int64_t kMost = Ring<2, 16>::kBytes + static_cast<int64_t>(sizeof(WarpSums<2, 16>));
  return witan::cuda::properties(stream.device().index).shared_per_block >= kMost;
}

// Whether rows of a matrix, or of adjacent matrices, are whole pieces of 16 bytes.
inline bool in_pieces(const Tensor& x) {
  const int64_t piece = 16 / size_of(x.dtype());
  const int dims = x.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0 && x.size(dims - 1) % piece == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && (x.size(dim) == 1 || x.stride(dim) % piece == 0);
  return whole;
}

}  // namespace witan::kernels::cuda::few
