// From the projections of multi-head latent attention (DeepSeek-V2, 2024, arXiv:2405.04434) to the heads of attention:
// rotary positions of the channels that have them (kernels/attention/rope.h), and one rotating key for all heads.
// With n channels of a head without positions, R that rotate behind them, and hd_v of values:
// q, dq [T, H (n + R)]: a row is [n | R] of each head
// kv, dkv [T, H (n + hd_v)]: a row is [the key's n | the value] of each head
// rope_key, drope_key [T, R]: the rotating channels of every head's key
// table [T, R] accumulator dtype, of rotary_table (kernels/attention/heads.h) with args.dims = R; undefined: nothing
// rotates
#pragma once

#include "witan/kernels/attention/heads.h"

namespace witan::kernels {

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
