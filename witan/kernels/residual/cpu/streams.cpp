// Each token is one task.
#include "witan/kernels/residual/streams.h"

#include <cmath>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/residual/rules.h"

namespace witan::kernels::cpu {
namespace {

struct WeightMath {
  template <class A>
  static A exp(A x) {
    return std::exp(x);
  }
};

template <class A>
A dot(const A* a, const A* b, int64_t count) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
void widen(Accumulator<T>* to, const T* from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = Accumulator<T>(from[i]);
}

// to (=|+=) value, rounded once
template <class T, class A>
[[gnu::always_inline]] inline void put(T& to, bool adds, A value) {
  store(to, adds ? A(to) + value : value);
}

// Calls body(t, numbers) for each token, with `count` numbers of A that belong to its task.
template <class A, class Body>
void for_tokens(Stream& stream, const Tensor& rows, int64_t count, const Body& body) {
  const auto [T, D] = rows.shape().as_rows();
  stream.pool().for_ranges(T, kTaskElements / std::max<int64_t>(D, 1), [&](int64_t begin, int64_t end) {
    std::vector<A> numbers(static_cast<size_t>(count));
    for (int64_t t = begin; t < end; ++t) body(t, numbers.data());
  });
}

template <class A>
rules::Sinkhorn<A, A*> sinkhorn(A* numbers, const StreamMixing& mixing) {
  return {numbers, static_cast<int>(mixing.streams), static_cast<int>(mixing.iterations), A(mixing.eps)};
}

template <class A>
const A* row_of(const Tensor& tensor, int64_t t) {
  return tensor.defined() ? tensor.data<A>() + t * tensor.shape().last() : nullptr;
}

template <class Body>
void dispatch_weights(DType dtype, const Body& body) {
  if (dtype == DType::f64) return body.template operator()<double>();
  body.template operator()<float>();
}

}  // namespace

void stream_logits_forward(Stream& stream, const Tensor& logits, const Tensor& r, const Tensor& x, const Tensor& w,
                           double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t W = w.size(1), C = w.size(0);
    for_tokens<A>(stream, x, W, [&](int64_t t, A* in) {
      widen(in, x.data<T>() + t * W, W);
      const A scale = r.data<A>()[t] = A(1) / std::sqrt(dot(in, in, W) / A(W) + A(eps));
      for (int64_t c = 0; c < C; ++c) logits.data<A>()[t * C + c] = scale * dot<A>(in, w.data<A>() + c * W, W);
    });
  });
}

void stream_logits_backward_input(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& logits,
                                  const Tensor& r, const Tensor& x, const Tensor& w) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t W = w.size(1), C = w.size(0);
    for_tokens<A>(stream, x, W, [&](int64_t t, A* sums) {
      const A *g = row_of<A>(dlogits, t), scale = r.data<A>()[t];
      const A pull = dot<A>(g, row_of<A>(logits, t), C) * scale * scale / A(W);
      std::fill(sums, sums + W, A(0));
      for (int64_t c = 0; c < C; ++c) {
        const A* const of = w.data<A>() + c * W;
#pragma omp simd
        for (int64_t i = 0; i < W; ++i) sums[i] += g[c] * of[i];
      }
      const T* const in = x.data<T>() + t * W;
      T* const out = dx.data<T>() + t * W;
#pragma omp simd
      for (int64_t i = 0; i < W; ++i) put(out[i], true, scale * sums[i] - pull * A(in[i]));
    });
  });
}

void stream_logits_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& /*parts*/,
                                   const Tensor& dlogits, const Tensor& r, const Tensor& x) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto [tokens, W] = x.shape().as_rows();
    const int64_t C = dlogits.shape().last();
    sum_over_rows<T, A>(stream, dw.reshape({C * W}), write, {tokens, C * W},
                        [&, W = W](int64_t t, int64_t begin, int64_t end, A* sums) {
                          for (int64_t at = begin; at < end;) {
                            const int64_t c = at / W, first = at % W, count = std::min(end - at, W - first);
                            const A factor = row_of<A>(dlogits, t)[c] * r.data<A>()[t];
                            const T* const in = x.data<T>() + t * W + first;
#pragma omp simd
                            for (int64_t i = 0; i < count; ++i) sums[at - begin + i] += factor * A(in[i]);
                            at += count;
                          }
                        });
  });
}

void stream_weights_forward(Stream& stream, const Tensor& pre, const Tensor& mix, const Tensor& logits,
                            const Tensor& base, const Tensor& scale, const StreamMixing& mixing) {
  dispatch_weights(logits.dtype(), [&]<class A>() {
    const int64_t n = mixing.streams, C = logits.shape().last();
    for_tokens<A>(stream, logits, rules::sinkhorn_numbers(n, mixing.iterations), [&](int64_t t, A* numbers) {
      rules::stream_weights<WeightMath>(
          pre.data<A>() + t * n, mix.defined() ? mix.data<A>() + t * (C - n) : nullptr,
          rules::StreamLogits<A>{row_of<A>(logits, t), base.data<A>(), scale.data<A>(), static_cast<int>(n)},
          sinkhorn(numbers, mixing));
    });
  });
}

