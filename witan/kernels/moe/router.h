// The top-k router: scores, choice, weights, the two auxiliary losses and the entropy, for T tokens and E experts.
//
// Rows may be padding, which has no experts (its ids are -1), whose weights, probabilities, lse and gradient are 0, and
// which is not counted. n below is the number of rows that are tokens, T if no row is padding.
//
// Everything is in the accumulator dtype A (float32, or float64 for float64) except ids (int32) and counts (int64).
// Sums over tokens are made in blocks of fixed size, in order.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/moe/scores.h"

namespace witan::kernels {

inline constexpr double kNoScores = 1e-20;  // added to sums that divide, of sigmoids and of sqrtsoftplus

struct RouterOutputs {
  Tensor ids;      // [T, K] int32, best first; of equal scores the lower expert wins
  Tensor weights;  // [T, K]
  Tensor probs;    // [T, E] p of Scores, for the losses and the backward
  Tensor lse;      // [T]    logsumexp of the logits
  Tensor counts;   // [E]    int64: assignments per expert
  Tensor balance;  // [1]    E sum_e (sum_t probs[t,e]) counts[e] / (T^2 K): 1 when balanced (Fedus et al., 2021);
                   //        of B sequences by themselves (DeepSeek-V3, arXiv:2412.19437, equations 17 to 20) the mean
                   //        of theirs, B E sum_b sum_e (sum_{t in b} probs[t,e]) counts[b,e] / (T^2 K). With padding T
                   //        is n, or of B sequences T / B is how many tokens b has; the loss of no tokens is 0
  Tensor z;        // [1]    mean_t lse[t]^2 (Zoph et al., "ST-MoE", 2022)
  Tensor entropy;  // [1]    mean_t -sum_e probs[t,e] ln probs[t,e], nats: 0 when certain, ln E when undecided
  Tensor logits =
      {};  // [T, E] those that came in, not written: the backward needs no probs but them where scores_each_alone()
  Tensor sequence_ids = {};  // [T] int32, read: a row is padding where it is negative; undefined: no row is
  Tensor tokens = {};        // [1] int64, read: n of all parts, from count_tokens(); undefined: all rows are tokens
};

// p = scores of logits[t];  ids = the K largest;  weights as the scoring says. The balance is that of all T tokens
// together. With padding, balance, z and entropy are divided by T as if all rows were tokens; router_losses() computes
// those of the tokens only. For other choices see kernels/moe/selection.h.
void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring);
WITAN_KERNEL_TWINS(router_forward)

// tokens[0] = sum(counts) / K, the number of tokens that chose K experts each. counts [..], tokens [1], int64.
void count_tokens(Stream& stream, const Tensor& tokens, const Tensor& counts, int64_t topk);
WITAN_KERNEL_TWINS(count_tokens)

// bias[e] += rate sign(mean(load) - load[e]), except in skipped steps (kernels/common/step_report.h): experts with too
// many tokens are chosen less (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy", arXiv:2408.15664). load [E]
// int64.
void update_expert_bias(Stream& stream, const Tensor& bias, const Tensor& load, const Tensor& step, double rate);
WITAN_KERNEL_TWINS(update_expert_bias)

struct RouterGradients {
  Tensor weights;     // [T, K], or undefined
  Tensor balance;     // [1], or undefined
  Tensor z;           // [1], or undefined
  Tensor probs = {};  // [E], or undefined: by each token's probs, of more losses of balance (kernels/moe/router.h)
};

// If the tokens of a micro-batch are sharded, or each sequence is balanced by itself, losses and entropy are computed
// from sums over all parts. Each part holds T / B tokens of each of B sequences (B = 1: of all tokens), one sequence
// after the other:
//   sums = (sum_{t in 0} probs[t,0], …, sum_{t in 0} probs[t,E-1], sum_{t in 1} probs[t,0], …, sum_t lse[t]^2,
//           T entropy)
// sums [B E + kTokenSums] of A;  probs, lse and entropy those of the part.
inline constexpr int64_t kTokenSums = 2;  // the sums after those of probabilities
void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part);
WITAN_KERNEL_TWINS(router_sums)

// The sums and the assignments, topk for each, of `tokens` rows in all.
struct RouterTotals {
  Tensor sums;    // [B E + kTokenSums]
  Tensor counts;  // [E], or [B, E], int64
  int64_t tokens = 0, topk = 0;
};
// Writes balance, z and entropy of `out`; 0 if there are no tokens.
void router_losses(Stream& stream, const RouterOutputs& out, const RouterTotals& totals);
WITAN_KERNEL_TWINS(router_losses)

// counts are constants of the losses. With g[e] = dbalance E counts[e] / (T^2 K) + dprobs[e], plus dweights at the
// chosen experts for Scores::softmax:   dlogits = p (g - sum_e p g) + dz 2 lse p / T,   and for
// Scores::softmax_of_chosen dlogits[ids[k]] += w[k] (dw[k] - sum_j w[j] dw[j]). Where scores_each_alone(), with ds[e]
// the gradient by s[e] of both, dlogits = ds s' + dz 2 lse softmax(logits) / T. w and dw are those of the weights
// before they are scaled. Of a part of the tokens: `parts` such parts, of T tokens each, share the losses, so that T is
// T parts there, and out.counts are those of all. With out.counts [B, E] the balance is that of B sequences, of T / B
// tokens here each: g[e] = dbalance B E counts[b,e] / (T^2 K) for the tokens of sequence b. Where out.tokens is
// defined, it is T of all parts here, B E / (T^2 K) is E / (B n_b^2 K) with the n_b tokens of b, and rows whose ids are
// -1 are padding.
void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     const Scoring& scoring, int parts = 1);
WITAN_KERNEL_TWINS(router_backward)

// The tokens over which balance_loss is formed: a loss like router_losses', with the load of other tokens.
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

// dprobs[e] (=|+=) dloss[0] E counts[e] / (tokens N): the gradient of balance_loss by the probabilities of each token.
// The counts are constants. dprobs [E], dloss [1].
void balance_backward(Stream& stream, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write);
WITAN_KERNEL_TWINS(balance_backward)

// A router's logits: products of activations with a weight of a wider dtype. x [T, D], w [E, D] in the accumulator
// dtype of x, all tensors contiguous. Sums are formed in that dtype from the values of x without rounding.
//
// Special CUDA kernels take bfloat16 x if D and E are multiples of 8. Only D and E decide which of them, so that a row
// of y has the same bits whatever rows come with it. Otherwise, and on the CPU, x is cast into a workspace and gemm
// multiplies, each with its own cost.

// y [T, E] = x w^T, in w's dtype
void wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);
WITAN_CUDA_TWIN(wide_linear)

// dx [T, D] (=|+=) dy w, in x's dtype, rounded once. The CUDA kernel multiplies the first 16 bits of dy and of w:
// errors of 2^-16 of a term, beside the 2^-9 of the rounding.
void wide_linear_backward_input(Stream& stream, const Tensor& dx, Write write, const Tensor& dy, const Tensor& w);
WITAN_CUDA_TWIN(wide_linear_backward_input)

// dw [E, D] (=|+=) dy^T x, in any floating dtype
void wide_linear_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x);
WITAN_CUDA_TWIN(wide_linear_backward_weight)

}  // namespace witan::kernels
