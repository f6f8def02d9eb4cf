// Losses of balance beside the one that the router's kernels form (kernels/moe/router.h): of other tokens' load.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// How many tokens a loss is of.
struct TokenCount {
  int64_t rows = 0;     // tokens and padding
  Tensor counted = {};  // [1] int64: the tokens, from count_tokens(); undefined: all rows are tokens
};

// loss[0] = E / (tokens N) sum_e counts[e] sum_b sums[b,e], with N = sum_e counts[e]: 1 when the load is even (Fedus et
// al., "Switch Transformers", arXiv:2101.03961). sums [B E + kTokenSums] as of router_sums(), of so many tokens;
// counts [E] int64: assignments per expert, of those tokens or others. loss [1].
void balance_loss(Stream& stream, const Tensor& loss, const Tensor& sums, const Tensor& counts,
                  const TokenCount& tokens);
WITAN_KERNEL_TWINS(balance_loss)

// dprobs[e] (=|+=) dloss[0] E counts[e] / (tokens N): that loss's gradient by the probabilities of each of the tokens.
// The counts are constants. dprobs [E], dloss [1].
void balance_backward(Stream& stream, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write);
WITAN_KERNEL_TWINS(balance_backward)

}  // namespace witan::kernels
