// Between one projection's rows and the heads of attention: rotary positions (kernels/attention/rope.h) on the way.
// packed, dpacked [T, (H + G) hd + G hd_v]: a row is [q | k | v]   q, dq [T, H, hd]   k, dk [T, G, hd]
// v, dv [T, G, hd_v]
// table [T, R] accumulator dtype: a row is [cos | sin] of the R/2 angles of its token; R = args.dims, 0: nothing
// rotates
#pragma once

#include "witan/kernels/attention/rope.h"

namespace witan::kernels {

// The angles of positions [T] int32, as rope() forms them. args.dims above 0; args.inverse is not asked.
void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args);
WITAN_KERNEL_TWINS(rotary_table)

struct Heads {
  Tensor q, k, v;  // contiguous
};

// q and k rotated, v as it is. table undefined where args.dims is 0.
void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args);
WITAN_KERNEL_TWINS(split_heads)

// Its transpose, from the gradients of heads to that of packed: q and k rotated back.
void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args);
WITAN_KERNEL_TWINS(merge_heads)

}  // namespace witan::kernels
