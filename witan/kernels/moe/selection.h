// Choices of experts other than that of the highest scores, which router_forward() makes itself (kernels/moe/router.h):
// with a bias of each expert, from a few groups of experts, by random words, and after Sinkhorn's normalisation. A
// choice gives each expert of a token a key and takes the K largest, best first and of equal keys the lower expert; the
// weights are always made of the token's scores.
#pragma once

#include <bit>
#include <cstdint>

#include "witan/kernels/common/launch.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels {

// Keys that are random words: the same for a token wherever it is routed. Word w of token n is that of Philox
//   in training   under the key of `where` (kernels/pointwise/dropout.h), whose p is not read, with n =
//   where.part.element(t); where there are token ids   under key 0 and the stream where.site, with n = ids[t]: a
//   function of the id alone;
// block n (1 + ceil(E / 4)) + w / 4, word w % 4. The first 24 bits of word 4 + e are expert e's key, or where there is
// a Zipf exponent what its key is made of (kernels/moe/selection.h). A token whose word 0 is below skew 2^32 chooses
// experts 0 … hot-1 before all others.
struct RandomKeys {
  Dropout where = {};
  Tensor ids = {};      // [T] int32, or undefined
  double skew = 0;      // share of tokens that choose the hot experts first, in [0, 1]
  int64_t hot = 0;      // how many they are; 0: K
  double exponent = 0;  // Zipf's, in [0, 16]; 0: all experts are equally likely

  bool on() const { return where.step.defined() || ids.defined(); }
};

struct Selection {
  Scores keys = Scores::softmax_of_chosen;  // which scores are keys; softmax_of_chosen: the logits
  Tensor bias = {};                         // [E] float32 or of the logits' dtype, added to the keys; undefined: none
  // Experts are in groups of E / groups neighbours, each of which has the sum of its group_score_topk largest keys, of
  // which the group_topk largest groups alone are chosen from. With group_score_topk = 1 that is DeepSeek-V2
  // (arXiv:2405.04434, 2.2.2), with 2 DeepSeek-V3 (arXiv:2412.19437, 2.1.2), with K / group_topk Megatron-Core's
  // group_limited_topk. 1 group: no limit.
  int64_t groups = 1, group_topk = 1, group_score_topk = 1;
  RandomKeys random = {};  // where it is on, keys are random words instead
};

// Writes out.ids and out.weights [T, K]; reads out.probs, as router_forward() leaves them with the same scoring. Keys
// that are softmax need a scoring whose probs are. Padding (out.sequence_ids) gets ids of -1 and weights of 0.
void select_experts(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection);
WITAN_KERNEL_TWINS(select_experts)

// Writes the weights of out.ids, whoever chose them, as router_forward() weighs its own choice: from out.probs, which
// it wrote, and logits [T, E]. The same ids get the same bits. Padding (out.sequence_ids) gets ids of -1 and weights of
// 0.
void weigh_chosen(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring);
WITAN_KERNEL_TWINS(weigh_chosen)

// out[t,:] = table[tokens[t],:];  out [T, K] int32, table [V, K] float32 of whole numbers, tokens [T] int32
void look_up_experts(Stream& stream, const Tensor& out, const Tensor& table, const Tensor& tokens);
WITAN_KERNEL_TWINS(look_up_experts)

// Sinkhorn's algorithm for S-BASE (Clark et al., "Unified Scaling Laws for Routed Language Models",
// arXiv:2202.01169; Megatron-Core's sinkhorn()): factors u[t] of tokens and v[e] of experts for which each row of
// u c v, c = exp(logits), sums to 1 / T and each column to 1 / E. From v = 1 on,
//   u[t] = 1 / (T (sum_e v[e] c[t,e] + 1e-8)),   v[e] = 1 / (E (sum_t u[t] c[t,e] + 1e-8))
// until v changes by at most `tolerance` on average, and `iterations` times at most; it is the device that decides.
// Rows of c are divided by their largest element, which changes u alone, so that nothing overflows.
// bias[e] = ln v[e]: a token's largest u c v are its largest logits + bias. logits [T, E], bias [E] of their dtype.
// sequence_ids [T] int32 or undefined: rows where it is negative are padding, which is not among the T tokens above.
void sinkhorn_bias(Stream& stream, const Tensor& bias, const Tensor& logits, int64_t iterations, double tolerance,
                   const Tensor& sequence_ids = {});
