// A row is one task's business. Backward reads an element's inputs before it writes over them, so dh may be h, and dy
// the half of dh that has the gradients of the ups.
#include "witan/kernels/pointwise/activation.h"

#include <limits>
#include <numbers>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/row_groups.h"
#include "witan/kernels/common/cpu/store.h"

namespace witan::kernels::cpu {
namespace {

// A function and its derivative at x; a caller that wants one alone leaves the other to the optimizer.
template <class A>
struct ValueAndSlope {
  A value, slope;
};

// A gate's other half as it is.
struct PlainUp {
  template <class A>
  [[gnu::always_inline]] static ValueAndSlope<A> up(A x) {
    return {x, A(1)};
  }
};

// silu = x sigmoid,  silu' = sigmoid (1 + x (1 - sigmoid))
struct Silu : PlainUp {
  template <class A>
  [[gnu::always_inline]] static ValueAndSlope<A> at(A x) {
    const A sigmoid = fast_sigmoid(x);
    return {x * sigmoid, sigmoid * (A(1) + x * (A(1) - sigmoid))};
  }
};

// Phi(x) = (1 + erf(x / sqrt 2)) / 2:  gelu = x Phi,  gelu' = Phi + x phi
struct ExactGelu : PlainUp {
  template <class A>
  [[gnu::always_inline]] static ValueAndSlope<A> at(A x) {
    const A cumulative = A(0.5) * (A(1) + fast_erf(x * A(1 / std::numbers::sqrt2)));
    const A density = fast_exp(A(-0.5) * x * x) * A(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return {x * cumulative, cumulative + x * density};
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2u):  gelu = x sigmoid(2u),  gelu' = sigmoid + x sigmoid (1 - sigmoid) 2u'
struct TanhGelu : PlainUp {
  template <class A>
  [[gnu::always_inline]] static ValueAndSlope<A> at(A x) {
    constexpr A c = A(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi), k = A(0.044715);
    const A gate = fast_sigmoid(c * (x + k * x * x * x));
    return {x * gate, gate + x * gate * (A(1) - gate) * c * (A(1) + A(3) * k * x * x)};
  }
};

// SwiGLU's halves in another form; where an input is clamped its slope is 0. Comparisons let a NaN through.
struct ClampedSilu {
  explicit ClampedSilu(const SwigluForm& form)
      : most(form.clamp > 0 ? form.clamp : std::numeric_limits<double>::infinity()),
        scale(form.scale),
        offset(form.offset) {}

  template <class A>
  [[gnu::always_inline]] ValueAndSlope<A> at(A x) const {
    const A gate = x > A(most) ? A(most) : x, sigmoid = fast_sigmoid(A(scale) * gate);
    const A slope = sigmoid * (A(1) + A(scale) * gate * (A(1) - sigmoid));
    return {gate * sigmoid, x > A(most) ? A(0) : slope};
  }
  template <class A>
  [[gnu::always_inline]] ValueAndSlope<A> up(A x) const {
    const A clamped = x > A(most) ? A(most) : x < A(-most) ? A(-most) : x;
    return {clamped + A(offset), clamped == x ? A(1) : A(0)};
  }

  double most, scale, offset;
};

struct SquaredRelu : PlainUp {
  template <class A>
  [[gnu::always_inline]] static ValueAndSlope<A> at(A x) {
    const A positive = x < A(0) ? A(0) : x;
    return {positive * positive, A(2) * positive};
  }
};

template <class Function>
void plain_rows_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  dispatch_floating(h.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_group_rows(stream, h, groups, [&, F = h.shape().last()](int64_t t) {
      const T* in = h.data<T>() + t * F;
      T* out = y.data<T>() + t * F;
      const A weight = s.defined() ? s.data<A>()[t] : A(1);
#pragma omp simd
      for (int64_t f = 0; f < F; ++f) store(out[f], Function::at(A(in[f])).value * weight);
    });
  });
}

template <class Function>
void plain_rows_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                         const Tensor& s, const RowGroups& groups) {
  dispatch_floating(h.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_group_rows(stream, h, groups, [&, F = h.shape().last()](int64_t t) {
      const T *in = h.data<T>() + t * F, *g = dy.data<T>() + t * F;
      T* out = dh.data<T>() + t * F;
      const A weight = s.defined() ? s.data<A>()[t] : A(1);
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t f = 0; f < F; ++f) {
        const ValueAndSlope<A> of = Function::at(A(in[f]));
        dot += A(g[f]) * of.value;
        store(out[f], A(g[f]) * weight * of.slope);
      }
      if (ds.defined()) ds.data<A>()[t] = dot;
    });
  });
}

