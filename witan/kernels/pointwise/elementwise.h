// Arithmetic on contiguous tensors of equal shape [..], element by element, in float32 or wider.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y = a + b;  one dtype, floating or int64.  y may be a or b.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
WITAN_KERNEL_TWINS(add)

// y (=|+=) alpha x;  floating dtypes, y's may differ from x's.  y may be x.
void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha);
WITAN_KERNEL_TWINS(scale)

// to (=|+=) from, in to's dtype;  floating dtypes: the sum of gradients, which may be kept wider than they come
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

}  // namespace witan::kernels
