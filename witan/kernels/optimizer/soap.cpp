#include "witan/kernels/optimizer/soap.h"

#include <cassert>

#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels {
namespace {

// Room for syevd, or for two matrices, v once more, and what blocks of rows and the order need.
int64_t basis_work(int64_t n, int64_t of_v) {
  return 4 * n * n + 96 * n + 1024 + of_v;
}

}  // namespace

void soap_moments(Stream& stream, const SoapMoments& t, const Tensor& step, const SoapMomentArgs& args) {
  const Cost cost{5.0 * static_cast<double>(t.outer.elements()),
                  bytes_of(t.gradient, t.outer, t.scaled) + 2 * bytes_of(t.m)};
  WITAN_LAUNCH(stream, soap_moments, cost, t, step, args);
}

void soap_direction(Stream& stream, const Tensor& direction, const Tensor& v, const Tensor& gradient, const Tensor& m,
                    const Tensor& step, const SoapDirectionArgs& args) {
  const Cost cost{9.0 * static_cast<double>(v.elements()), bytes_of(direction, gradient, m) + 2 * bytes_of(v)};
  WITAN_LAUNCH(stream, soap_direction, cost, direction, v, gradient, m, step, args);
}

void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& step,
                 const BasisArgs& args) {
  assert(basis.contiguous() && factor.contiguous() && v.contiguous());
  const int64_t n = factor.size(0);
  const auto size = static_cast<double>(n);
  const double share = 1 / static_cast<double>(args.frequency);
  const Cost cost{share * 6 * size * size * size, share * (4 * bytes_of(factor) + 2 * bytes_of(v))};
  const Tensor work = stream.empty({basis_work(n, v.elements())}, factor.dtype(), MemoryTag::workspace);
  const Tensor packed =
      stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, factor.dtype(), factor.dtype(), n);
  charge(stream, "renew_basis", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(renew_basis, stream, basis, v, factor, work, step, args);
    else
      cpu::renew_basis(stream, basis, v, factor, work, packed, step, args);
  });
}

}  // namespace witan::kernels
