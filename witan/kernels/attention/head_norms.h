// RMSNorm of every head of queries and of keys, and the rotation behind it, in one pass: what kernels/norm/norm.h and
// kernels/attention/heads.h do one after the other, the norm's result rounded to the dtype between.
//
// x, y, dx, dy [B, S, H or G, hd], w [hd], of one floating dtype   r [B S H or G] accumulator dtype, of the norm
// dw [hd] in the gradient dtype   table [B S, R] as in kernels/attention/heads.h, undefined where args.dims is 0
// all contiguous; on a GPU hd is at most 256. Sums in float32 or wider.
#pragma once

#include "witan/kernels/attention/rope.h"

namespace witan::kernels {

// Of queries or of keys.
struct HeadNorm {
  Tensor y, r, x, w;
};
void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps);
WITAN_KERNEL_TWINS(head_norms_forward)

struct HeadNormGradient {
  Tensor dx, dw;
  Write write;  // of dw
  Tensor dy, x, w, r;
};
void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args);
WITAN_KERNEL_TWINS(head_norms_backward)

}  // namespace witan::kernels
