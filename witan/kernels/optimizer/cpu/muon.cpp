#include "witan/kernels/optimizer/muon.h"

#include <cmath>
#include <type_traits>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan::kernels::cpu {
namespace {

// Calls body.operator()<D>() with the narrow type that directions of T may have, or with T's accumulator type.
template <class T, class Body>
void dispatch_direction(const Tensor& direction, const Body& body) {
  using Narrow = std::conditional_t<std::is_same_v<T, f16>, bf16, T>;
  if (direction.dtype() == dtype_of<Narrow>()) return body.template operator()<Narrow>();
  body.template operator()<Accumulator<T>>();
}

}  // namespace

void muon_momentum(Stream& stream, std::span<const MuonItem> items, const Tensor&, const Tensor& step,
                   const MuonArgs& args) {
  const double* now = step.data<double>();
  const bool skip = now[step_value::skip] != 0;
  for (const MuonItem& item : items)
    dispatch_update(item.value, item.gradient, [&]<class T, class G>() {
      using A = Accumulator<T>;
      dispatch_direction<T>(item.direction, [&]<class D>() {
        const A scale = A(now[step_value::gradient_scale]), beta = A(args.momentum);
        const A of_gradient = args.nesterov ? A(1) : A(0), of_momentum = args.nesterov ? beta : A(1);
        const G* gradient = item.gradient.data<G>();
        A* momentum = item.momentum.data<A>();
        D* direction = item.direction.data<D>();
        stream.pool().for_ranges(item.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
          if (skip) return std::fill(direction + begin, direction + end, D(A(0)));
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) {
            const A g = scale * A(gradient[i]);
            const A b = beta * momentum[i] + g;
            momentum[i] = b;
            store(direction[i], of_gradient * g + of_momentum * b);
          }
        });
      });
    });
}

void muon_update(Stream& stream, std::span<const MuonItem> items, const Tensor&, const Tensor& step,
                 const MuonArgs& args) {
  const double* now = step.data<double>();
  if (now[step_value::skip] != 0) return;
  for (const MuonItem& item : items)
    dispatch_floating(item.value.dtype(), [&]<class T>() {
      using A = Accumulator<T>;
      dispatch_direction<T>(item.orthogonal, [&]<class D>() {
        const A lr = A(now[args.rate]), scale = A(item.scale);
        const A decay = A(item.weight_decay * now[step_value::weight_decay]);
        T* value = item.value.data<T>();
        Remainder<T>* remainder = remainder_of<T>(item.value, item.remainder);
        const D* orthogonal = item.orthogonal.data<D>();
        stream.pool().for_ranges(item.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) {
            const A p = weight(value, remainder, i);
            store_weight(value, remainder, i, p - lr * (scale * A(orthogonal[i]) + decay * p));
          }
        });
      });
    });
}

void normalize_matrices(Stream& stream, const Tensor& x, const Tensor& sums, const NormalizeArgs& args) {
  const int64_t n = x.size(0), E = x.elements() / n, chunks = chunks_of(E);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().run(n * chunks, [&](int64_t task) {
      const int64_t matrix = task / chunks, first = task % chunks * kChunkElements;
      double squares = 0;
      for (int64_t c = 0; c < chunks; ++c) squares += sums.data<double>()[2 * (matrix * chunks + c)];
      const A factor = A(1 / (args.margin * std::sqrt(squares) + args.eps));
      T* out = x.data<T>() + matrix * E;
#pragma omp simd
      for (int64_t i = first; i < std::min(first + kChunkElements, E); ++i) store(out[i], factor * A(out[i]));
    });
  });
}

void row_squares(Stream& stream, const Tensor& squares, const Tensor& x) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    for_rows(stream, x, [&, K = x.shape().last()](int64_t r) {
      const T* in = x.data<T>() + r * K;
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < K; ++k) sum += static_cast<double>(in[k]) * static_cast<double>(in[k]);
      squares.data<double>()[r] = sum;
    });
  });
}

void normuon_moments(Stream& stream, const NorMuonTensors& t, const Tensor& step, const NorMuonArgs& args) {
  const bool skip = step.data<double>()[step_value::skip] != 0;
  const int64_t n = t.v.size(0), R = t.v.size(1);
  dispatch_floating(t.v.dtype(), [&]<class V>() {
    stream.pool().run(n, [&](int64_t matrix) {
      V* v = t.v.data<V>() + matrix * R;
      double *factors = t.factors.data<double>() + matrix * R, *totals = t.totals.data<double>() + 2 * matrix;
      const double* squares = t.squares.data<double>() + matrix * R;
      totals[0] = totals[1] = 0;
      for (int64_t r = 0; r < R; ++r) {
        const double moment =
            args.beta2 * static_cast<double>(v[r]) + (1 - args.beta2) * squares[r] / static_cast<double>(args.columns);
        if (!skip) v[r] = V(moment);
        factors[r] = 1 / (std::sqrt(moment) + 1e-8);
        totals[0] += squares[r];
        totals[1] += squares[r] * factors[r] * factors[r];
      }
    });
  });
}

void scale_rows(Stream& stream, const Tensor& x, const Tensor& factors, const Tensor& totals) {
  const int64_t R = x.size(1), K = x.size(2);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&](int64_t row) {
      const double* total = totals.data<double>() + 2 * (row / R);
      const A factor = A(factors.data<double>()[row] * std::sqrt(total[0]) / std::max(std::sqrt(total[1]), 1e-8));
      T* out = x.data<T>() + row * K;
#pragma omp simd
      for (int64_t k = 0; k < K; ++k) store(out[k], factor * A(out[k]));
    });
  });
}

}  // namespace witan::kernels::cpu
