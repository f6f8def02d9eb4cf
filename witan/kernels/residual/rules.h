// The weights of one token's streams and their gradients, written once for both twins (kernels/residual/streams.h has
// the formulas). `Math` has exp(x); Numbers is an array of A: a pointer, or numbers that lie apart in memory.
#pragma once

#include "witan/kernels/residual/streams.h"

#if defined(__CUDACC__)
#define WITAN_RULE __device__ __forceinline__
#else
#define WITAN_RULE [[gnu::always_inline]] inline
#endif

namespace witan::kernels::rules {

template <class Math, class A>
WITAN_RULE A logistic(A z) {
  return A(1) / (A(1) + Math::exp(-z));
}

// Numbers kept of a token while its matrix is made: the matrix, its gradient, and the divisors of each normalisation.
constexpr int64_t sinkhorn_numbers(int64_t n, int64_t iterations) {
  return 2 * n * n + (2 * iterations - 1) * n;
}

// An n x n matrix of which sinkhorn_forward() divides lines by their sums, and sinkhorn_backward() goes back. A line is
// a row or a column: its elements begin at `begin` and are `step` apart.
template <class A, class Numbers>
struct Sinkhorn {
  Numbers at;
  int n, iterations;
  A eps;

  WITAN_RULE A& m(int i) const { return at[i]; }
  WITAN_RULE A& dm(int i) const { return at[n * n + i]; }
  WITAN_RULE A& sum(int pass, int line) const { return at[2 * n * n + pass * n + line]; }

  WITAN_RULE void normalise(int pass) const {
    const int begin = pass % 2 == 0 ? 1 : n, step = pass % 2 == 0 ? n : 1;  // columns first
    for (int line = 0; line < n; ++line) {
      A total = eps;
      for (int i = 0; i < n; ++i) total += m(line * begin + i * step);
      for (int i = 0; i < n; ++i) m(line * begin + i * step) /= total;
      sum(pass, line) = total;
    }
  }
  // From the matrix after a pass and its gradient to those before.
  WITAN_RULE void undo(int pass) const {
    const int begin = pass % 2 == 0 ? 1 : n, step = pass % 2 == 0 ? n : 1;
    for (int line = 0; line < n; ++line) {
      const A total = sum(pass, line);
      A dot = 0;
      for (int i = 0; i < n; ++i) dot += dm(line * begin + i * step) * m(line * begin + i * step);
      for (int i = 0; i < n; ++i) {
        dm(line * begin + i * step) = (dm(line * begin + i * step) - dot) / total;
        m(line * begin + i * step) *= total;
      }
    }
  }

  // m = the matrix of the logits z
  template <class Math, class Logit>
  WITAN_RULE void forward(const Logit& z) const {
    for (int row = 0; row < n; ++row) {
      A largest = z(row * n), total = 0;
      for (int k = 1; k < n; ++k) largest = z(row * n + k) > largest ? z(row * n + k) : largest;
      for (int k = 0; k < n; ++k) total += m(row * n + k) = Math::exp(z(row * n + k) - largest);
      for (int k = 0; k < n; ++k) m(row * n + k) = m(row * n + k) / total + eps;
    }
    for (int pass = 0; pass < 2 * iterations - 1; ++pass) normalise(pass);
  }
  // dm = the gradient of the logits, from that of the matrix; after forward().
  WITAN_RULE void backward() const {
    for (int pass = 2 * iterations - 2; pass >= 0; --pass) undo(pass);
    for (int row = 0; row < n; ++row) {
      A dot = 0;
      for (int k = 0; k < n; ++k) dot += dm(row * n + k) * (m(row * n + k) - eps);
      for (int k = 0; k < n; ++k) dm(row * n + k) = (m(row * n + k) - eps) * (dm(row * n + k) - dot);
    }
  }
};

template <class A>
struct StreamLogits {
  const A *logits, *base, *scale;  // of one token; of all
  int n;

  WITAN_RULE A reading(int k) const { return logits[k] * scale[0] + base[k]; }
  WITAN_RULE A writing(int k) const { return logits[n + k] * scale[1] + base[n + k]; }
  WITAN_RULE A mixing(int i) const { return logits[2 * n + i] * scale[2] + base[2 * n + i]; }
};

// mix null: the streams are only read
template <class Math, class A, class Numbers>
WITAN_RULE void stream_weights(A* pre, A* mix, const StreamLogits<A>& z, const Sinkhorn<A, Numbers>& matrix) {
  const int n = z.n;
  for (int k = 0; k < n; ++k) pre[k] = logistic<Math>(z.reading(k)) + matrix.eps;
  if (mix == nullptr) return;
  for (int k = 0; k < n; ++k) mix[k] = A(2) * logistic<Math>(z.writing(k));
  matrix.template forward<Math>([&](int i) { return z.mixing(i); });
  for (int i = 0; i < n * n; ++i) mix[n + i] = matrix.m(i);
}

// dpre or dmix null: zeros. mixes: whether there are logits beside those that read
template <class Math, class A, class Numbers>
WITAN_RULE void stream_weights_backward(A* dz, A* dlogits, const A* dpre, const A* dmix, bool mixes,
                                        const StreamLogits<A>& z, const Sinkhorn<A, Numbers>& matrix) {
  const int n = z.n;
  const auto put = [&](int c, int group, A gradient) {
    dz[c] = gradient;
    dlogits[c] = gradient * z.scale[group];
  };
  for (int k = 0; k < n; ++k) {
    const A open = logistic<Math>(z.reading(k));
    put(k, 0, dpre ? dpre[k] * open * (A(1) - open) : A(0));
  }
  if (!mixes) return;
  if (dmix == nullptr) {
    for (int i = 0; i < n + n * n; ++i) put(n + i, i < n ? 1 : 2, A(0));
    return;
  }
  for (int k = 0; k < n; ++k) {
    const A open = logistic<Math>(z.writing(k));
    put(n + k, 1, A(2) * dmix[k] * open * (A(1) - open));
  }
  matrix.template forward<Math>([&](int i) { return z.mixing(i); });
  for (int i = 0; i < n * n; ++i) matrix.dm(i) = dmix[n + i];
  matrix.backward();
  for (int i = 0; i < n * n; ++i) put(2 * n + i, 2, matrix.dm(i));
}

}  // namespace witan::kernels::rules

#undef WITAN_RULE
