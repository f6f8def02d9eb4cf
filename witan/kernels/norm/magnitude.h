// Magnitudes of a matrix's rows with low-rank factors beside it (Liu et al., "DoRA", 2024, arXiv:2402.09353):
//   y[n] = m[n] (w[n] + scale b[n] a) x / |w[n] + scale b[n] a|,  m[n] = |w[n]| + change[n]
// Vectors over rows n, and all sums, are in the accumulator dtype of the matrix. x, y [T, N] floating.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// |w[n] + scale b[n] a|^2 without forming b a:
// squares[n] = base[n] + sum_j b[n,j] (2 scale p[n,j] + scale^2 sum_i b[n,i] g[i,j]),  at least 0
// base [N] = |w[n]|^2, p [N, r] = w a^T and g [r, r] = a a^T in the accumulator dtype   b [N, r]
void low_rank_squares(Stream& stream, const Tensor& squares, const Tensor& base, const Tensor& p, const Tensor& g,
                      const Tensor& b, double scale);
WITAN_KERNEL_TWINS(low_rank_squares)

// factors[n] = (sqrt(base[n]) + change[n]) / sqrt(squares[n])   inverses[n] = 1 / sqrt(squares[n])
// A row of zeros has the factor 1 and the inverse 0. factors, inverses, base, squares [N] accumulator dtype   change
// [N] of the matrix's dtype
void magnitude_factors(Stream& stream, const Tensor& factors, const Tensor& inverses, const Tensor& change,
                       const Tensor& base, const Tensor& squares);
WITAN_KERNEL_TWINS(magnitude_factors)

// y[t,n] = x[t,n] factors[n];  factors [N] accumulator dtype of x.  y may be x
void scale_columns(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& factors);
WITAN_KERNEL_TWINS(scale_columns)

}  // namespace witan::kernels
