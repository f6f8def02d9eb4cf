// Inverse roots of symmetric positive semi-definite matrices: Shampoo's preconditioners.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/optimizer/shampoo.h"

namespace witan::kernels {

enum class RootMethod : uint8_t {
  // f = Q diag(l) Q^T of factor / c + eps I; where the smallest l is below eps, all are raised until it is eps, since
  // roundings make eigenvalues of 0 negative; root = Q diag(l^-exponent) Q^T. As Distributed Shampoo's
  // matrix_inverse_root_eigen, by LAPACK's syevd. On the CPU alone.
  eigen,
  // The coupled inverse Newton iteration (Guo & Higham, 2006; Iannazzo, 2006), as matrix_inverse_root_newton: products
  // of matrices alone. exponent is 1/p of a whole p. Of factor / c + ridge I, where ridge is eps or so much of the norm
  // of factor / c (newton_ridge) that the iteration, in this dtype, keeps its digits; so many iterations
  // (newton_iterations) that an eigenvalue of that size has converged.
  newton,
};

struct RootArgs {
  RootMethod method;
  double exponent;  // above 0
  double eps;
  double beta;  // of the factor's average: c = 1 - beta^update, or 1 where beta is 1
  RootSchedule schedule;
  bool due;  // at this update, as the host knows: on a CUDA device, where it does not read `step`, it decides alone
};

// How T^p M is multiplied in Newton's iteration: T is squared as long as p is even, then multiplied to M.
struct PowerProducts {
  int64_t squares = 0, factors;

  explicit PowerProducts(int64_t p) : factors(p) {
    for (; factors > 1 && factors % 2 == 0; factors /= 2) ++squares;
  }
  int64_t count() const { return squares + factors; }
};

double newton_ridge(DType dtype);
int64_t newton_iterations(DType dtype, int64_t p);

// root = (factor / c)^-exponent, when the schedule says so and the step is not skipped; else root stays, as it does
// where the result is not finite. factor and root [m, m], contiguous, float32 or float64. The cost is that of a root
// divided by the frequency.
void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& step, const RootArgs& args);

namespace cpu {
// `work` [root_work(m, method)] of the factor's dtype, `packed` of gemm_workspace()
void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& work, const Tensor& packed,
                  const Tensor& step, const RootArgs& args);
}  // namespace cpu
#if WITAN_CUDA
namespace cuda {
void inverse_root(Stream& stream, const Tensor& root, const Tensor& factor, const Tensor& work, const Tensor& step,
                  const RootArgs& args);
}  // namespace cuda
#endif

}  // namespace witan::kernels
