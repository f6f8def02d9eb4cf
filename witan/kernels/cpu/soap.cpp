#include "witan/kernels/soap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "witan/kernels/cpu/accumulators.h"
#include "witan/kernels/cpu/gemm.h"
#include "witan/kernels/cpu/lapack.h"
#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/cpu/workspace_parts.h"

namespace witan::kernels::cpu {
namespace {

struct Now {
  explicit Now(const Tensor& step)
      : values(step.data<double>()),
        skipped(values[step_value::skip] != 0),
        after_first(static_cast<int64_t>(values[step_value::update]) - 1) {}
  const double* values;
  bool skipped;
  int64_t after_first;  // updates, this one included
};

// Eigenvectors come with their eigenvalues ascending.
template <class A>
void first_basis(const Tensor& basis, const Tensor& factor, WorkspaceParts parts) {
  const int64_t n = factor.size(0);
  const Tensor values = parts.take(n), work = parts.take(eigen_work(n));
  int* integers = parts.integers(eigen_integers(n));
  const auto q = basis.span<A>();
  std::ranges::copy(factor.span<A>(), q.begin());
  eigen_decompose(n, q.data(), values.data<A>(), work.data<A>(), integers);
  for (int64_t i = 0; i < n / 2; ++i)
    std::swap_ranges(q.begin() + i * n, q.begin() + (i + 1) * n, q.begin() + (n - 1 - i) * n);
}

// Rows of x [rows, columns], or its columns, in this order.
template <class A>
void reorder(A* x, A* room, int64_t rows, int64_t columns, const int* order, bool by_rows) {
  std::copy_n(x, rows * columns, room);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      x[r * columns + c] = by_rows ? room[order[r] * columns + c] : room[r * columns + order[c]];
}

template <class A>
void next_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, WorkspaceParts parts,
                const Tensor& packed, int dim) {
  const int64_t n = factor.size(0);
  const Tensor product = parts.matrix(n), work = parts.take(qr_work(n)), estimates = parts.take(n);
  const Tensor room = parts.take(std::max(v.elements(), n * n));
  int* order = parts.integers(n);
  cpu::gemm(stream, product, Write::overwrite, basis, Transpose::no, factor, Transpose::no, packed);
  A *b = basis.data<A>(), *p = product.data<A>(), *estimate = estimates.data<A>();
  for (int64_t i = 0; i < n; ++i) estimate[i] = std::inner_product(b + i * n, b + (i + 1) * n, p + i * n, A(0));
  std::iota(order, order + n, 0);
  std::stable_sort(order, order + n, [&](int i, int j) { return estimate[i] > estimate[j]; });
  reorder(p, room.data<A>(), n, n, order, true);
  if (!orthogonalize(n, p, work.data<A>())) return;
  std::copy_n(p, n * n, b);
  reorder(v.data<A>(), room.data<A>(), v.size(0), v.size(1), order, dim == 0);
}

}  // namespace

void soap_moments(Stream& stream, const SoapMoments& t, const Tensor& step, const SoapMomentArgs& args) {
  const Now now(step);
  dispatch_accumulator(t.outer.dtype(), [&]<class A>() {
    dispatch_floating(t.gradient.dtype(), [&]<class G>() {
      const A scale = A(now.values[step_value::gradient_scale]), weight = A(std::sqrt(args.factor_weight));
      const A beta1 = A(args.beta1), to_m = A(1 - args.beta1);
      const G* gradient = t.gradient.data<G>();
      A *m = t.m.data<A>(), *outer = t.outer.data<A>(), *scaled = t.scaled.data<A>();
      stream.pool().for_ranges(t.outer.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          scaled[i] = now.skipped ? A(0) : scale * A(gradient[i]);
          outer[i] = weight * scaled[i];
          if (!now.skipped && now.after_first > 0) m[i] = beta1 * m[i] + to_m * scaled[i];
        }
      });
    });
  });
}

void soap_direction(Stream& stream, const Tensor& direction, const Tensor& v, const Tensor& gradient, const Tensor& m,
                    const Tensor& step, const SoapDirectionArgs& args) {
  const Now now(step);
  const auto s = static_cast<double>(now.after_first);
  const bool still = now.skipped || now.after_first == 0;
  dispatch_accumulator(v.dtype(), [&]<class A>() {
    const A beta2 = A(args.beta2), to_v = A(1 - args.beta2), eps = A(args.eps);
    const A factor = A((1 - now.values[args.rate] * args.weight_decay) * std::sqrt(1 - std::pow(args.beta2, s)) /
                       (1 - std::pow(args.beta1, s)));
    A *squares = v.data<A>(), *to = direction.data<A>();
    const A *g = gradient.data<A>(), *mean = m.data<A>();
    stream.pool().for_ranges(v.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!still) squares[i] = beta2 * squares[i] + to_v * g[i] * g[i];
        to[i] = still ? A(0) : factor * mean[i] / (std::sqrt(squares[i]) + eps);
      }
    });
  });
}

void renew_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, const Tensor& work,
                 const Tensor& packed, const Tensor& step, const BasisArgs& args) {
  const Now now(step);
  if (now.skipped || now.after_first % args.frequency != 0) return;
  dispatch_accumulator(factor.dtype(), [&]<class A>() {
    if (now.after_first == 0)
      first_basis<A>(basis, factor, WorkspaceParts(work));
    else
      next_basis<A>(stream, basis, v, factor, WorkspaceParts(work), packed, args.dim);
  });
}

}  // namespace witan::kernels::cpu
