// Row-wise loops over [T, D] in which some threads hold each row in registers: a warp for short rows, a block for long
// ones. They stride over the rows and load the next one before they process the current one. Rows longer than the
// registers hold are read again in every pass.
#pragma once

#include <type_traits>

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// `Lanes` threads hold P packs of N elements each; Whole: they hold the whole row.
template <int Lanes, int N_, int P_, bool Whole>
struct RowShape {
  static constexpr bool kWhole = Whole;
  static constexpr int kLanes = Lanes, N = N_, P = P_;
  static constexpr int kThreads = Lanes == 32 ? 256 : Lanes;
  static constexpr int kRows = kThreads / Lanes;  // per block
  static constexpr int64_t kChunk = static_cast<int64_t>(Lanes) * N * P;

  // The number of blocks for `rows`, at most `per_sm` per multiprocessor.
  static unsigned blocks(Stream& stream, int64_t rows, int per_sm) {
    return blocks_for(stream, (rows + kRows - 1) / kRows, per_sm);
  }
  // If each warp has a row, some warps of the last block may have none.
  __device__ static int64_t row() {
    return Lanes == 32 ? static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32 : blockIdx.x;
  }
  __device__ static int64_t stride() { return static_cast<int64_t>(gridDim.x) * kRows; }
  // The first element of a thread's pack p in the chunk that begins at `first`.
  __device__ static int64_t element(int64_t first, int p) {
    const int lane = Lanes == 32 ? threadIdx.x % 32 : threadIdx.x;
    return first + (p * Lanes + lane) * N;
  }
  // The sum over the threads of a row, which all of them get. One barrier suffices, because `turn` alternates between
  // two arrays: the first sum to write to the same memory is the one after the next.
  template <class A>
  __device__ static A sum(A value, int& turn) {
    value = warp_sum(value);
    if constexpr (Lanes > 32) {
      __shared__ A shared[2][Lanes / 32];
      if (threadIdx.x % 32 == 0) shared[turn][threadIdx.x / 32] = value;
      __syncthreads();
      value = 0;
#pragma unroll
      for (int i = 0; i < Lanes / 32; ++i) value += shared[turn][i];
      turn ^= 1;
    }
    return value;
  }
};

// The least number of resident blocks per SM, which bounds registers: with two rows loading, few threads suffice.
template <class Shape>
inline constexpr int kFewBlocks = 512 / Shape::kThreads;
template <class Shape>  // for kernels that hold little of each row
inline constexpr int kManyBlocks = (!Shape::kWhole        ? 512
                                    : Shape::kLanes == 32 ? 768
                                                          : 1024) /
                                   Shape::kThreads;

// A thread's share of one chunk of a row; elements beyond the row's end are zeros, and are not stored. Packs of 16-bit
// numbers are kept as words of two elements: otherwise the compiler uses a register for each.
template <class T, class Shape>
class RowChunk {
  static constexpr bool kPairs = sizeof(T) == 2 && Shape::N == kPack<T>;
  using Word = std::conditional_t<kPairs, uint32_t, T>;
  static constexpr int kWords = kPairs ? Shape::N / 2 : Shape::N;
  Pack<Word, kWords> packs[Shape::P];

 public:
  __device__ __forceinline__ void load(const T* row, int64_t first, int64_t D) {
#pragma unroll
    for (int p = 0; p < Shape::P; ++p) {
      const int64_t d = Shape::element(first, p);
      if (d < D)
        packs[p] = load_pack<Word, kWords>(reinterpret_cast<const Word*>(row + d));
      else
        packs[p] = {};
    }
  }
  __device__ __forceinline__ void store(T* row, int64_t first, int64_t D) const {
#pragma unroll
    for (int p = 0; p < Shape::P; ++p) {
      const int64_t d = Shape::element(first, p);
      if (d < D) store_pack<Word, kWords>(reinterpret_cast<Word*>(row + d), packs[p]);
    }
  }
  __device__ __forceinline__ Acc<T> operator()(int p, int j) const {
    if constexpr (kPairs) {
      const uint32_t pair = packs[p].at[j / 2];
      if constexpr (std::is_same_v<T, __half>)
        return __half2float(__ushort_as_half(static_cast<uint16_t>(j % 2 ? pair >> 16 : pair)));
      else
        return __uint_as_float(j % 2 ? pair & 0xffff0000u : pair << 16);
    } else {
      return convert<Acc<T>>(packs[p].at[j]);
    }
  }
  __device__ __forceinline__ void set(int p, int j, Acc<T> value) {
    if constexpr (kPairs) {
      uint32_t& pair = packs[p].at[j / 2];
      const T rounded = convert<T>(value);
      const uint32_t bits = reinterpret_cast<const uint16_t&>(rounded);
      pair = j % 2 ? (pair & 0xffffu) | bits << 16 : (pair & 0xffff0000u) | bits;
    } else {
      packs[p].at[j] = convert<T>(value);
    }
  }
  // Keeps the compiler from holding elements in converted form, which takes twice the registers.
  __device__ __forceinline__ void stay_packed() {
    if constexpr (kPairs)
#pragma unroll
      for (int p = 0; p < Shape::P; ++p)
#pragma unroll
        for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(packs[p].at[i]));
  }
};

// Calls body(t, held) for every row of these threads. `load(t, held)` loads their part of a row, one row ahead.
template <class Shape, class Held, class Load, class Body>
__device__ __forceinline__ void for_rows(int64_t rows, const Load& load, const Body& body) {
  int64_t t = Shape::row();
  if (t >= rows) return;
  Held next;
  if constexpr (Shape::kWhole) load(t, next);
  for (; t < rows; t += Shape::stride()) {
    Held held = next;
    if constexpr (Shape::kWhole)
      if (t + Shape::stride() < rows) load(t + Shape::stride(), next);
    body(t, held);
  }
}

// Calls body(first) for the first element of every chunk of a row.
template <class Shape, class Body>
__device__ __forceinline__ void for_chunks(int64_t D, const Body& body) {
  if constexpr (Shape::kWhole)
    body(int64_t{0});
  else
    for (int64_t first = 0; first < D; first += Shape::kChunk) body(first);
}

// Calls body(p, j) for every element of a thread's share of a chunk.
template <class Shape, class Body>
__device__ __forceinline__ void for_chunk(const Body& body) {
#pragma unroll
  for (int p = 0; p < Shape::P; ++p)
#pragma unroll
    for (int j = 0; j < Shape::N; ++j) body(p, j);
}

// Calls launch(RowShape) with the shape that suits rows of D elements of T at these addresses.
template <class T, class Launch, class... Tensors>
void with_row_shape(int64_t D, const Launch& launch, const Tensors&... tensors) {
  constexpr int N = kPack<T>;
  if (!(packs<T>(ptr<T>(tensors), D) && ...)) return launch(RowShape<256, 1, 4, false>());
  const int64_t row = D / N;  // packs
  if (row <= 64) return launch(RowShape<32, N, 2, true>());
  if (row <= 128) return launch(RowShape<64, N, 2, true>());
  if (row <= 256) return launch(RowShape<128, N, 2, true>());
  if (row <= 512) return launch(RowShape<256, N, 2, true>());
  if (row <= 1024) return launch(RowShape<512, N, 2, true>());
  launch(RowShape<256, N, 4, false>());
}

}  // namespace witan::kernels::cuda
