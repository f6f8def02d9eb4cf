// Activations of feed-forward layers, with an optional weight per row (an expert's output times its routing weight).
// h [T, 2F] for those with a gate, [T, F] for others   y, dy [T, F]   dh of h's shape   s, ds [T]
// accumulator dtype; undefined: none. groups limits the work to its rows (groups.begin undefined: every row): others
// are neither read nor written, so that their y, dh and ds stay undefined. In float32 or wider; dh may be h itself.
// dy of gated ones may be the second half of dh's columns, where the gradients of the ups replace it.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/tensor/ragged.h"

namespace witan {

enum class GeluKind : uint8_t { exact, tanh };

// How SwiGLU differs from Shazeer's; as it is, not at all. gpt-oss (OpenAI, 2025) has a clamp of 7, a scale of 1.702
// and an offset of 1.
struct SwigluForm {
  double clamp = 0;   // c: the gate is at most c, the linear half within [-c, c]; 0: neither is clamped
  double scale = 1;   // of the gate within the sigmoid
  double offset = 0;  // added to the linear half, after the clamp

  bool plain() const { return clamp == 0 && scale == 1 && offset == 0; }
};

}  // namespace witan

namespace witan::kernels {

// SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020); h = [gate | up], Megatron-LM's order.
// y[t,f] = silu(gate[t,f]) * up[t,f] * s[t],  silu(g) = g * sigmoid(g)
void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(swiglu_forward)

// dgate = dy s up sigmoid(g) (1 + g (1 - sigmoid(g)))   dup = dy s silu(g)   ds[t] = sum_f dy silu(gate) up
// ds undefined: not wanted
void swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                     const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(swiglu_backward)

// With g = min(gate, c) and u = min(max(up, -c), c):  y[t,f] = g sigmoid(scale g) (u + offset) s[t]
void clamped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                            const SwigluForm& form);
WITAN_KERNEL_TWINS(clamped_swiglu_forward)

// Its derivatives, which are 0 where an input lies beyond the clamp, and not where it lies on it, as torch.clamp's.
// ds undefined: not wanted
void clamped_swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                             const Tensor& s, const RowGroups& groups, const SwigluForm& form);
WITAN_KERNEL_TWINS(clamped_swiglu_backward)

// Squared ReLU (So et al., "Primer", 2021):  y[t,f] = max(h[t,f], 0)^2 s[t]
void squared_relu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(squared_relu_forward)

// dh = 2 dy s max(h, 0)   ds[t] = sum_f dy max(h, 0)^2;  ds undefined: not wanted
void squared_relu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                           const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(squared_relu_backward)

// A gate of squared ReLU; h = [gate | up]:  y[t,f] = max(gate[t,f], 0)^2 up[t,f] s[t]
void squared_reglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(squared_reglu_forward)

// dgate = 2 dy s up max(gate, 0)   dup = dy s max(gate, 0)^2   ds[t] = sum_f dy max(gate, 0)^2 up
// ds undefined: not wanted
void squared_reglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                            const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(squared_reglu_backward)

// SiLU (Elfwing et al., 2017):  y[t,f] = h[t,f] sigmoid(h[t,f]) s[t]
void silu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(silu_forward)

// dh = dy s sigmoid(h) (1 + h (1 - sigmoid(h)))   ds[t] = sum_f dy silu(h);  ds undefined: not wanted
void silu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups);
WITAN_KERNEL_TWINS(silu_backward)

// GELU (Hendrycks & Gimpel, 2016):  y[t,f] = gelu(h[t,f]) * s[t]
// exact: gelu(x) = x/2 (1 + erf(x / sqrt 2))   tanh: gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
void gelu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                  GeluKind kind);
WITAN_KERNEL_TWINS(gelu_forward)

// dh = dy s gelu'(h)   ds[t] = sum_f dy gelu(h);  ds undefined: not wanted
void gelu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups, GeluKind kind);
WITAN_KERNEL_TWINS(gelu_backward)

// GEGLU (Shazeer, 2020); h = [gate | up]:  y[t,f] = gelu(gate[t,f]) * up[t,f] * s[t]
void geglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                   GeluKind kind);
WITAN_KERNEL_TWINS(geglu_forward)

// dgate = dy s up gelu'(gate)   dup = dy s gelu(gate)   ds[t] = sum_f dy gelu(gate) up;  ds undefined: not wanted
void geglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                    const Tensor& s, const RowGroups& groups, GeluKind kind);
WITAN_KERNEL_TWINS(geglu_backward)

}  // namespace witan::kernels
