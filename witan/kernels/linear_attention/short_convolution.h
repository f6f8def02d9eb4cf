// The short causal convolution: each channel is filtered by itself. In front of a recurrence SiLU is applied to the sum
// (Mamba, Gu & Dao, 2023, arXiv:2312.00752; Gated DeltaNet, Yang et al., 2024, arXiv:2412.06464); LFM2, which has such
// convolutions in place of a recurrence, multiplies its inputs and outputs by gates instead.
//
// x, y, dx, dy [B, S, C], contiguous or the same channels of such tensors   sequence_ids [B, S] int32, or undefined for
// one sequence per row: a document is a run of equal ids, and a token sees tokens of its own document alone, so that a
// document has the same bits wherever it lies in a row. Sums in float32 or wider, from the bias on in the order of the
// taps.
#pragma once

#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The filters of the channels, of x's floating dtype.
struct ConvolutionFilters {
  Tensor w;          // [C, W], W at least 2: the last tap is that of the token itself
  Tensor bias = {};  // [C], or undefined: 0
  bool silu = true;  // whether the activation follows
};

// u[b,t,c] = bias[c] + sum_j w[c,j] x[b, t - W + 1 + j, c] over the tokens of t's document,  y = u sigmoid(u) with the
// activation, else y = u
void short_convolution_forward(Stream& stream, const Tensor& y, const Tensor& x, const ConvolutionFilters& filters,
                               const Tensor& sequence_ids);
WITAN_KERNEL_TWINS(short_convolution_forward)

// du = dy silu'(u), with u computed again, or dy without the activation:  dx[b,s,c] = sum_j w[c,j] du[b, s + W - 1 - j,
// c] over the document, dw[c,j] (=|+=) sum_{b,t} du[b,t,c] x[b, t - W + 1 + j, c],  dbias[c] (=|+=) sum_{b,t}
// du[b,t,c].  Gradients are undefined where they are not wanted; dw [C, W] and dbias [C] have the gradient dtype
struct ConvolutionGradients {
  Tensor dx, dw, dbias = {};
  Write write_w = Write::overwrite, write_bias = Write::overwrite;
};
void short_convolution_backward(Stream& stream, const ConvolutionGradients& to, const Tensor& dy, const Tensor& x,
                                const ConvolutionFilters& filters, const Tensor& sequence_ids);
WITAN_KERNEL_TWINS(short_convolution_backward)

// A generation step: x, y [T, C] of the step's tokens, run after run. tails [R, W - 1, C] of x's dtype keep the inputs
// of each row's last W - 1 positions, position p in slot p mod (W - 1); slots before position 0 are not read. The bits
// of y are those of the forward over the whole sequence.
void short_convolution_decode(Stream& stream, const Tensor& y, const Tensor& tails, const Tensor& x,
                              const ConvolutionFilters& filters, const CacheTokens& tokens);
WITAN_KERNEL_TWINS(short_convolution_decode)

// y[t,c] = a[t,c] b[t,c];  y, a, b [T, C] of one floating dtype, each contiguous or some columns of such a matrix
void multiply_columns(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);
WITAN_KERNEL_TWINS(multiply_columns)

}  // namespace witan::kernels
