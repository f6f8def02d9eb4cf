#include <algorithm>
#include <cassert>

#include "witan/kernels/common/product_observer.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels {
namespace {

double flops_of(const Tensor& c, const Tensor& a, Transpose transpose_a) {
  const int64_t K = a.size(transpose_a == Transpose::yes ? 0 : 1);
  return 2.0 * static_cast<double>(c.elements()) * static_cast<double>(K);
}

}  // namespace

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b) {
  const int64_t M = c.size(0), N = c.size(1), K = a.size(transpose_a == Transpose::yes ? 0 : 1);
  assert(a.size(transpose_a == Transpose::yes ? 1 : 0) == M && a.stride(1) == 1);
  assert(b.size(transpose_b == Transpose::yes ? 1 : 0) == K && b.size(transpose_b == Transpose::yes ? 0 : 1) == N);
  assert(b.stride(1) == 1 && c.stride(1) == 1 && a.dtype() == b.dtype());
  if (auto* const observer = ProductObserver::of(stream);
      observer != nullptr && transpose_a == Transpose::no && transpose_b == Transpose::yes)
    observer->product(a, b);
  const Cost cost{flops_of(c, a, transpose_a), bytes_of(a, b, c) + (write == Write::accumulate ? bytes_of(c) : 0.0)};
  const Tensor packed = stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, a.dtype(), c.dtype(), K);
  charge(stream, "gemm", cost,
         [&] {
           if (stream.is_cuda())
             WITAN_CALL_CUDA(gemm, stream, c, write, a, transpose_a, b, transpose_b);
           else
             cpu::gemm(stream, c, write, a, transpose_a, b, transpose_b, packed);
         },
         {M, N, K, 1});
}

void gemm_with_bias(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias) {
  assert(c.contiguous() && bias.shape() == Shape{c.size(1)} && bias.dtype() == c.dtype());
  if (!stream.plans_for_cuda()) {
    repeat_row(stream, c, bias);
    return gemm(stream, c, Write::accumulate, a, transpose_a, b, transpose_b);
  }
  charge(stream, "gemm", {flops_of(c, a, transpose_a), bytes_of(a, b, c, bias)},
         [&] { WITAN_CALL_CUDA(gemm_with_bias, stream, c, a, transpose_a, b, transpose_b, bias); },
         {c.size(0), c.size(1), a.size(transpose_a == Transpose::yes ? 0 : 1), 1});
}

void repeat_row(Stream& stream, const Tensor& y, const Tensor& row) {
  assert(y.contiguous() && y.size(1) == row.size(0) && y.dtype() == row.dtype());
  WITAN_LAUNCH(stream, repeat_row, (Cost{0, bytes_of(y, row)}), y, row);
}

double symmetric_share(int64_t m) {
  double blocks = 0;
  for (int64_t row = 0; row < m; row += cpu::kSymmetricRows) {
    const int64_t end = std::min(row + cpu::kSymmetricRows, m);
    blocks += static_cast<double>((end - row) * end);
  }
  return blocks / static_cast<double>(m * m);
}

void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& p) {
  const bool ta = p.transpose_a == Transpose::yes, tb = p.transpose_b == Transpose::yes;
  const int64_t K = p.a.size(ta ? 1 : 2);
  assert(d.stride(2) == 1 && p.a.stride(2) == 1 && p.b.stride(2) == 1 && p.a.dtype() == d.dtype());
  assert(d.contiguous() || (p.alpha == 1 && !p.c.defined() && p.identity == 0 && !p.symmetric));
  assert(p.a.shape() == (ta ? Shape{d.size(0), K, d.size(1)} : Shape{d.size(0), d.size(1), K}));
  assert(p.b.shape() == (tb ? Shape{d.size(0), d.size(2), K} : Shape{d.size(0), K, d.size(2)}));
  assert(p.b.dtype() == d.dtype() && p.c.defined() == (p.beta != 0));
  assert(!p.c.defined() || (p.c.contiguous() && p.c.shape() == d.shape() && p.c.dtype() == d.dtype()));
  assert((!p.symmetric && p.identity == 0) || d.size(1) == d.size(2));
  const double share = p.symmetric && !stream.plans_for_cuda() ? symmetric_share(d.size(1)) : 1;
  const Cost cost{share * 2.0 * static_cast<double>(d.elements()) * static_cast<double>(K), bytes_of(d, p.a, p.b, p.c)};
  const Tensor packed = stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, d.dtype(), d.dtype(), K);
  charge(stream, "batched_gemm", cost,
         [&] {
           if (stream.is_cuda())
             WITAN_CALL_CUDA(batched_gemm, stream, d, p);
           else
             cpu::batched_gemm(stream, d, p, packed);
         },
         {d.size(1), d.size(2), K, d.size(0)});
}

}  // namespace witan::kernels
