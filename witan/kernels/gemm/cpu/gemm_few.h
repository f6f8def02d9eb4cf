// Inner kernels for few rows of C: an element of B is used too few times to repay packing, so B is read in place. Each
// element of C is the same chain of multiply-adds as in gemm_tile.h.
#pragma once

#include <algorithm>
#include <array>

#include "witan/kernels/gemm/cpu/gemm_pack.h"
#include "witan/kernels/gemm/cpu/gemm_tile.h"

namespace witan::kernels::cpu {

// The vectors of B that R rows process at a time if B's n is adjacent: as many as there are registers for sums, so that
// long runs of memory are read.
template <int R>
inline constexpr int kVectorsAdjacent = [] {
  constexpr int kSums = kVectorBytes == 64 ? 28 : 12;
  return R * 8 <= kSums ? 8 : R * 4 <= kSums ? 4 : 2;
}();

// tile [rows, kLanes] += sum_k a[k, :rows]^T b_k, for the last k, which do not fill a block.
template <class T, class S>
[[gnu::noinline]] void add_last_k(T* tile, int64_t stride, int64_t rows, const T* a, const S* b, int64_t b_stride,
                                  int64_t depth) {
  constexpr int L = kLanes<T>;
  T packed[L * L];
  pack_by_element<L>(packed, PackSource<S>{b, b_stride, true}, depth, L);
  for (int64_t i = 0; i < rows; ++i, tile += stride) {
    Vector<T> sum, b_k;
    load(sum, tile);
    for (int64_t k = 0; k < depth; ++k) {
      load(b_k, packed + k * L);
      sum += a[k * kStripRows + i] * b_k;
    }
    store(tile, sum);
  }
}

// tile [R, kLanes] = sum_k a[k, :R]^T b_k, where lane j of b_k is b[k + j * b_stride]: blocks of B are transposed in
// registers. `ahead` is read next, and is prefetched.
template <class T, class S, int R>
void multiply_transposed(T* __restrict tile, int64_t stride, const T* __restrict a, const S* __restrict b,
                         int64_t b_stride, int64_t depth, Ahead<S> ahead) {
  constexpr int L = kLanes<T>;
  const int64_t whole = depth - depth % L;
  Vector<T> sums[R] = {};
  for (int64_t k = 0; k < whole; k += L) {
    ahead.fetch_block();
    Vector<T> block[L];
    load_rows<T>(block, b + k, b_stride);
    transpose<T>(block);
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j, a += kStripRows)
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) sums[i] += a[i] * block[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) store(tile + i * stride, sums[i]);
  if (whole < depth) add_last_k(tile, stride, R, a, b + whole, b_stride, depth - whole);
}

// tile [R, V vectors] = sum_k a[k, :R]^T b_k, where lane j of b_k is b[k * b_stride + j]. Prefetches `ahead` elements
// after those that are read.
template <class T, class S, int R, int V>
void multiply_adjacent(T* __restrict tile, int64_t stride, const T* __restrict a, const S* __restrict b,
                       int64_t b_stride, int64_t depth, int64_t ahead) {
  constexpr int L = kLanes<T>;
  Vector<T> sums[R][V] = {};
  for (int64_t k = 0; k < depth; ++k, a += kStripRows, b += b_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) __builtin_prefetch(b + ahead + v * L);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      Vector<T> b_k;
      load(b_k, b + v * L);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) sums[i][v] += a[i] * b_k;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(tile + i * stride + v * L, sums[i][v]);
}

// The kernels for a given number of rows.
template <class T, class S>
struct FewRows {
  void (*transposed)(T* __restrict, int64_t, const T* __restrict, const S* __restrict, int64_t, int64_t, Ahead<S>);
  using Adjacent = void(T* __restrict, int64_t, const T* __restrict, const S* __restrict, int64_t, int64_t, int64_t);
  Adjacent *wide, *narrow;  // for tiles of wide_columns, and of kPanelColumns
  int64_t wide_columns;
};

// Requires 1 <= rows <= kTileRows.
template <class T, class S>
const FewRows<T, S>& few_rows(int64_t rows) {
  static constexpr auto kernels = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array{FewRows<T, S>{&multiply_transposed<T, S, I + 1>,
                                    &multiply_adjacent<T, S, I + 1, kVectorsAdjacent<I + 1>>,
                                    &multiply_adjacent<T, S, I + 1, 2>, kVectorsAdjacent<I + 1> * kLanes<T>}...};
  }
  (std::make_integer_sequence<int, kTileRows>());
  return kernels[static_cast<size_t>(rows - 1)];
}

}  // namespace witan::kernels::cpu
