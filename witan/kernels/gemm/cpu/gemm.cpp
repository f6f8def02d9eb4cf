#include <algorithm>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels::cpu {
namespace {

// d = alpha d + beta c
template <class T>
void combine(Stream& stream, const Tensor& d, double alpha, const Tensor& c, double beta) {
  using A = Accumulator<T>;
  T* out = d.data<T>();
  const T* add = c.defined() ? c.data<T>() : nullptr;
  stream.pool().for_ranges(d.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
    if (add == nullptr) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], A(alpha) * A(out[i]));
      return;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) store(out[i], A(alpha) * A(out[i]) + A(beta) * A(add[i]));
  });
}

// d += value I
template <class T>
void add_identity(const Tensor& d, double value) {
  using A = Accumulator<T>;
  const int64_t m = d.size(1);
  for (int64_t i = 0; i < d.size(0); ++i)
    for (int64_t r = 0; r < m; ++r) {
      T& at = d.data<T>()[(i * m + r) * m + r];
      store(at, A(at) + A(value));
    }
}

// Copies the lower triangle of matrices [m, m] to the upper one, except inside strips of rows that are computed whole.
template <class T>
void mirror(Stream& stream, const Tensor& d) {
  const int64_t m = d.size(1), strips = (m + kSymmetricRows - 1) / kSymmetricRows;
  stream.pool().run(d.size(0) * strips, [&](int64_t task) {
    T* matrix = d.data<T>() + task / strips * m * m;
    const int64_t first = task % strips * kSymmetricRows, end = std::min(first + kSymmetricRows, m);
    for (int64_t r = end; r < m; ++r)
      for (int64_t c = first; c < end; ++c) matrix[c * m + r] = matrix[r * m + c];
  });
}

template <class T>
std::vector<Product<T, T>> products_of(const Tensor& d, const BatchedProduct& p) {
  const int64_t M = d.size(1), N = d.size(2), K = p.a.size(p.transpose_a == Transpose::yes ? 1 : 2);
  const int64_t rows = p.symmetric ? kSymmetricRows : M, apart = p.transpose_a == Transpose::yes ? 1 : p.a.stride(1);
  std::vector<Product<T, T>> products;
  for (int64_t i = 0; i < d.size(0); ++i)
    for (int64_t row = 0; row < M; row += rows) {
      const int64_t end = std::min(row + rows, M);
      products.push_back({.c = {d.data<T>() + i * d.stride(0) + row * d.stride(1), d.stride(1)},
                          .a = {p.a.data<T>() + i * p.a.stride(0) + row * apart, p.a.stride(1), p.transpose_a},
                          .b = {p.b.data<T>() + i * p.b.stride(0), p.b.stride(1), p.transpose_b},
                          .M = end - row,
                          .N = p.symmetric ? end : N,
                          .K = K});
    }
  return products;
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, const Tensor& workspace) {
  const int64_t K = a.size(transpose_a == Transpose::yes ? 0 : 1);
  dispatch_product(a.dtype(), c.dtype(), [&]<class S, class C>() {
    multiply<S, C>(stream, write,
                   {{.c = {c.data<C>(), c.stride(0)},
                     .a = {a.data<S>(), a.stride(0), transpose_a},
                     .b = {b.data<S>(), b.stride(0), transpose_b},
                     .M = c.size(0),
                     .N = c.size(1),
                     .K = K}},
                   workspace);
  });
}

void repeat_row(Stream& stream, const Tensor& y, const Tensor& row) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    for_rows(stream, y, [&, N = y.size(1)](int64_t t) { std::copy_n(row.data<T>(), N, y.data<T>() + t * N); });
  });
}

void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& p, const Tensor& workspace) {
  dispatch_floating(d.dtype(), [&]<class T>() {
    multiply<T, T>(stream, Write::overwrite, products_of<T>(d, p), workspace);
    if (p.symmetric) mirror<T>(stream, d);
    if (p.alpha != 1 || p.c.defined()) combine<T>(stream, d, p.alpha, p.c, p.beta);
    if (p.identity != 0) add_identity<T>(d, p.identity);
  });
}

}  // namespace witan::kernels::cpu
