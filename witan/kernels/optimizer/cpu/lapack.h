// The LAPACK routines that Witan calls, by type, and the division of their workspace. LAPACK's matrices have contiguous
// columns: a symmetric matrix is the same in row-major order, and eigenvectors are rows.
#pragma once

#include <cstdint>
#include <utility>

#include "witan/tensor/tensor.h"

namespace witan::kernels::cpu {

// The elements of workspace that eigen_decompose needs, beside eigen_integers(n) 32-bit integers.
constexpr int64_t eigen_work(int64_t n) {
  return 1 + 6 * n + 2 * n * n;
}
constexpr int64_t eigen_integers(int64_t n) {
  return 3 + 5 * n;
}
// Replaces symmetric a [n, n] by its eigenvectors, one per row, for the eigenvalues l [n] in ascending order. Returns
// whether it converged (syevd: divide and conquer).
bool eigen_decompose(int64_t n, float* a, float* l, float* work, int* integers);
bool eigen_decompose(int64_t n, double* a, double* l, double* work, int* integers);

// Divides a flat workspace into parts.
class WorkspaceParts {
 public:
  explicit WorkspaceParts(const Tensor& work) : work_(work) {}
  Tensor take(int64_t elements) { return work_.narrow(0, std::exchange(at_, at_ + elements), elements); }
  Tensor matrix(int64_t n) { return take(n * n).reshape({n, n}); }
  // Room for `count` 32-bit integers.
  int* integers(int64_t count) {
    const auto width = static_cast<int64_t>(size_of(work_.dtype()));
    return reinterpret_cast<int*>(take((count * 4 + width - 1) / width).raw());
  }

 private:
  const Tensor& work_;
  int64_t at_ = 0;
};

}  // namespace witan::kernels::cpu
