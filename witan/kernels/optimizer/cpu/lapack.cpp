#include "witan/kernels/optimizer/cpu/lapack.h"

#include <limits>

#include "witan/base/error.h"

extern "C" {
void ssyevd_(const char* jobz, const char* uplo, const int* n, float* a, const int* lda, float* w, float* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
}

namespace witan::kernels::cpu {
namespace {

int narrowed(int64_t size) {
  require<ShapeError>(size <= std::numeric_limits<int>::max(), "LAPACK counts in 32 bits, and ", size,
                      " is too many; lower max_preconditioner_dim");
  return static_cast<int>(size);
}

template <class T, class Routine>
bool eigen(const Routine& syevd, int64_t size, T* a, T* l, T* work, int* integers) {
  const int n = narrowed(size), lwork = narrowed(eigen_work(size)), liwork = narrowed(eigen_integers(size));
  int info = 0;
  syevd("V", "L", &n, a, &n, l, work, &lwork, integers, &liwork, &info, 1, 1);
  return info == 0;
}

}  // namespace

bool eigen_decompose(int64_t n, float* a, float* l, float* work, int* integers) {
  return eigen(ssyevd_, n, a, l, work, integers);
}
bool eigen_decompose(int64_t n, double* a, double* l, double* work, int* integers) {
  return eigen(dsyevd_, n, a, l, work, integers);
}

}  // namespace witan::kernels::cpu
