// The short causal convolution in front of a recurrence, with its activation: each channel is filtered by itself, then
// SiLU is applied (Mamba, Gu & Dao, 2023, arXiv:2312.00752; Gated DeltaNet, Yang et al., 2024, arXiv:2412.06464).
//
// x, y, dx, dy [B, S, C], contiguous or the same channels of such tensors   w [C, W] of the same floating dtype, W at
// least 2: the last tap is that of the token itself   bias [C] of this dtype, or undefined: 0   sequence_ids [B, S]
// int32, or undefined for one sequence per row: a document is a run of equal ids, and a token sees tokens of its own
// document alone, so that a document has the same bits wherever it lies in a row. Sums in float32 or wider, from the
// bias on in the order of the taps.
#pragma once

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// u[b,t,c] = bias[c] + sum_j w[c,j] x[b, t - W + 1 + j, c] over the tokens of t's document,  y = u sigmoid(u)
void short_convolution_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias,
                               const Tensor& sequence_ids);
WITAN_KERNEL_TWINS(short_convolution_forward)

// du = dy silu'(u), with u computed again:  dx[b,s,c] = sum_j w[c,j] du[b, s + W - 1 - j, c] over the document,
// dw[c,j] (=|+=) sum_{b,t} du[b,t,c] x[b, t - W + 1 + j, c],  dbias[c] (=|+=) sum_{b,t} du[b,t,c].  Gradients are
// undefined where they are not wanted; dw [C, W] and dbias [C] have the gradient dtype
struct ConvolutionGradients {
  Tensor dx, dw, dbias = {};
  Write write_w = Write::overwrite, write_bias = Write::overwrite;
};
void short_convolution_backward(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                                const Tensor& w, const Tensor& bias, const Tensor& sequence_ids);
WITAN_KERNEL_TWINS(short_convolution_backward)

// A generation step: x, y [T, C] of the step's tokens, run after run. tails [R, W - 1, C] of x's dtype keep the inputs
// of each row's last W - 1 positions, position p in slot p mod (W - 1); slots before position 0 are not read. The bits
// of y are those of the forward over the whole sequence.
void short_convolution_decode(Stream& stream, const Tensor& y, const Tensor& tails, const Tensor& x, const Tensor& w,
                              const Tensor& bias, const CacheTokens& tokens);
WITAN_KERNEL_TWINS(short_convolution_decode)

}  // namespace witan::kernels
