// Each row is processed by one task. The backward reads an element's inputs before it overwrites them, so dh may be h,
// and dy may be the half of dh that holds up's gradients.
#include "witan/kernels/pointwise/activation.h"

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cpu {
namespace {

using rules::SquaredRelu, rules::ValueAndSlope;
using ClampedSilu = rules::ClampedSilu<Math>;
using ExactGelu = rules::ExactGelu<Math>;
using Silu = rules::Silu<Math>;
using TanhGelu = rules::TanhGelu<Math>;

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

// The stride between rows of a tensor seen as [T, F].
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