void stream_weights_backward(Stream& stream, const Tensor& dz, const Tensor& dlogits, const Tensor& dpre,
                             const Tensor& dmix, const Tensor& logits, const Tensor& base, const Tensor& scale,
                             const StreamMixing& mixing) {
  dispatch_weights(logits.dtype(), [&]<class A>() {
    const int64_t n = mixing.streams, C = logits.shape().last();
    for_tokens<A>(stream, logits, rules::sinkhorn_numbers(n, mixing.iterations), [&](int64_t t, A* numbers) {
      rules::stream_weights_backward<WeightMath>(
          dz.data<A>() + t * C, dlogits.data<A>() + t * C, row_of<A>(dpre, t), row_of<A>(dmix, t), C > n,
          rules::StreamLogits<A>{row_of<A>(logits, t), base.data<A>(), scale.data<A>(), static_cast<int>(n)},
          sinkhorn(numbers, mixing));
    });
  });
}

void stream_scale_backward(Stream& stream, const Tensor& dscale, Write write, const Tensor& dz, const Tensor& logits,
                           int64_t streams) {
  dispatch_weights(logits.dtype(), [&]<class A>() {
    const auto [tokens, C] = logits.shape().as_rows();
    const int64_t begins[] = {0, streams, 2 * streams, C};
    stream.pool().run(dscale.elements(), [&, tokens = tokens, C = C](int64_t group) {
      A sum = 0;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = begins[group]; c < begins[group + 1]; ++c)
          sum += dz.data<A>()[t * C + c] * logits.data<A>()[t * C + c];
      dispatch_floating(dscale.dtype(), [&]<class G>() {
        put(dscale.data<G>()[group], write == Write::accumulate, Accumulator<G>(sum));
      });
    });
  });
}

void collapse_streams(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& pre) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = y.shape().last(), n = x.shape().last() / D;
    for_tokens<A>(stream, x, D, [&](int64_t t, A* sums) {
      std::fill(sums, sums + D, A(0));
      for (int64_t k = 0; k < n; ++k) {
        const A weight = pre.defined() ? row_of<A>(pre, t)[k] : A(1);
        const T* const in = x.data<T>() + (t * n + k) * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) sums[d] += weight * A(in[d]);
      }
      T* const out = y.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], sums[d]);
    });
  });
}

void collapse_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dpre, const Tensor& dy, const Tensor& x,
                               const Tensor& pre) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = dy.shape().last(), n = x.shape().last() / D;
    for_tokens<A>(stream, x, 2 * D, [&](int64_t t, A* numbers) {
      A *const g = numbers, *const in = numbers + D;
      widen(g, dy.data<T>() + t * D, D);
      for (int64_t k = 0; k < n; ++k) {
        widen(in, x.data<T>() + (t * n + k) * D, D);
        dpre.data<A>()[t * n + k] = dot(g, in, D);
        if (!dx.defined()) continue;
        const A weight = row_of<A>(pre, t)[k];
        T* const out = dx.data<T>() + (t * n + k) * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) store(out[d], weight * g[d]);
      }
    });
  });
}

void expand_streams(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& mix) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = y.shape().last(), n = out.shape().last() / D;
    for_tokens<A>(stream, out, D, [&](int64_t t, A* sums) {
      const A* const weights = row_of<A>(mix, t);
      for (int64_t k = 0; k < n; ++k) {
        const A writing = weights ? weights[k] : A(1);
        const T* const added = y.data<T>() + t * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) sums[d] = writing * A(added[d]);
        for (int64_t j = 0; x.defined() && j < n; ++j) {
          const A weight = weights[n + j * n + k];
          const T* const in = x.data<T>() + (t * n + j) * D;
#pragma omp simd
          for (int64_t d = 0; d < D; ++d) sums[d] += weight * A(in[d]);
        }
        T* const to = out.data<T>() + (t * n + k) * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) store(to[d], sums[d]);
      }
    });
  });
}

void expand_streams_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& dmix, const Tensor& dout,
                             const Tensor& x, const Tensor& y, const Tensor& mix) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = y.shape().last(), n = dout.shape().last() / D;
    for_tokens<A>(stream, dout, (n + 2) * D, [&](int64_t t, A* numbers) {
      A *const g = numbers, *const in = g + n * D, *const sums = in + D;  // gradients of all streams [n D]
      const A* const weights = row_of<A>(mix, t);
      A* const dweights = dmix.data<A>() + t * dmix.shape().last();
      widen(g, dout.data<T>() + t * n * D, n * D);
      // The sum over streams k of weight(k) times their gradients.
      const auto gather = [&](auto weight) {
        std::fill(sums, sums + D, A(0));
        for (int64_t k = 0; k < n; ++k) {
          const A factor = weight(k);
#pragma omp simd
          for (int64_t d = 0; d < D; ++d) sums[d] += factor * g[k * D + d];
        }
      };
      widen(in, y.data<T>() + t * D, D);
      for (int64_t k = 0; k < n; ++k) dweights[k] = dot(g + k * D, in, D);
      gather([&](int64_t k) { return weights[k]; });
      T* const to = dy.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(to[d], sums[d]);
      for (int64_t j = 0; j < n; ++j) {
        widen(in, x.data<T>() + (t * n + j) * D, D);
        for (int64_t k = 0; k < n; ++k) dweights[n + j * n + k] = dot(g + k * D, in, D);
        if (!dx.defined()) continue;
        gather([&](int64_t k) { return weights[n + j * n + k]; });
        T* const out = dx.data<T>() + (t * n + j) * D;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) store(out[d], sums[d]);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
