#include "witan/kernels/pointwise/activation.h"
#include "witan/kernels/pointwise/activation_moments.h"
#include "witan/kernels/pointwise/dropout.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels {
namespace {

// The cost over the groups' rows, or over all rows if there are no groups. An exponential or an error function counts
// as 10 FLOPs. `bytes`: of all tensors' rows.
Cost cost_of(double flops_per_output, const Tensor& y, const RowGroups& groups, double bytes) {
  const int64_t capacity = y.shape().as_rows().first;
  if (capacity == 0) return {};
  const int64_t rows = groups.begin.defined() ? groups.rows_of(capacity) : capacity;
  const double share = static_cast<double>(rows) / static_cast<double>(capacity);
  return {flops_per_output * static_cast<double>(y.elements()) * share, bytes * share};
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, swiglu_forward, cost_of(15, y, groups, bytes_of(y, h, s)), y, h, s, groups);
}

void swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                     const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, swiglu_backward, cost_of(24, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s, groups);
}

void clamped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                            const SwigluForm& form) {
  WITAN_LAUNCH(stream, clamped_swiglu_forward, cost_of(19, y, groups, bytes_of(y, h, s)), y, h, s, groups, form);
}

void clamped_swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                             const Tensor& s, const RowGroups& groups, const SwigluForm& form) {
  WITAN_LAUNCH(stream, clamped_swiglu_backward, cost_of(30, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s,
               groups, form);
}

void squared_relu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, squared_relu_forward, cost_of(3, y, groups, bytes_of(y, h, s)), y, h, s, groups);
}

void squared_relu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                           const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, squared_relu_backward, cost_of(7, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s,
               groups);
}

void squared_reglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, squared_reglu_forward, cost_of(4, y, groups, bytes_of(y, h, s)), y, h, s, groups);
}

void squared_reglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                            const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, squared_reglu_backward, cost_of(10, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s,
               groups);
}

void silu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, silu_forward, cost_of(14, y, groups, bytes_of(y, h, s)), y, h, s, groups);
}

void silu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups) {
  WITAN_LAUNCH(stream, silu_backward, cost_of(20, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s, groups);
}

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                  GeluKind kind) {
  WITAN_LAUNCH(stream, gelu_forward, cost_of(16, y, groups, bytes_of(y, h, s)), y, h, s, groups, kind);
}

void gelu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups, GeluKind kind) {
  WITAN_LAUNCH(stream, gelu_backward, cost_of(30, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s, groups,
               kind);
}

void geglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                   GeluKind kind) {
  WITAN_LAUNCH(stream, geglu_forward, cost_of(17, y, groups, bytes_of(y, h, s)), y, h, s, groups, kind);
}

void geglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                    const Tensor& s, const RowGroups& groups, GeluKind kind) {
  WITAN_LAUNCH(stream, geglu_backward, cost_of(32, dy, groups, bytes_of(dh, ds, dy, h, s)), dh, ds, dy, h, s, groups,
               kind);
}

void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added,
                        const Tensor& sequence_ids) {
  assert(out.dtype() == DType::f64 && out.elements() == kActivationMoments && x.contiguous());
  assert(!added.defined() || (added.shape() == x.shape() && added.dtype() == x.dtype() && added.contiguous()));
  assert(!sequence_ids.defined() || (sequence_ids.dtype() == DType::i32 && sequence_ids.contiguous() &&
                                     sequence_ids.elements() == x.shape().as_rows().first));
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(out, x, added, sequence_ids)};
  WITAN_LAUNCH(stream, activation_moments, cost, out, x, added, sequence_ids);
}

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(y, x)};
  WITAN_LAUNCH(stream, clamp_forward, cost, y, x, bound);
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(dx, dy, x)};
  WITAN_LAUNCH(stream, clamp_backward, cost, dx, dy, x, bound);
}

