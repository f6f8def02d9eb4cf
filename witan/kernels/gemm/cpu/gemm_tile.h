// The inner kernel of every matrix product: a tile of C stays in registers while a strip of A and a panel of B, both
// packed, stream past it (Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).
#pragma once

#include <array>

#include "witan/kernels/gemm/cpu/gemm_vector.h"

namespace witan::kernels::cpu {

// The tile, two vectors of B and one broadcast element of A fill the registers: 32 with AVX-512, otherwise 16.
inline constexpr int kTileRows = kVectorBytes == 64 ? 14 : 6;
inline constexpr int kStripRows = kVectorBytes == 64 ? 16 : 8;  // kTileRows padded to whole vectors
template <class T>
inline constexpr int kPanelColumns = 2 * kLanes<T>;

// tile [R, kPanelColumns] = sum_k a[k, :R]^T b[k, :], with a [depth, kStripRows], b [depth, kPanelColumns], and the
// tile's rows `stride` apart. Each element is one chain of multiply-adds in the order of k, the same for every R.
template <class T, int R>
void multiply_tile(T* __restrict tile, int64_t stride, const T* __restrict a, const T* __restrict b, int64_t depth) {
  constexpr int L = kLanes<T>;
  Vector<T> sums[R][2] = {};
  for (int64_t k = 0; k < depth; ++k, a += kStripRows, b += kPanelColumns<T>) {
    Vector<T> left, right;
    load(left, b);
    load(right, b + L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      sums[i][0] += a[i] * left;
      sums[i][1] += a[i] * right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    store(tile + i * stride, sums[i][0]);
    store(tile + i * stride + L, sums[i][1]);
  }
}

template <class T>
using TileKernel = void(T* __restrict, int64_t, const T* __restrict, const T* __restrict, int64_t);

// The kernel for R rows, 1 <= R <= kTileRows.
template <class T>
TileKernel<T>* tile_kernel(int64_t rows) {
  static constexpr auto kernels = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<TileKernel<T>*, sizeof...(I)>{&multiply_tile<T, I + 1>...};
  }
  (std::make_integer_sequence<int, kTileRows>());
  return kernels[static_cast<size_t>(rows - 1)];
}

}  // namespace witan::kernels::cpu
