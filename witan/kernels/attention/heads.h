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

// RMSNorm of every head of queries and of keys, and the rotation behind it, in one pass: what kernels/norm/norm.h and
// kernels/attention/heads.h do one after the other, the norm's result rounded to the dtype between.
//
// x, y, dx, dy [B, S, H or G, hd], w [hd], of one floating dtype   r [B S H or G] accumulator dtype, of the norm
// dw [hd] in the gradient dtype   table [B S, R] as in kernels/attention/heads.h, undefined where args.dims is 0
// all contiguous; on a GPU hd is at most 256. Sums in float32 or wider.

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

// From the projections of multi-head latent attention (DeepSeek-V2, 2024, arXiv:2405.04434) to the heads of attention:
// rotary positions of the channels that have them (kernels/attention/rope.h), and one rotating key for all heads.
// With n channels of a head without positions, R that rotate behind them, and hd_v of values:
// q, dq [T, H (n + R)]: a row is [n | R] of each head
// kv, dkv [T, H (n + hd_v)]: a row is [the key's n | the value] of each head
// rope_key, drope_key [T, R]: the rotating channels of every head's key
// table [T, R] accumulator dtype, of rotary_table (kernels/attention/heads.h) with args.dims = R; undefined: nothing
// rotates

struct LatentRows {
  Tensor q, kv, rope_key;  // contiguous
};

// heads.q = [q's n | its R turned], heads.k = [kv's n | rope_key turned], heads.v = kv's value;
// heads.q, heads.k [T, H, n + R]   heads.v [T, H, hd_v]
void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args);
WITAN_KERNEL_TWINS(latent_heads)

// Its transpose: drope_key sums the heads' keys, in their order and in the accumulator dtype, and turns the sum back.
void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args);
WITAN_KERNEL_TWINS(latent_heads_backward)

}  // namespace witan::kernels
