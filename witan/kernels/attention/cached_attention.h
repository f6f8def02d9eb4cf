// Attention of few tokens of many sequences, whose keys and values are in caches (kernels/attention/kv_cache.h): what a
// step of generation does. Each token reads the keys that it sees once, for all query heads of a group.
//
// q [T, 1, H, hd]   y [T, 1, H, hd_v]   keys [R, C, G, hd], values [R, C, G, hd_v]   lse [T, H, 1] accumulator dtype,
// or undefined: not wanted. Token t of row rows[t] stands at position p = positions[t] and attends to positions 0 .. p
// of its row, the last `window` of them where that is not 0, its own included: they must be in the cache. The
// mathematics of attention_forward. The CPU twins agree to the bit, as keys are met in the same order; CUDA's to a few
// roundings of the dtype.
#pragma once

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan::kernels {

struct CachedInputs {
  Tensor q, keys, values;
  CacheTokens tokens;
  double scale = 1;
  int64_t window = 0;  // positions that a token sees, itself included; 0: all up to its own
};

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in);
WITAN_KERNEL_TWINS(cached_attention)

}  // namespace witan::kernels
