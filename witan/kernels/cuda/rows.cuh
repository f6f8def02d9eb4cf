// Rows of [T, D], each the business of some threads that hold it in registers: a warp for short rows, a block for long
// ones. A row longer than they hold is read again in every pass.
#pragma once

#include "witan/kernels/cuda/common.cuh"

namespace witan::kernels::cuda {

// `Lanes` threads hold P packs of N elements each; Whole: they hold the whole row.
template <int Lanes, int N_, int P_, bool Whole>
struct RowShape {
  static constexpr bool kWhole = Whole;
  static constexpr int kLanes = Lanes, N = N_, P = P_;
  static constexpr int kThreads = Lanes == 32 ? 256 : Lanes;
  static constexpr int kRows = kThreads / Lanes;                    // of a block
  static constexpr int kBlocks = (P <= 2 ? 1024 : 256) / kThreads;  // of a multiprocessor, at least: bounds registers
  static constexpr int64_t kChunk = static_cast<int64_t>(Lanes) * N * P;

  static unsigned blocks(int64_t rows) { return static_cast<unsigned>((rows + kRows - 1) / kRows); }
  // Where rows are a warp's, some warps of the last block have none.
  __device__ static int64_t row() {
    return Lanes == 32 ? static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32 : blockIdx.x;
  }
  // The first element of a thread's pack p in the chunk that begins at `first`.
  __device__ static int64_t element(int64_t first, int p) {
    const int lane = Lanes == 32 ? threadIdx.x % 32 : threadIdx.x;
    return first + (p * Lanes + lane) * N;
  }
  template <class A>
  __device__ static A sum(A value) {
    if constexpr (Lanes == 32) {
      return warp_sum(value);
    } else {
      __shared__ A shared[Lanes / 32];
      return block_sum(value, shared);
    }
  }
};

// A thread's share of one chunk of a row; beyond the row's end there are zeros, which are not stored.
template <class T, class Shape>
struct RowChunk {
  Pack<T, Shape::N> packs[Shape::P];

  __device__ __forceinline__ void load(const T* row, int64_t first, int64_t D) {
#pragma unroll
    for (int p = 0; p < Shape::P; ++p) {
      const int64_t d = Shape::element(first, p);
      if (d < D)
        packs[p] = load_pack<T, Shape::N>(row + d);
      else
        packs[p] = {};
    }
  }
  __device__ __forceinline__ void store(T* row, int64_t first, int64_t D) const {
#pragma unroll
    for (int p = 0; p < Shape::P; ++p) {
      const int64_t d = Shape::element(first, p);
      if (d < D) store_pack<T, Shape::N>(row + d, packs[p]);
    }
  }
  __device__ __forceinline__ Acc<T> operator()(int p, int j) const {
    return convert<Acc<T>>(packs[p].at[j]);
  }
  __device__ __forceinline__ void set(int p, int j, Acc<T> value) {
    packs[p].at[j] = convert<T>(value);
  }
};

// body(first) for the first element of every chunk of a row.
template <class Shape, class Body>
__device__ __forceinline__ void for_chunks(int64_t D, const Body& body) {
  if constexpr (Shape::kWhole)
    body(int64_t{0});
  else
    for (int64_t first = 0; first < D; first += Shape::kChunk) body(first);
}

// body(p, j) for every element of a thread's share of a chunk.
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
  if (row <= 128) return launch(RowShape<32, N, 4, true>());
  if (row <= 256) return launch(RowShape<128, N, 2, true>());
  if (row <= 1024) return launch(RowShape<256, N, 4, true>());
  launch(RowShape<256, N, 4, false>());
}

}  // namespace witan::kernels::cuda
