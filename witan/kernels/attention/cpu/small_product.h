// Products of matrices so small that they are in cache already: nothing is packed, and either dim of A may be
// contiguous. gemm_tile.h is for large ones.
#pragma once

#include "witan/kernels/gemm/cpu/gemm_vector.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

// A(m, k) = data[m * row + k * column]: a matrix or, with the strides exchanged, its transpose.
template <class A>
struct Strided {
  const A* data;
  int64_t row, column;
};

// Rows of contiguous elements, `stride` apart.
template <class A>
struct Rows {
  A* data;
  int64_t stride;
};

namespace small_product_detail {

// R rows and V vectors of C stay in registers while k runs.
template <int R, int V, class A>
inline void multiply_block(int64_t K, Strided<A> a, Rows<const A> b, Rows<A> c, Write how) {
  constexpr int L = kLanes<A>;
  Vector<A> sum[R][V] = {};
  if (how == Write::accumulate) {
    for (int m = 0; m < R; ++m)
      for (int v = 0; v < V; ++v) load(sum[m][v], c.data + m * c.stride + v * L);
  }
  for (int64_t k = 0; k < K; ++k) {
    Vector<A> row[V];
    for (int v = 0; v < V; ++v) load(row[v], b.data + k * b.stride + v * L);
#pragma GCC unroll 8
    for (int m = 0; m < R; ++m)
      for (int v = 0; v < V; ++v) sum[m][v] += a.data[m * a.row + k * a.column] * row[v];
  }
  for (int m = 0; m < R; ++m)
    for (int v = 0; v < V; ++v) store(c.data + m * c.stride + v * L, sum[m][v]);
}

template <int V, class A>
void multiply_columns(int64_t M, int64_t K, Strided<A> a, Rows<const A> b, Rows<A> c, Write how) {
  const auto block = [&]<int R>() {
    multiply_block<R, V>(K, a, b, c, how);
    a.data += R * a.row;
    c.data += R * c.stride;
  };
  for (; M >= 8; M -= 8) block.template operator()<8>();
  if (M & 4) block.template operator()<4>();
  if (M & 2) block.template operator()<2>();
  if (M & 1) block.template operator()<1>();
}

}  // namespace small_product_detail

// c[m,n] (=|+=) sum_k a(m,k) b[k,n], for N a multiple of kLanes. Each element is one chain of multiply-adds in the
// order of k, so its bits do not depend on M and N.
template <class A>
void multiply(int64_t M, int64_t N, int64_t K, Strided<A> a, Rows<const A> b, Rows<A> c, Write how) {
  constexpr int64_t L = kLanes<A>;
  for (int64_t n = 0; n < N; n += 2 * L, b.data += 2 * L, c.data += 2 * L) {
    if (n + 2 * L <= N) {
      small_product_detail::multiply_columns<2>(M, K, a, b, c, how);
    } else {
      small_product_detail::multiply_columns<1>(M, K, a, b, c, how);
    }
  }
}

}  // namespace witan::kernels::cpu
