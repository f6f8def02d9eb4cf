// The LAPACK routines that Witan calls, by type, and parts of the workspace for them. Columns of LAPACK's matrices are
// contiguous: a symmetric matrix is the same in row-major order, and eigenvectors are rows.
#pragma once

#include <cstdint>
#include <utility>

#include "witan/tensor/tensor.h"

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

// Hands out a flat workspace part by part.
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
