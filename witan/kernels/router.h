// The top-k softmax router: scores, choice, weights, and the two auxiliary losses, for T tokens and E experts.
// Everything is in the accumulator dtype A (float32, or float64 for float64) except ids (int32) and counts (int64).
// Sums over tokens are made in blocks of fixed size, in order.
#pragma once

#include "witan/kernels/launch.h"

namespace witan::kernels {

struct RouterOutputs {
  Tensor ids;      // [T, K] int32, best first; of equal scores the lower expert wins
  Tensor weights;  // [T, K]
  Tensor probs;    // [T, E] softmax over all experts, for the losses and the backward
  Tensor lse;      // [T]    logsumexp of the logits
  Tensor counts;   // [E]    int64: assignments per expert
  Tensor balance;  // [1]    E sum_e (sum_t probs[t,e]) counts[e] / (T^2 K): 1 when balanced (Fedus et al., 2021);
                   //        of B sequences by themselves (DeepSeek-V3, arXiv:2412.19437, equations 17 to 20) the mean
                   //        of theirs, B E sum_b sum_e (sum_{t in b} probs[t,e]) counts[b,e] / (T^2 K)
  Tensor z;        // [1]    mean_t lse[t]^2 (Zoph et al., "ST-MoE", 2022)
};

// p = softmax(logits[t]);  ids = the K largest;  weights = p[ids] when pre_softmax, else softmax over the K chosen
// logits. The balance is that of all T tokens together.
void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, bool pre_softmax);
WITAN_KERNEL_TWINS(router_forward)

struct RouterGradients {
  Tensor weights;  // [T, K], or undefined
  Tensor balance;  // [1], or undefined
  Tensor z;        // [1], or undefined
};

// Where the tokens of a micro-batch are divided, or its sequences balanced by themselves, losses are formed from sums,
// over all parts, of the B sequences (1: of all tokens) that each part holds T / B tokens of, one after the other:
//   sums = (sum_{t in 0} probs[t,0], …, sum_{t in 0} probs[t,E-1], sum_{t in 1} probs[t,0], …, sum_t lse[t]^2)
// sums [B E + 1] of A;  probs and lse those of the part.
void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part);
WITAN_KERNEL_TWINS(router_sums)

// balance and z of `tokens` tokens in all, whose sums are `sums` and whose assignments `counts`, of topk each.
struct RouterTotals {
  Tensor sums;    // [B E + 1]
  Tensor counts;  // [E], or [B, E], int64
  int64_t tokens = 0, topk = 0;
};
void router_losses(Stream& stream, const Tensor& balance, const Tensor& z, const RouterTotals& totals);
WITAN_KERNEL_TWINS(router_losses)

// counts are constants of the losses. With g[e] = dbalance E counts[e] / (T^2 K), plus dweights at the chosen experts
// when pre_softmax:   dlogits = p (g - sum_e p g) + dz 2 lse p / T,   and for the softmax over the chosen ones
// dlogits[ids[k]] += w[k] (dw[k] - sum_j w[j] dw[j]).
// Of a part of the tokens: `parts` such parts, of T tokens each, share the losses, so that T is T parts there, and
// out.counts are those of all. With out.counts [B, E] the balance is that of B sequences, of T / B tokens here each:
// g[e] = dbalance B E counts[b,e] / (T^2 K) for the tokens of sequence b.
void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     bool pre_softmax, int parts = 1);
WITAN_KERNEL_TWINS(router_backward)

}  // namespace witan::kernels
