// Attention sinks: a logit of each head that takes part in the softmax of every query and stands for no value, so that
// a head may attend to nothing (gpt-oss, arXiv:2508.10925; softmax_type "learnable" of Megatron-LM). They are joined to
// what any attention kernel has made, whose backward then needs nothing of its own: given the y and lse from here, it
// forms the probabilities and the sums of the longer softmax.
//
// y, dy [B, S, H, hd_v]   sinks [H], of one floating dtype   lse [B, H, S] accumulator dtype   all contiguous
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// l = log(exp lse + exp sinks[h]),  y = exp(lse - l) y,  lse = l.  Overwrites y and lse, which are of all keys that a
// query sees.
void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks);
WITAN_KERNEL_TWINS(attention_sinks_forward)

// With y and lse as forward left them:  dsinks[h] (=|+=) - sum_b,i exp(sinks[h] - lse[b,h,i]) dy[b,i,h,:] . y[b,i,h,:]
// dsinks [H] in the gradient dtype
void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks);
WITAN_KERNEL_TWINS(attention_sinks_backward)

}  // namespace witan::kernels
