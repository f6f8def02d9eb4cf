// QK-clip (Kimi Team, "Kimi K2", 2025, arXiv:2507.20534, algorithm 1) bounds attention logits by scaling the weights of
// queries and keys. A group of heads that share keys is clipped by its largest logit, as in Megatron-LM's --qk-clip. In
// latent attention (nn/attention/latent.h) all heads share the rotary channels of keys: a head's queries for them are
// scaled by all of gamma.
#pragma once

#include <limits>

#include "witan/kernels/attention/attention.h"

namespace witan::kernels {

// largest[h] = max(largest[h], max_(b, i, j) s[i,j]) over the pairs of attention_forward with the same inputs, s as
// there, except pairs whose query is padding, which has a negative sequence id (kernels/moe/router.h); v and dropout
// are not read.  largest [H] accumulator dtype of q
void attention_max_logits(Stream& stream, const Tensor& largest, const AttentionInputs& in);
WITAN_KERNEL_TWINS(attention_max_logits)

// The tensors that clipping scales: p of kernels/optimizer/optimizer.h, consecutive rows of a query or key projection.
struct ClippedTensors {
  Tensor value, remainder;  // flat; written
};
struct ClipArgs {
  double threshold;   // of logits
  double exponent;    // queries alpha, keys 1 - alpha
  int64_t first;      // the first value's index in the projection of all heads
  int64_t per_group;  // elements of a group's rows there
  // The number of a group's first elements that `exponent` applies to; the others have exponent_of_rest.
  int64_t leading = std::numeric_limits<int64_t>::max();
  double exponent_of_rest = 0;
};
// p = gamma_g^e p,  gamma_g = min(threshold / max_(h of g) largest[h], 1),  g = (first + i) / per_group, e the exponent
// of the element's place in its group. Nothing where step.skip is not 0.  largest [H] of all heads, groups G: H / G
// consecutive heads each
void clip_projection(Stream& stream, const ClippedTensors& to, const Tensor& largest, int64_t groups,
                     const Tensor& step, const ClipArgs& args);
WITAN_KERNEL_TWINS(clip_projection)

}  // namespace witan::kernels
