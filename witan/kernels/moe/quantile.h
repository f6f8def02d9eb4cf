// Quantile balancing: experts are chosen by their logits plus a bias each, which is set from quantiles of the logits so
// that each expert gets its even share of the tokens (Su, https://kexue.fm/archives/11619; Megatron-Core's
// qb_dual_update, whose beta is minus the bias). Everything is in the accumulator dtype A unless it says otherwise.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// ids[t] = the K experts of largest logits[t,e] + bias[e], best first, of equals the lower;
// margins[e,t] = logits[t,e] - the (K+1)th largest of logits[t] + bias, where margins are defined.
// ids [T, K] int32, margins [E, T], logits [T, E] with K < E, bias [E] float32. sequence_ids [T] int32 or undefined:
// where it is negative a row is padding, whose ids are -1 and whose margins are -inf.
void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids = {});
WITAN_KERNEL_TWINS(choose_by_quantiles)

// What a micro-batch tells of the bias: sums[e] = 2^32 q[e], rounded, and sums[E] = 1, with q[e] the (n+1)th largest of
// the R T margins of expert e, n = floor(R T K / E): with bias -q[e], and the others' as they are, n tokens choose it.
// Integers, so that micro-batches' sums are exact in any order. |q| is limited to 2^16; a NaN tells 0.
// margins [R, E, T]: of R parts of the tokens;  sums [E + 1] int64. Where some rows are padding, tokens [1] int64 is
// the number of the others, which stands for R T; undefined: all rows are tokens. Of no tokens all sums are 0.
void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& tokens = {});
WITAN_KERNEL_TWINS(quantile_sums)

// bias[e] = mean_e'(q[e']) - q[e], with q[e] = sums[e] / (2^32 sums[E]) the mean over the step's micro-batches. A step
// that is skipped (kernels/common/step_value.h), or of no micro-batches, leaves it as it is. bias [E] float32.
void update_quantile_bias(Stream& stream, const Tensor& bias, const Tensor& sums, const Tensor& step);
WITAN_KERNEL_TWINS(update_quantile_bias)

inline constexpr double kQuantileUnit = 0x1p32, kMostQuantile = 0x1p16;

}  // namespace witan::kernels
