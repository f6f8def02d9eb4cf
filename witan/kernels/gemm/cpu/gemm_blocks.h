// The CPU twins of the matrix products, and their division into tasks and blocks for the inner kernel.
//
// A task is a block of C: rows x columns of one product. It walks K in blocks of fixed size, packs a block of B that
// stays in the L2 cache (with few rows, B is read in place) and, strip by strip, A. K is never divided between tasks,
// and its blocks begin at fixed places, so an element of C has the same bits for any number of threads, rows, columns
// and products.
#pragma once

#include <cassert>
#include <vector>

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cpu {

template <class T>
struct Matrix {
  T* data;
  int64_t stride;  // between rows as stored
  Transpose transpose = Transpose::no;
};

// c [M, N] (=|+=) op(a) [M, K] op(b) [K, N].
template <class S, class C>
struct Product {
  Matrix<C> c;
  Matrix<const S> a, b;
  int64_t M, N, K;
};

// Scratch for multiply(): memory for each thread of the stream's pool, for products of any M and K <= most_depth.
Tensor gemm_workspace(Stream& stream, DType a, DType c, int64_t most_depth);

template <class S, class C>
void multiply(Stream& stream, Write write, const std::vector<Product<S, C>>& products, const Tensor& workspace);

// Calls body.template operator()<S, C>() with the stored types of a and c.
template <class Body>
void dispatch_product(DType a, DType c, Body&& body) {
  if (a == DType::bf16 && c == DType::f32) return body.template operator()<bf16, float>();
  if (a == DType::f16 && c == DType::f32) return body.template operator()<f16, float>();
  assert(a == c);
  dispatch_floating(a, [&]<class T>() { body.template operator()<T, T>(); });
}

// Callers allocate the twins' workspace with gemm_workspace(), so that the meta device counts it too.
inline constexpr int64_t kSymmetricRows = 128;  // rows per strip of a symmetric product

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, const Tensor& workspace);
void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& product, const Tensor& workspace);

}  // namespace witan::kernels::cpu
