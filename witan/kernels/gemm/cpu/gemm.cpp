#include "witan/kernels/gemm/cpu/gemm.h"

#include <algorithm>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels::cpu {

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

}  // namespace witan::kernels::cpu