WITAN_KERNEL_TWINS(sinkhorn_bias)

inline constexpr double kSinkhornEpsilon = 1e-8;

// Quantile balancing: experts are chosen by their logits plus a bias each, which is set from quantiles of the logits so
// that each expert gets its even share of the tokens (Su, https://kexue.fm/archives/11619; Megatron-Core's
// qb_dual_update, whose beta is minus the bias). Everything is in the accumulator dtype A unless said otherwise.
//
// ids[t] = the K experts of largest logits[t,e] + bias[e], best first, of equals the lower;
// margins[e,t] = logits[t,e] - the (K+1)th largest of logits[t] + bias, where margins are defined.
// ids [T, K] int32, margins [E, T], logits [T, E] with K < E, bias [E] float32. sequence_ids [T] int32 or undefined:
// where it is negative a row is padding, whose ids are -1 and whose margins are -inf.
void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids = {});
WITAN_KERNEL_TWINS(choose_by_quantiles)

// A micro-batch's vote on the bias: sums[e] = 2^32 q[e], rounded, and sums[E] = 1, with q[e] the (n+1)th largest of
// the R T margins of expert e, n = floor(R T K / E): with bias -q[e], and the others' as they are, n tokens choose it.
// Integers, so that micro-batches' sums are exact in any order. |q| is limited to 2^16; a NaN votes 0.
// margins [R, E, T]: of R parts of the tokens;  sums [E + 1] int64. Where some rows are padding, tokens [1] int64 is
// the number of the others, which stands for R T; undefined: all rows are tokens. Of no tokens all sums are 0.
void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& tokens = {});
WITAN_KERNEL_TWINS(quantile_sums)

// bias[e] = mean_e'(q[e']) - q[e], with q[e] = sums[e] / (2^32 sums[E]) the mean over the step's micro-batches. A step
// that is skipped (kernels/common/step_report.h), or of no micro-batches, leaves it as it is. bias [E] float32.
void update_quantile_bias(Stream& stream, const Tensor& bias, const Tensor& sums, const Tensor& step);
WITAN_KERNEL_TWINS(update_quantile_bias)

inline constexpr double kQuantileUnit = 0x1p32, kMostQuantile = 0x1p16;

// Times at which experts arrive at a token whose K earliest are its choice: expert e's is exponential with rate
// (e + 1)^-s, so that expert loads follow a Zipf law of exponent s, and each token's K experts differ (sampling in the
// order of exponential clocks: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
//
// Whole numbers alone, so that a CPU and a GPU choose the same experts.

inline constexpr int kArrivalBits = 24;  // of the fraction of logarithms

// log2 x in units of 2^-24, 0.009 off at most: f + 0.3466 f (1 - f) stands for log2(1 + f). x > 0.
constexpr int64_t log2_whole(uint32_t x) {
  constexpr uint64_t kOne = uint64_t{1} << kArrivalBits, kBend = 5815082;  // 0.346607 of kOne
  const int exponent = 31 - std::countl_zero(x);
  const uint64_t f = (static_cast<uint64_t>(x) << kArrivalBits >> exponent) - kOne;
  const uint64_t bend = (f * (kOne - f) >> kArrivalBits) * kBend >> kArrivalBits;
  return static_cast<int64_t>(exponent) * static_cast<int64_t>(kOne) + static_cast<int64_t>(f + bend);
}

// The key of expert e: minus the logarithm of its time, which is larger the earlier it arrives. `word`: 24 random bits,
// of which the time is made; `exponent`: s in units of 2^-16, up to 16. Below 2^24 in size: float holds it exactly.
constexpr int64_t arrival_key(uint32_t word, int64_t e, int64_t exponent) {
  // -log2 u of u = (word + 1/2) 2^-24, at least one unit of the last place.
  const int64_t waited = (int64_t{kArrivalBits + 1} << kArrivalBits) - log2_whole(2 * word + 1);
  const int64_t time = log2_whole(static_cast<uint32_t>(waited > 0 ? waited : 1));
  const int64_t rarity = exponent * log2_whole(static_cast<uint32_t>(e + 1)) >> 16;
  return -(time + rarity) / 256;
}

}  // namespace witan::kernels
