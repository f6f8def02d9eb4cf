#include "witan/kernels/pointwise/activation.h"

namespace witan::kernels {
namespace {

// Of the groups' rows, or of all. An exponential or an error function counts as 10. `bytes`: of all tensors' rows.
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

}  // namespace witan::kernels
