#include "witan/kernels/optimizer/soap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/optimizer/cpu/lapack.h"

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

// Replaces orthonormal rows [k, n] by orthonormal rows that depend only on their span. Each is the projection of a unit
// vector onto the part of the span that is orthogonal to the previous rows, computed by a Householder reflection.
// `room` [2 n + k].
template <class A>
void settle_rows(Stream& stream, A* rows, int64_t k, int64_t n, A* room) {
  A *left = room, *dots = room + n, *v = room + 2 * n;  // left: squared length of each unit vector that remains
  for (int64_t c = 0; c < n; ++c) {
    left[c] = 0;
    for (int64_t r = 0; r < k; ++r) left[c] += rows[r * n + c] * rows[r * n + c];
  }
  for (int64_t j = 0; j < k - 1; ++j) {
    const auto fair = static_cast<A>(kFairShare * static_cast<double>(k - j) / static_cast<double>(n));
    const int64_t pivot = std::find_if(left, left + n - 1, [&](A square) { return square >= fair; }) - left;
    A square = 0;
    for (int64_t r = j; r < k; ++r) {
      v[r] = rows[r * n + pivot];
      square += v[r] * v[r];
    }
    v[j] += std::copysign(std::sqrt(square), v[j]);
    square = std::inner_product(v + j, v + k, v + j, A(0));
    if (!(square > 0)) continue;
    stream.pool().for_ranges(n, std::max<int64_t>(kTaskElements / (k - j), 1), [&](int64_t begin, int64_t end) {
      std::fill(dots + begin, dots + end, A(0));
      for (int64_t r = j; r < k; ++r)
        for (int64_t c = begin; c < end; ++c) dots[c] += v[r] * rows[r * n + c];
      for (int64_t r = j; r < k; ++r)
        for (int64_t c = begin; c < end; ++c) rows[r * n + c] -= 2 / square * v[r] * dots[c];
      for (int64_t c = begin; c < end; ++c) left[c] -= rows[j * n + c] * rows[j * n + c];
    });
  }
}

// Eigenvalues, and so their eigenvectors, come in ascending order.
template <class A>
void first_basis(Stream& stream, const Tensor& basis, const Tensor& factor, WorkspaceParts parts) {
  const int64_t n = factor.size(0);
  const Tensor values = parts.take(n), work = parts.take(eigen_work(n));
  int* integers = parts.integers(eigen_integers(n));
  const auto q = basis.span<A>();
  const auto value = values.span<A>();
  std::ranges::copy(factor.span<A>(), q.begin());
  eigen_decompose(n, q.data(), value.data(), work.data<A>(), integers);
  for (int64_t i = 0; i < n / 2; ++i)
    std::swap_ranges(q.begin() + i * n, q.begin() + (i + 1) * n, q.begin() + (n - 1 - i) * n);
  std::ranges::reverse(value);
  const A apart = static_cast<A>(kResolved) * value.front();
  for (auto begin = value.begin(), end = begin; begin != value.end(); begin = end) {
    end = std::adjacent_find(begin, value.end(), [&](A larger, A smaller) { return larger - smaller > apart; });
    if (end != value.end()) ++end;
    settle_rows(stream, q.data() + (begin - value.begin()) * n, end - begin, n, work.data<A>());
  }
}

// Reorders the rows of x [rows, columns], or its columns.
template <class A>
void reorder(A* x, A* room, int64_t rows, int64_t columns, const int* order, bool by_rows) {
  std::copy_n(x, rows * columns, room);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      x[r * columns + c] = by_rows ? room[order[r] * columns + c] : room[r * columns + order[c]];
}

constexpr int64_t kBlockRows = 32;

