// Tiles of 128 x 128 results of 16-bit operands on the tensor cores of sm_80 and later, one for each block of threads:
// the steps of its sum come to shared memory while those before them are multiplied. Rows of the operand that comes by
// rows may be named by an index.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"

namespace witan::kernels::cuda::warp_tiles {

inline constexpr int kThreads = 256;            // 8 warps, 2 by 4 of them
inline constexpr int kTile = 128, kDepth = 32;  // of the result, and of each step of the sum
inline constexpr int kWarpLines = 64, kWarpColumns = 32;
inline constexpr int kAlongSteps = kDepth + 8,
                     kAlongLines = kTile + 8;              // strides in shared memory, free of bank conflicts
inline constexpr int kTileElements = kTile * kAlongSteps;  // of either form: kDepth * kAlongLines is less
static_assert(kDepth * kAlongLines <= kTileElements);
inline constexpr int kStages = 3;  // steps in shared memory at a time, of which one is multiplied
inline constexpr int kTileBytes = kStages * 2 * kTileElements * 2;

// A matrix of `lines` by `steps`, of which one kind is adjacent and comes in pieces of 8, whole ones. The other kind
// are the rows from `first` on, or those that the index names.
template <class T>
struct Operand {
  const T* data;
  int64_t stride;
  int lines, steps;
  const int64_t* index = nullptr;
  uint32_t divisor = 1;
  int64_t first = 0;

  __device__ __forceinline__ const T* row(int i) const {
    const int64_t at = first + i;
    return data + (index ? static_cast<int64_t>(static_cast<uint32_t>(index[at]) / divisor) : at) * stride;
  }
};

// Lines from `line`, steps from `step` on to shared memory, zeros behind the bounds.
template <bool kStepsAdjacent, class T>
__device__ __forceinline__ void load_tile(T* to, const Operand<T>& from, int line, int step) {
  constexpr int kPieces = (kStepsAdjacent ? kDepth : kTile) / 8;
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth / 8; at += kThreads) {
    const int slow = at / kPieces, fast = at % kPieces * 8;
    const int l = line + (kStepsAdjacent ? slow : fast), s = step + (kStepsAdjacent ? fast : slow);
    const bool inside = l < from.lines && s < from.steps;
    const T* const source = inside ? from.row(kStepsAdjacent ? l : s) + (kStepsAdjacent ? s : l) : from.data;
    copy_async(to + slow * (kStepsAdjacent ? kAlongSteps : kAlongLines) + fast, source, inside);
  }
}

template <bool kStepsAdjacent, class T>
__device__ __forceinline__ FragmentA fragment_a(const T* tile, int line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kStepsAdjacent)
    at = load_matrices(tile + (line + lane % 16) * kAlongSteps + step + lane / 16 * 8);
  else
    at = load_matrices_transposed(tile + (step + lane / 16 * 8 + lane % 8) * kAlongLines + line + lane / 8 % 2 * 8);
  return {{at.x, at.y, at.z, at.w}};
}

// Of 16 columns, 8 each.
template <bool kStepsAdjacent, class T>
__device__ __forceinline__ void fragments_b(FragmentB* out, const T* tile, int line, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kStepsAdjacent)
    at = load_matrices(tile + (line + lane / 16 * 8 + lane % 8) * kAlongSteps + step + lane / 8 % 2 * 8);
  else
    at = load_matrices_transposed(tile + (step + lane / 8 % 2 * 8 + lane % 8) * kAlongLines + line + lane / 16 * 8);
  out[0] = {{at.x, at.y}};
  out[1] = {{at.z, at.w}};
}

struct Sums {
  float at[kWarpLines / 16][kWarpColumns / 8][4] = {};
};

