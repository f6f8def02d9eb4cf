// LAPACK's routines that Witan calls, by type. Matrices are LAPACK's: columns are contiguous, so that a symmetric one
// is its own row-major twin, and rows of what is returned are vectors.
#pragma once

#include <cstdint>

namespace witan::kernels::cpu {

// Work that eigen_decompose needs, in elements; `integers` 32-bit numbers beside it.
constexpr int64_t eigen_work(int64_t n) {
  return 1 + 6 * n + 2 * n * n;
}
constexpr int64_t eigen_integers(int64_t n) {
  return 3 + 5 * n;
}
// a [n, n], symmetric, becomes its eigenvectors, one in each row, of the eigenvalues l [n], ascending. Returns whether
// it converged. (syevd: divide and conquer)
bool eigen_decompose(int64_t n, float* a, float* l, float* work, int* integers);
bool eigen_decompose(int64_t n, double* a, double* l, double* work, int* integers);

}  // namespace witan::kernels::cpu
