#include "witan/kernels/gemm/batched_gemm.h"

#include <algorithm>
#include <cassert>

#include "witan/kernels/gemm/cpu/batched_gemm.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels {

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
  assert(d.contiguous() && p.a.contiguous() && p.b.contiguous() && p.a.dtype() == d.dtype());
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
