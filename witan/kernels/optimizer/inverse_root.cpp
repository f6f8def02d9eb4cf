#include "witan/kernels/optimizer/inverse_root.h"

#include <cassert>
#include <cmath>

#include "witan/kernels/gemm/cpu/gemm_blocks.h"

namespace witan::kernels {
namespace {

// Elements of the factor's dtype that a root needs as workspace. Newton's iteration: four matrices and, on a GPU, some
// scalars. LAPACK's syevd: the eigenvectors, its work and the eigenvalues, including its integers.
int64_t work_elements(int64_t m, RootMethod method) {
  return method == RootMethod::newton ? 4 * m * m + 1024 : 4 * m * m + 16 * m + 64;
}

double flops(double m, const RootArgs& args) {
  if (args.method == RootMethod::eigen) return 11 * m * m * m;  // a third of it for the root's product
  const auto p = std::llround(1 / args.exponent);
  return 2 * m * m * m * static_cast<double>((1 + PowerProducts(p).count()) * newton_iterations(DType::f32, p));
}

}  // namespace

double newton_ridge(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : 1e-6;
}

// An eigenvalue much smaller than 1 grows by (1 + 1/p)^p >= 2 per iteration, and then converges quadratically.
int64_t newton_iterations(DType dtype, int64_t p) {
  const double grows = std::pow(1 + 1 / static_cast<double>(p), static_cast<double>(p));
  return static_cast<int64_t>(std::ceil(std::log(1 / newton_ridge(dtype)) / std::log(grows))) + 6;
}

void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& step, const RootArgs& args) {
  const int64_t m = factor.size(0);
  assert(factor.contiguous() && root.contiguous() && root.dtype() == factor.dtype() && factor.size(1) == m);
  assert(args.method == RootMethod::newton || !stream.plans_for_cuda());
  const double share = 1 / static_cast<double>(args.schedule.frequency);
  const Cost cost{share * flops(static_cast<double>(m), args), share * 3 * bytes_of(factor)};
  const Tensor work = stream.empty({work_elements(m, args.method)}, factor.dtype(), MemoryTag::workspace);
  const Tensor packed =
      stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, factor.dtype(), factor.dtype(), m);
  charge(stream, "inverse_root", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(inverse_root, stream, root, factor, work, step, args);
    else
      cpu::inverse_root(stream, root, factor, work, packed, step, args);
  });
}

}  // namespace witan::kernels