template <bool kStepsAdjacentA, bool kStepsAdjacentB, class T>
__device__ __forceinline__ void multiply_tile(Sums& sums, const T* a, const T* b, int line, int column) {
#pragma unroll
  for (int step = 0; step < kDepth; step += 16) {
    FragmentA left[kWarpLines / 16];
    FragmentB right[kWarpColumns / 8];
#pragma unroll
    for (int i = 0; i < kWarpLines / 16; ++i) left[i] = fragment_a<kStepsAdjacentA>(a, line + i * 16, step);
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; j += 2) fragments_b<kStepsAdjacentB>(right + j, b, column + j * 8, step);
#pragma unroll
    for (int i = 0; i < kWarpLines / 16; ++i)
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) multiply_add<T>(sums.at[i][j], left[i], right[j]);
  }
}

// Sums of `tiles` steps, of which load(to a, to b, number) brings each while two before it are waited for or
// multiplied. `memory` is kTileBytes of the block's shared memory, and free for the next sum on return.
template <class T, bool kStepsAdjacentA, bool kStepsAdjacentB, class Load>
__device__ __forceinline__ Sums sum_tiles(void* memory, int tiles, int line, int column, const Load& load) {
  const auto a_of = [&](int tile) { return static_cast<T*>(memory) + tile % kStages * 2 * kTileElements; };
  const auto fetch = [&](int tile) {
    if (tile < tiles) load(a_of(tile), a_of(tile) + kTileElements, tile);
    commit_copies();
  };
  Sums sums;
#pragma unroll
  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the one before, whose place is next
    fetch(tile + kStages - 1);
    multiply_tile<kStepsAdjacentA, kStepsAdjacentB>(sums, a_of(tile), a_of(tile) + kTileElements, line, column);
  }
  __syncthreads();
  return sums;
}

template <class C>
struct Result {
  C* data;
  int64_t stride;
  int lines, columns;  // columns in whole pieces of 8
  bool accumulate;
};

template <class C>
__device__ __forceinline__ void store(const Result<C>& to, const Sums& sums, int line, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kWarpLines / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int l = line + i * 16 + lane / 4 + half * 8, n = column + j * 8 + lane % 4 * 2;
        if (l >= to.lines || n >= to.columns) continue;
        C* const at = to.data + l * to.stride + n;
        Pack<C, 2> out = {};
        if (to.accumulate) out = load_pack<C, 2>(at);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float sum = sums.at[i][j][2 * half + k];
          out.at[k] = convert<C>(to.accumulate ? convert<float>(out.at[k]) + sum : sum);
        }
        store_pack<C, 2>(at, out);
      }
}

__device__ __forceinline__ int warp_line() {
  return static_cast<int>(threadIdx.x) / 32 / (kTile / kWarpColumns) * kWarpLines;
}
__device__ __forceinline__ int warp_column() {
  return static_cast<int>(threadIdx.x) / 32 % (kTile / kWarpColumns) * kWarpColumns;
}

// Whether rows are whole pieces of 16 bytes of 16-bit numbers, as the copies want them.
inline bool in_pieces(const Tensor& tensor) {
  const int dims = tensor.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0 && tensor.size(dims - 1) % 8 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && tensor.stride(dim) % 8 == 0;
  return whole;
}

inline int tiles_of(int64_t size) {
  return static_cast<int>((size + kTile - 1) / kTile);
}

// Launches a kernel of kThreads with kTileBytes of shared memory, and `more` behind them.
template <class... Parameters, class... Args>
void launch_tiles(Stream& stream, void (*kernel)(Parameters...), unsigned blocks, int more, const Args&... args) {
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes + more),
                     "asking for shared memory");
  kernel<<<blocks, kThreads, static_cast<size_t>(kTileBytes + more), native(stream)>>>(args...);
}

template <class T>
Operand<T> operand(const Tensor& matrix, int64_t lines, int64_t steps) {
  return {ptr<const T>(matrix), matrix.stride(matrix.shape().dims() - 2), static_cast<int>(lines),
          static_cast<int>(steps)};
}

template <class C>
Result<C> result(const Tensor& matrix, bool accumulate) {
  const int dims = matrix.shape().dims();
  return {ptr<C>(matrix), matrix.stride(dims - 2), static_cast<int>(matrix.size(dims - 2)),
          static_cast<int>(matrix.size(dims - 1)), accumulate};
}

}  // namespace witan::kernels::cuda::warp_tiles
