#include "witan/kernels/cpu/lapack.h"

#include <limits>

#include "witan/base/error.h"

extern "C" {
void ssyevd_(const char* jobz, const char* uplo, const int* n, float* a, const int* lda, float* w, float* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t, size_t);
void sgeqrf_(const int* m, const int* n, float* a, const int* lda, float* tau, float* work, const int* lwork,
             int* info);
void dgeqrf_(const int* m, const int* n, double* a, const int* lda, double* tau, double* work, const int* lwork,
             int* info);
void sorgqr_(const int* m, const int* n, const int* k, float* a, const int* lda, const float* tau, float* work,
             const int* lwork, int* info);
void dorgqr_(const int* m, const int* n, const int* k, double* a, const int* lda, const double* tau, double* work,
             const int* lwork, int* info);
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

template <class T, class Factor, class Form>
bool qr(const Factor& geqrf, const Form& orgqr, int64_t size, T* a, T* work) {
  const int n = narrowed(size), lwork = narrowed(qr_work(size) - size);
  T* tau = work + lwork;
  int info = 0;
  geqrf(&n, &n, a, &n, tau, work, &lwork, &info);
  if (info == 0) orgqr(&n, &n, &n, a, &n, tau, work, &lwork, &info);
  return info == 0;
}

}  // namespace

bool eigen_decompose(int64_t n, float* a, float* l, float* work, int* integers) {
  return eigen(ssyevd_, n, a, l, work, integers);
}
bool eigen_decompose(int64_t n, double* a, double* l, double* work, int* integers) {
  return eigen(dsyevd_, n, a, l, work, integers);
}
bool orthogonalize(int64_t n, float* a, float* work) {
  return qr(sgeqrf_, sorgqr_, n, a, work);
}
bool orthogonalize(int64_t n, double* a, double* work) {
  return qr(dgeqrf_, dorgqr_, n, a, work);
}

}  // namespace witan::kernels::cpu
