// The cache of keys or values that generation reads.
#pragma once

#include "witan/kernels/launch.h"

namespace witan::kernels {

// cache[b, past + s, :] = x[b, s, :];  cache [B, Smax, G, hd], x [B, S, G, hd] of one dtype, past + S <= Smax
void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, int64_t past);
WITAN_KERNEL_TWINS(append_to_cache)

}  // namespace witan::kernels
