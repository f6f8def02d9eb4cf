// 128 x 128 tiles of products of 16-bit operands on the tensor cores of sm_80 and later, one per thread block: slices
// of K are copied to shared memory while the previous ones are multiplied. An index may gather the rows of an operand.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/mma.cuh"

namespace witan::kernels::cuda::warp_tiles {

inline constexpr int kThreads = 256;            // 8 warps, 2 by 4
inline constexpr int kTile = 128, kDepth = 32;  // M and N of a tile, and K of a slice
inline constexpr int kWarpM = 64, kWarpN = 32;
inline constexpr int kPitchK = kDepth + 8,
                     kPitchM = kTile + 8;              // strides in shared memory, free of bank conflicts
inline constexpr int kTileElements = kTile * kPitchK;  // for either layout: kDepth * kPitchM is smaller
static_assert(kDepth * kPitchM <= kTileElements);
inline constexpr int kStages = 3;  // slices in shared memory, one of which is being multiplied
inline constexpr int kTileBytes = kStages * 2 * kTileElements * 2;

// An operand of M (or N) by K. One of the two dims is adjacent in memory, in whole pieces of 8 elements; the other runs
// over the rows from `first` on, or over those that the index names.
template <class T>
struct Operand {
  const T* data;
  int64_t stride;
  int M, K;
  const int64_t* index = nullptr;
  uint32_t divisor = 1;
  int64_t first = 0;

  __device__ __forceinline__ const T* row(int i) const {
    const int64_t at = first + i;
    return data + (index ? static_cast<int64_t>(static_cast<uint32_t>(index[at]) / divisor) : at) * stride;
  }
};

// Copies the slice at (m, k) to shared memory, with zeros beyond the bounds.
template <bool kKMajor, class T>
__device__ __forceinline__ void load_tile(T* to, const Operand<T>& from, int m, int k) {
  constexpr int kPieces = (kKMajor ? kDepth : kTile) / 8;
#pragma unroll
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth / 8; at += kThreads) {
    const int slow = at / kPieces, fast = at % kPieces * 8;
    const int l = m + (kKMajor ? slow : fast), s = k + (kKMajor ? fast : slow);
    const bool inside = l < from.M && s < from.K;
    const T* const source = inside ? from.row(kKMajor ? l : s) + (kKMajor ? s : l) : from.data;
    copy_async(to + slow * (kKMajor ? kPitchK : kPitchM) + fast, source, inside);
  }
}

template <bool kKMajor, class T>
__device__ __forceinline__ FragmentA fragment_a(const T* tile, int m, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kKMajor)
    at = load_matrices(tile + (m + lane % 16) * kPitchK + k + lane / 16 * 8);
  else
    at = load_matrices_transposed(tile + (k + lane / 16 * 8 + lane % 8) * kPitchM + m + lane / 8 % 2 * 8);
  return {{at.x, at.y, at.z, at.w}};
}

// Two fragments of 8 columns each.
template <bool kKMajor, class T>
__device__ __forceinline__ void fragments_b(FragmentB* out, const T* tile, int m, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 at;
  if constexpr (kKMajor)
    at = load_matrices(tile + (m + lane / 16 * 8 + lane % 8) * kPitchK + k + lane / 8 % 2 * 8);
  else
    at = load_matrices_transposed(tile + (k + lane / 8 % 2 * 8 + lane % 8) * kPitchM + m + lane / 16 * 8);
  out[0] = {{at.x, at.y}};
  out[1] = {{at.z, at.w}};
}

struct Sums {
  float at[kWarpM / 16][kWarpN / 8][4] = {};
};

template <bool kKMajorA, bool kKMajorB, class T>
__device__ __forceinline__ void multiply_tile(Sums& sums, const T* a, const T* b, int m, int column) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    FragmentA left[kWarpM / 16];
    FragmentB right[kWarpN / 8];
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) left[i] = fragment_a<kKMajorA>(a, m + i * 16, k);
#pragma unroll
    for (int j = 0; j < kWarpN / 8; j += 2) fragments_b<kKMajorB>(right + j, b, column + j * 8, k);
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i)
#pragma unroll
      for (int j = 0; j < kWarpN / 8; ++j) multiply_add<T>(sums.at[i][j], left[i], right[j]);
  }
}

// Sums over `tiles` slices of K. load(to a, to b, number) starts the copy of a slice while the two before it arrive or
// are multiplied. `memory`: kTileBytes of shared memory, free for the next sum on return.
template <class T, bool kKMajorA, bool kKMajorB, class Load>
__device__ __forceinline__ Sums sum_tiles(void* memory, int tiles, int m, int column, const Load& load) {
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
    __syncthreads();  // the slice is visible, and its predecessor is multiplied and may be overwritten
    fetch(tile + kStages - 1);
    multiply_tile<kKMajorA, kKMajorB>(sums, a_of(tile), a_of(tile) + kTileElements, m, column);
  }
  __syncthreads();
  return sums;
}

template <class C>
struct Result {
  C* data;
  int64_t stride;
  int M, columns;  // a multiple of 8
  bool accumulate;
};

template <class C>
__device__ __forceinline__ void store(const Result<C>& to, const Sums& sums, int m, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i)
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int l = m + i * 16 + lane / 4 + half * 8, n = column + j * 8 + lane % 4 * 2;
        if (l >= to.M || n >= to.columns) continue;
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

__device__ __forceinline__ int warp_m() {
  return static_cast<int>(threadIdx.x) / 32 / (kTile / kWarpN) * kWarpM;
}
__device__ __forceinline__ int warp_n() {
  return static_cast<int>(threadIdx.x) / 32 % (kTile / kWarpN) * kWarpN;
}

// Whether rows of 16-bit numbers are multiples of, and aligned to, 16 bytes, which is the size of a copy.
inline bool in_pieces(const Tensor& tensor) {
  const int dims = tensor.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0 && tensor.size(dims - 1) % 8 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && tensor.stride(dim) % 8 == 0;
  return whole;
}

inline int tiles_of(int64_t size) {
  return static_cast<int>((size + kTile - 1) / kTile);
}

// Launches a kernel of kThreads with kTileBytes + `more` bytes of shared memory.
template <class... Parameters, class... Args>
void launch_tiles(Stream& stream, void (*kernel)(Parameters...), unsigned blocks, int more, const Args&... args) {
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileBytes + more),
                     "asking for shared memory");
  kernel<<<blocks, kThreads, static_cast<size_t>(kTileBytes + more), native(stream)>>>(args...);
}

template <class T>
Operand<T> operand(const Tensor& matrix, int64_t M, int64_t K) {
  return {ptr<const T>(matrix), matrix.stride(matrix.shape().dims() - 2), static_cast<int>(M), static_cast<int>(K)};
}

template <class C>
Result<C> result(const Tensor& matrix, bool accumulate) {
  const int dims = matrix.shape().dims();
  return {ptr<C>(matrix), matrix.stride(dims - 2), static_cast<int>(matrix.size(dims - 2)),
          static_cast<int>(matrix.size(dims - 1)), accumulate};
}

}  // namespace witan::kernels::cuda::warp_tiles