// From row to row of what is seen as [T, F].
int64_t row_stride(const Tensor& rows) {
  return rows.shape().dims() == 2 ? rows.stride(0) : rows.shape().last();
}

// h = [gate | up]
template <class Gate>
void gated_rows_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                        Gate of = {}) {
  dispatch_floating(h.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_group_rows(stream, h, groups, [&, F = y.shape().last()](int64_t t) {
      const T *gate = h.data<T>() + t * 2 * F, *up = gate + F;
      T* out = y.data<T>() + t * F;
      const A weight = s.defined() ? s.data<A>()[t] : A(1);
#pragma omp simd
      for (int64_t f = 0; f < F; ++f) store(out[f], of.at(A(gate[f])).value * of.up(A(up[f])).value * weight);
    });
  });
}

template <class Gate>
void gated_rows_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                         const Tensor& s, const RowGroups& groups, Gate of = {}) {
  dispatch_floating(h.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_group_rows(stream, h, groups, [&, F = dy.shape().last(), apart = row_stride(dy)](int64_t t) {
      const T *gate = h.data<T>() + t * 2 * F, *up = gate + F, *dout = dy.data<T>() + t * apart;
      T *dgate = dh.data<T>() + t * 2 * F, *dup = dgate + F;
      const A weight = s.defined() ? s.data<A>()[t] : A(1);
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t f = 0; f < F; ++f) {
        const ValueAndSlope<A> open = of.at(A(gate[f])), linear = of.up(A(up[f]));
        const A d = A(dout[f]) * weight;
        dot += A(dout[f]) * open.value * linear.value;
        store(dgate[f], d * linear.value * open.slope);
        store(dup[f], d * open.value * linear.slope);
      }
      if (ds.defined()) ds.data<A>()[t] = dot;
    });
  });
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  gated_rows_forward<Silu>(stream, y, h, s, groups);
}

void swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                     const Tensor& s, const RowGroups& groups) {
  gated_rows_backward<Silu>(stream, dh, ds, dy, h, s, groups);
}

void clamped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                            const SwigluForm& form) {
  gated_rows_forward(stream, y, h, s, groups, ClampedSilu(form));
}

void clamped_swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                             const Tensor& s, const RowGroups& groups, const SwigluForm& form) {
  gated_rows_backward(stream, dh, ds, dy, h, s, groups, ClampedSilu(form));
}

void squared_relu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  plain_rows_forward<SquaredRelu>(stream, y, h, s, groups);
}

void squared_relu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                           const Tensor& s, const RowGroups& groups) {
  plain_rows_backward<SquaredRelu>(stream, dh, ds, dy, h, s, groups);
}

void squared_reglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  gated_rows_forward<SquaredRelu>(stream, y, h, s, groups);
}

void squared_reglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                            const Tensor& s, const RowGroups& groups) {
  gated_rows_backward<SquaredRelu>(stream, dh, ds, dy, h, s, groups);
}

void silu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  plain_rows_forward<Silu>(stream, y, h, s, groups);
}

void silu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups) {
  plain_rows_backward<Silu>(stream, dh, ds, dy, h, s, groups);
}

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                  GeluKind kind) {
  if (kind == GeluKind::exact) return plain_rows_forward<ExactGelu>(stream, y, h, s, groups);
  plain_rows_forward<TanhGelu>(stream, y, h, s, groups);
}

void gelu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups, GeluKind kind) {
  if (kind == GeluKind::exact) return plain_rows_backward<ExactGelu>(stream, dh, ds, dy, h, s, groups);
  plain_rows_backward<TanhGelu>(stream, dh, ds, dy, h, s, groups);
}

void geglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                   GeluKind kind) {
  if (kind == GeluKind::exact) return gated_rows_forward<ExactGelu>(stream, y, h, s, groups);
  gated_rows_forward<TanhGelu>(stream, y, h, s, groups);
}

void geglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                    const Tensor& s, const RowGroups& groups, GeluKind kind) {
  if (kind == GeluKind::exact) return gated_rows_backward<ExactGelu>(stream, dh, ds, dy, h, s, groups);
  gated_rows_backward<TanhGelu>(stream, dh, ds, dy, h, s, groups);
}

}  // namespace witan::kernels::cpu
