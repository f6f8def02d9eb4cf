// Kernels of SOAP (optim/soap.cpp). A basis [n, n] has a vector in each row. What changes from step to
// step is read from `step` (step_report.h): the first update only makes the bases, and the others are counted from it.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

struct SoapMoments {
  Tensor m;              // A, the accumulator dtype of the value; written
  Tensor gradient;       // any floating dtype
  Tensor outer, scaled;  // A, written
};
struct SoapMomentArgs {
  double beta1, factor_weight;
};
// scaled = gradient_scale * gradient    outer = sqrt(factor_weight) scaled
// m = beta1 m + (1 - beta1) scaled, but for the first update.  In a skipped step m stays, and the others are 0.
void soap_moments(Stream& stream, const SoapMoments& tensors, const Tensor& step, const SoapMomentArgs& args);
WITAN_KERNEL_TWINS(soap_moments)

struct SoapDirectionArgs {
  double beta1, beta2, eps, weight_decay;
  int64_t rate = step_value::learning_rate;
};
// With s = update - 1, and gradient and m in the bases:   v = beta2 v + (1 - beta2) gradient^2
//   direction = (1 - lr weight_decay) (m / (1 - beta1^s)) sqrt(1 - beta2^s) / (sqrt(v) + eps)
// so that apply_direction() decays what the update has made. In the first update direction is 0, and v stays, as in a
// skipped step. Contiguous tensors of equal shape; direction may be m.
void soap_direction(Stream& stream, const Tensor& direction, const Tensor& v, const Tensor& gradient, const Tensor& m,
                    const Tensor& step, const SoapDirectionArgs& args);
WITAN_KERNEL_TWINS(soap_direction)

// Eigenvalues that lie closer together than this share of the largest are not told apart, nor are directions in which a
// factor has less than that: roundings would choose their vectors, and each layout another one.
inline constexpr double kResolved = 1e-5;
// Vectors of such directions come from candidates in a fixed order, of which the first is taken that has more of its
// square left beside the vectors before than this share of the candidates' mean. Some candidate has the mean; the
// threshold is none of the simple fractions at which structured factors would have ties.
inline constexpr double kFairShare = 0.6180339887;

// In the first update, basis = the eigenvectors of factor, those of large eigenvalues first; the span of eigenvalues
// that are not told apart has the projections of unit vectors. When `frequency` divides s: basis vectors are ordered by
// b factor b^T, the largest first, and v [R, C] with them along `dim`, which the basis is of; then they are those of
// the QR decomposition of factor basis^T (a step of power iteration), but that a vector with too little left beside
// those before keeps its former direction. So bases are continuous functions of the gradients, whatever the factor's
// rank, but for signs, which change no update. Block Gram-Schmidt; the first basis is of LAPACK's syevd on the CPU, of
// Jacobi's rotations on a GPU.
struct BasisArgs {
  int64_t frequency;
  int dim;
  int64_t update;  // this one, as the host knows: on a CUDA device, where it does not read `step`, it decides alone
};
void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& step,
                 const BasisArgs& args);

namespace cpu {
// `work` [basis_work(n, elements of v)] of the factor's dtype, `packed` of gemm_workspace()
void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& work,
                 const Tensor& packed, const Tensor& step, const BasisArgs& args);
}  // namespace cpu
#if WITAN_CUDA
namespace cuda {
void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& work,
                 const Tensor& step, const BasisArgs& args);
}  // namespace cuda
#endif

}  // namespace witan::kernels
