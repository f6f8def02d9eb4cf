// Noise on what a router reads (Fedus et al., "Switch Transformers", arXiv:2101.03961, 2.2: input jitter).
#pragma once

#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels {

// y[e] = x[e] (1 + eps (2 u[e] - 1)),  u[e] = w 2^-32 of the word w that dropout at the place `where` would compare
// (kernels/pointwise/dropout.h), whose p is not read;  x, y [..] of one floating dtype, contiguous. y may be x. The
// gradient is the same map. Parts of a tensor may begin and end anywhere.
void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, double eps);
WITAN_KERNEL_TWINS(jitter)

}  // namespace witan::kernels