// Drawing random numbers is integer work, and is not counted.
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how) {
  WITAN_LAUNCH(stream, dropout, (Cost{static_cast<double>(x.elements()), bytes_of(y, x)}), y, x, how);
}

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  WITAN_LAUNCH(stream, add, (Cost{static_cast<double>(y.elements()), bytes_of(y, a, b)}), y, a, b);
}

void product(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  WITAN_LAUNCH(stream, product, (Cost{static_cast<double>(y.elements()), bytes_of(y, a, b)}), y, a, b);
}

void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha) {
  const bool adds = write == Write::accumulate;
  const Cost cost{(adds ? 2.0 : 1.0) * static_cast<double>(y.elements()), bytes_of(y, x) + (adds ? bytes_of(y) : 0.0)};
  WITAN_LAUNCH(stream, scale, cost, y, write, x, alpha);
}

void accumulate(Stream& stream, const Tensor& to, Write write, const Tensor& from) {
  const bool adds = write == Write::accumulate;
  const Cost cost{adds ? static_cast<double>(to.elements()) : 0.0, bytes_of(to, from) + (adds ? bytes_of(to) : 0.0)};
  WITAN_LAUNCH(stream, accumulate, cost, to, write, from);
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, cast, (Cost{0, bytes_of(y, x)}), y, x);
}

void sum(Stream& stream, const Tensor& y, const Tensor& partials, const Tensor& x) {
  WITAN_LAUNCH(stream, sum, (Cost{static_cast<double>(x.elements()), bytes_of(y, partials, x)}), y, partials, x);
}

void broadcast(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, broadcast, (Cost{0, bytes_of(y, x)}), y, x);
}

void fill(Stream& stream, const Tensor& y, double value) {
  WITAN_LAUNCH(stream, fill, (Cost{0, bytes_of(y)}), y, value);
}

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, const Jitter& noise) {
  const Cost cost{2.0 * static_cast<double>(y.elements()), bytes_of(y, x)};
  WITAN_LAUNCH(stream, jitter, cost, y, x, where, noise);
}

void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  WITAN_LAUNCH(stream, row_gate_forward, (Cost{static_cast<double>(x.elements()), bytes_of(y, x, gate)}), y, x, gate);
}

void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate) {
  const Cost cost{3 * static_cast<double>(x.elements()), bytes_of(dx, dgate, dy, x, gate)};
  WITAN_LAUNCH(stream, row_gate_backward, cost, dx, dgate, dy, x, gate);
}

void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  const Cost cost{4 * static_cast<double>(x.elements()), bytes_of(y, x, gate)};
  WITAN_LAUNCH(stream, sigmoid_gate_forward, cost, y, x, gate);
}

void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate) {
  const Cost cost{8 * static_cast<double>(x.elements()), bytes_of(dx, dgate, dy, x, gate)};
  WITAN_LAUNCH(stream, sigmoid_gate_backward, cost, dx, dgate, dy, x, gate);
}

void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb) {
  const double terms = b.defined() ? 3 : 1;
  WITAN_LAUNCH(stream, scaled_sum, (Cost{terms * static_cast<double>(y.elements()), bytes_of(y, a, wa, b, wb)}), y, a,
               wa, b, wb);
}

void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w) {
  const Cost cost{(dx.defined() ? 3.0 : 2.0) * static_cast<double>(dy.elements()),
                  bytes_of(dx, dw, partials, dy, x, w)};
  WITAN_LAUNCH(stream, scaled_sum_backward, cost, dx, dw, write, partials, dy, x, w);
}

// A tanh counts as 12 FLOPs.
void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap) {
  WITAN_LAUNCH(stream, soft_cap_forward, (Cost{14 * static_cast<double>(x.elements()), bytes_of(y, x)}), y, x, scale,
               cap);
}

void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap) {
  WITAN_LAUNCH(stream, soft_cap_backward, (Cost{5 * static_cast<double>(y.elements()), bytes_of(dx, dy, y)}), dx, dy, y,
               scale, cap);
}

}  // namespace witan::kernels
