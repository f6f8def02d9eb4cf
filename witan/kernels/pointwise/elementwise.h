// Arithmetic on contiguous tensors of equal shape [..] and, where nothing else is said, one floating dtype, element by
// element, in float32 or wider.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y = a + b;  one dtype, floating or int64.  y may be a or b.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
WITAN_KERNEL_TWINS(add)

// y = a b, element by element;  one floating dtype.  y may be a or b.
void product(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
WITAN_KERNEL_TWINS(product)

// y (=|+=) alpha x;  floating dtypes, y's may differ from x's.  y may be x.
void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha);
WITAN_KERNEL_TWINS(scale)

// to (=|+=) from, in to's dtype;  floating dtypes. For sums of gradients, whose dtype may be wider
void accumulate(Stream& stream, const Tensor& to, Write write, const Tensor& from);
WITAN_KERNEL_TWINS(accumulate)

// y = x in y's dtype (bf16: rounded to nearest even)
void cast(Stream& stream, const Tensor& y, const Tensor& x);
WITAN_KERNEL_TWINS(cast)

// y[0] = sum of x;  y [1] accumulator dtype of x.  Blocks of kSumBlock elements are summed into `partials`, a workspace
// of [number of blocks] float64, and those in order.
inline constexpr int64_t kSumBlock = 4096;
void sum(Stream& stream, const Tensor& y, const Tensor& partials, const Tensor& x);
WITAN_KERNEL_TWINS(sum)

// y[..] = x[0];  x [1], floating dtypes
void broadcast(Stream& stream, const Tensor& y, const Tensor& x);
WITAN_KERNEL_TWINS(broadcast)

// y[..] = value
void fill(Stream& stream, const Tensor& y, double value);
WITAN_KERNEL_TWINS(fill)

// y = min(max(x, -bound), bound);  bound above 0, y may be x
void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound);
WITAN_KERNEL_TWINS(clamp_forward)

// dx = dy where -bound <= x <= bound, and 0 elsewhere;  dx may be dy
void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound);
WITAN_KERNEL_TWINS(clamp_backward)

// Soft caps of logits (Bello et al., 2016; Gemma 2, 2024):  y = cap tanh(scale x / cap).  y may be x.
void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap);
WITAN_KERNEL_TWINS(soft_cap_forward)

// dx = scale (1 - (y / cap)^2) dy.  dx may be dy.
void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap);
WITAN_KERNEL_TWINS(soft_cap_backward)

// The sum of two tensors, each times a learned factor wa, wb, w [1] of the same dtype; undefined: 1.
// y = wa a + wb b;  b undefined: y = wa a.  y may be a or b.
void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb);
WITAN_KERNEL_TWINS(scaled_sum)

// The backward of one term, w x:  dx = w dy   dw (=|+=) sum dy x;  dw [1] in the gradient dtype.  dx undefined: not
// wanted. Blocks of kSumBlock elements are summed into `partials`, a workspace of [number of blocks] float64, and those
// in order.
void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w);
WITAN_KERNEL_TWINS(scaled_sum_backward)

// A gate for each row; x, y, dx, dy [T, D], gate, dgate [T].
// y[t,d] = sigmoid(gate[t]) x[t,d]
void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate);
WITAN_KERNEL_TWINS(row_gate_forward)

// With p = sigmoid(gate[t]):  dx[t,d] = p dy[t,d]   dgate[t] = p (1 - p) sum_d dy[t,d] x[t,d]
void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate);
WITAN_KERNEL_TWINS(row_gate_backward)

// A gate for each element; all of one floating dtype and shape, contiguous.
// y = sigmoid(gate) x
void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate);
WITAN_KERNEL_TWINS(sigmoid_gate_forward)

// With p = sigmoid(gate):  dx = p dy   dgate = p (1 - p) dy x
void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate);
WITAN_KERNEL_TWINS(sigmoid_gate_backward)

}  // namespace witan::kernels