// Makes rows of q [n, n] orthonormal in order. A row with a squared length of at most least[i] after the projection is
// replaced by the remainder of a row of `former`: the first in `order`, from its own on, whose remainder is long
// enough.
template <class A>
struct GramSchmidt {
  void run(Stream& stream, const Tensor& packed) const {
    for (int64_t first = 0; first < n; first += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, n - first);
      for (const bool replaces :
           {true, false}) {  // twice, because the first pass removes most of some rows, and rounds
        if (first > 0) {
          const Tensor block = q.narrow(0, first, rows), before = q.narrow(0, 0, first);
          const Tensor its = dots.narrow(0, 0, rows * first).reshape({rows, first});
          cpu::gemm(stream, its, Write::overwrite, block, Transpose::no, before, Transpose::yes, packed);
          for (A& dot : its.span<A>()) dot = -dot;
          cpu::gemm(stream, block, Write::accumulate, its, Transpose::no, before, Transpose::no, packed);
        }
        for (int64_t i = first; i < first + rows; ++i) {
          A* const row = at(i);
          clear(row, first, i);
          A square = std::inner_product(row, row + n, row, A(0));
          if (replaces && !(square > least[i] * least[i])) square = replace(i);
          clear(row, first, i);
          square = std::inner_product(row, row + n, row, A(0));
          std::transform(row, row + n, row, [by = 1 / std::sqrt(square)](A x) { return by * x; });
        }
      }
    }
  }

  A* at(int64_t row) const { return q.data<A>() + row * n; }

  void clear(A* row, int64_t begin, int64_t end) const {
    for (int64_t j = begin; j < end; ++j) {
      const A dot = std::inner_product(row, row + n, at(j), A(0));
      std::transform(row, row + n, at(j), row, [dot](A x, A y) { return x - dot * y; });
    }
  }

  A replace(int64_t i) const {
    const auto fair = static_cast<A>(kFairShare * static_cast<double>(n - i) / static_cast<double>(n));
    A *const row = at(i), square = 0;
    for (int64_t k = 0; k < n && !(square >= fair); ++k) {
      std::copy_n(former + order[(i + k) % n] * n, n, row);
      clear(row, 0, i);
      square = std::inner_product(row, row + n, row, A(0));
    }
    return square;
  }

  int64_t n;
  Tensor q, dots;  // [n, n], [kBlockRows n]
  const A *former, *least;
  const int* order;
};

template <class A>
void next_basis(Stream& stream, const Tensor& basis, const Tensor& v, const Tensor& factor, WorkspaceParts parts,
                const Tensor& packed, int dim) {
  const int64_t n = factor.size(0);
  const Tensor product = parts.matrix(n), q = parts.matrix(n), dots = parts.take(kBlockRows * n);
  const Tensor estimates = parts.take(n), lengths = parts.take(n), floors = parts.take(n),
               room = parts.take(v.elements());
  int* order = parts.integers(n);
  cpu::gemm(stream, product, Write::overwrite, basis, Transpose::no, factor, Transpose::no, packed);
  const A *b = basis.data<A>(), *p = product.data<A>();
  A *estimate = estimates.data<A>(), *length = lengths.data<A>(), *least = floors.data<A>();
  for (int64_t i = 0; i < n; ++i) {
    estimate[i] = std::inner_product(b + i * n, b + (i + 1) * n, p + i * n, A(0));
    length[i] = std::sqrt(std::inner_product(p + i * n, p + (i + 1) * n, p + i * n, A(0)));
  }
  const A most = *std::max_element(length, length + n);
  if (!(most > 0) || !std::isfinite(most)) return;
  const A lowest = static_cast<A>(kResolved) * *std::max_element(estimate, estimate + n);
  std::iota(order, order + n, 0);
  std::stable_sort(order, order + n,
                   [&](int i, int j) { return std::max(estimate[i], lowest) > std::max(estimate[j], lowest); });
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = order[i];
    const bool vanishes = !(length[from] > static_cast<A>(kResolved) * most);
    const A by = vanishes ? A(1) : 1 / length[from];
    const auto fair = static_cast<A>(kFairShare * static_cast<double>(n - i) / static_cast<double>(n));
    least[i] = vanishes ? std::sqrt(fair) : static_cast<A>(kResolved) * most * by;
    std::transform((vanishes ? b : p) + from * n, (vanishes ? b : p) + (from + 1) * n, q.data<A>() + i * n,
                   [by](A x) { return by * x; });
  }
  GramSchmidt<A>{n, q, dots, b, least, order}.run(stream, packed);
  std::ranges::copy(q.span<A>(), basis.data<A>());
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
    const double kept = 1 - now.values[args.rate] * (args.weight_decay * now.values[step_value::weight_decay]);
    const A factor = A(kept * std::sqrt(1 - std::pow(args.beta2, s)) / (1 - std::pow(args.beta1, s)));
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
      first_basis<A>(stream, basis, factor, WorkspaceParts(work));
    else
      next_basis<A>(stream, basis, v, factor, WorkspaceParts(work), packed, args.dim);
  });
}

}  // namespace witan::kernels::cpu
