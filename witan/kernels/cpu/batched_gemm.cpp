#include "witan/kernels/cpu/batched_gemm.h"

#include <vector>

#include "witan/kernels/cpu/gemm_blocks.h"
#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/cpu/store.h"

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

}  // namespace

void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& p, const Tensor& workspace) {
  dispatch_floating(d.dtype(), [&]<class T>() {
    const int64_t M = d.size(1), N = d.size(2), K = p.a.size(p.transpose_a == Transpose::yes ? 1 : 2);
    std::vector<Product<T, T>> products;
    for (int64_t i = 0; i < d.size(0); ++i)
      products.push_back({.c = {d.data<T>() + i * M * N, N},
                          .a = {p.a.data<T>() + i * M * K, p.a.size(2), p.transpose_a},
                          .b = {p.b.data<T>() + i * N * K, p.b.size(2), p.transpose_b},
                          .M = M,
                          .N = N,
                          .K = K});
    multiply<T, T>(stream, Write::overwrite, products, workspace);
    if (p.alpha != 1 || p.c.defined()) combine<T>(stream, d, p.alpha, p.c, p.beta);
  });
}

}  // namespace witan::kernels::cpu
