// From rows of projections to the heads of attention and back: splitting, norms of heads, rotary positions (rope.h) and
// the heads of latent attention.
//
// packed, dpacked [T, (H + G) hd + G hd_v]: a row is [q | k | v]   q, dq [T, H, hd]   k, dk [T, G, hd]
// v, dv [T, G, hd_v]
// table [T, R] accumulator dtype: a row is [cos | sin] of the R/2 angles of its token; R = args.dims, 0: nothing
// rotates
#pragma once

#include "witan/kernels/attention/rope.h"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels {

// The angles of positions [T] int32, as rope() forms them. args.dims above 0; args.inverse is not asked.
void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args);
WITAN_KERNEL_TWINS(rotary_table)

struct Heads {
  Tensor q, k, v;  // contiguous
};

// Splits rows into heads: q and k are rotated, v is copied. table undefined where args.dims is 0.
void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args);
WITAN_KERNEL_TWINS(split_heads)

// The transpose of split_heads: merges gradients of heads into dpacked, with q and k rotated back.
void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args);
WITAN_KERNEL_TWINS(merge_heads)

// RMSNorm of every head of queries and keys, followed by the rotation, in one pass. The norm's result is rounded to the
// dtype between them, as by rmsnorm_forward and rope.
//
// x, y, dx, dy [B, S, H or G, hd], w [hd], of one floating dtype   r [B S H or G] accumulator dtype, of the norm
// dw [hd] in the gradient dtype   table [B S, R] as above, undefined where args.dims is 0
// all contiguous; on a GPU hd is at most 256. Sums in float32 or wider.

// The tensors of queries or of keys.
struct HeadNorm {
  Tensor y, r, x;
  NormWeight w;
};
void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps);
WITAN_KERNEL_TWINS(head_norms_forward)

struct HeadNormGradient {
  Tensor dx, dw;
  Write write;  // of dw
  Tensor dy, x;
  NormWeight w;
  Tensor r;
};
void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args);
WITAN_KERNEL_TWINS(head_norms_backward)

// Projections of multi-head latent attention (DeepSeek-V2, 2024, arXiv:2405.04434), whose heads have n channels without
// positions followed by R that rotate, and hd_v channels of values. All heads share one rotating key.
// q, dq [T, H (n + R)]: a row is [n | R] of each head
// kv, dkv [T, H (n + hd_v)]: a row is [the key's n | the value] of each head
// rope_key, drope_key [T, R]: the rotating channels of every head's key
// table [T, R] accumulator dtype, from rotary_table with args.dims = R; undefined: nothing rotates
struct LatentRows {
  Tensor q, kv, rope_key;  // contiguous
};

// heads.q = [q's n | its R turned], heads.k = [kv's n | rope_key turned], heads.v = kv's value;
// heads.q, heads.k [T, H, n + R]   heads.v [T, H, hd_v]
void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args);
WITAN_KERNEL_TWINS(latent_heads)

// The transpose of latent_heads: drope_key sums the heads' keys, in their order and in the accumulator dtype, and turns
// the sum back.
void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args);
WITAN_KERNEL_TWINS(latent_heads_backward)

// The channels that rotate alone, for attention to latents, whose other channels are projected for each head:
// turned.q = [the R of each of q's heads, turned] [T, H, R], turned.key = rope_key turned [T, R];  q [T, H (n + R)]
struct TurnedChannels {
  Tensor q, key;
};
void turn_latent_channels(Stream& stream, const TurnedChannels& turned, const Tensor& q, const Tensor& rope_key,
                          const Tensor& table, const RopeArgs& args);
WITAN_KERNEL_TWINS(turn_latent_channels)

}  // namespace witan::kernels
