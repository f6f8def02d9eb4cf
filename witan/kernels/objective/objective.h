// Kernels of losses that are functions of the log probabilities of targets: policy gradients, the divergence from a
// reference model, and preferences between two texts. They compute terms for each token; a loss is a weighted sum of
// terms, and its gradient by the log probability of a token is weight x slope.
//
// T tokens in B rows of T / B   A: accumulator dtype of the logits
// mask [T] float32: a token counts where it is above 0, and only there are other values read; terms and slopes of other
// tokens are exactly 0.
// log_ratios [T] A: the log probability of a token minus that under another model, or alone if there is none.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The sequences of a batch's rows. A row has room for `capacity` sequences; values of sequences are [B * capacity]
// float64, by row and id. Ids do not decrease within a row; negative ones are padding, whose mask is 0.
struct RowSequences {
  Tensor ids;  // [T] int32
  int64_t rows = 1, capacity = 1;

  int64_t count() const { return rows * capacity; }
};

// log_ratios[t] = -losses[t] - others[t], or 0 for a token that does not count.
// losses [T] A: -log p of the targets   others [T] float32 or A: log probabilities under the other model; undefined: 0
void log_ratios(Stream& stream, const Tensor& out, const Tensor& losses, const Tensor& others, const Tensor& mask);
WITAN_KERNEL_TWINS(log_ratios)

// sums[n] = the sum of the values [T] A of sequence n's tokens that count, in their order; values undefined: their
// number. 0 for a sequence without such tokens.
void sequence_sums(Stream& stream, const Tensor& sums, const Tensor& values, const Tensor& mask,
                   const RowSequences& sequences);
WITAN_KERNEL_TWINS(sequence_sums)

// weights[t] = mask[t] scale / (max(number[0], 1) counts[n]) for a token of sequence n, formed in float64.
// weights [T] A   number [1] float64: the sequences of the global batch   counts: tokens of each sequence that count;
// undefined: 1
void sequence_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& number,
                      const Tensor& counts, const RowSequences& sequences, double scale);
WITAN_KERNEL_TWINS(sequence_weights)

// The clipped surrogate of PPO (arXiv:1707.06347), with bounds of their own on both sides (DAPO, arXiv:2503.14476).
struct PolicyOptions {
  double clip_low = 0.2, clip_high = 0.2;  // ratios are clipped to [1 - clip_low, 1 + clip_high]
  double importance_cap = 0;               // bound of importance weights; 0: there are none
};
struct PolicyInputs {
  Tensor log_ratios;                      // against the policy of old_logprobs
  Tensor advantages;                      // [T] float32
  Tensor old_logprobs, rollout_logprobs;  // [T] float32; read only if importance_cap > 0
  Tensor mask;
  Tensor sums, counts;  // of log_ratios, for the ratio of a whole sequence; undefined: each token has its own
};
// With r = exp(log_ratio) or, if there are sums, r = exp(sums[n] / counts[n]) (GSPO, arXiv:2507.18071), and
// w = min(exp(old_logprob - rollout_logprob), importance_cap), or 1:
//   surrogate = -w min(r A, clip(r) A)
// slopes are the derivatives of `surrogate` by log r.
namespace policy_term {
inline constexpr int64_t surrogate = 0,
                         ratio = 1,  // r
    clipped_low = 2,                 // 1 where r is below the lower bound and A below 0
    clipped_high = 3,                // 1 where r is above the upper bound and A above 0
    difference = 4,                  // |log_ratio| of the token
    count = 5;
}  // namespace policy_term
// terms [policy_term::count, T] A   slopes [T] A
void policy_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PolicyInputs& inputs,
                  const RowSequences& sequences, const PolicyOptions& options);
WITAN_KERNEL_TWINS(policy_terms)

// The estimate k3 of the divergence from a reference (Schulman, "Approximating KL divergence", 2020), with d =
// log_ratio against it:  terms[t] = exp(-d) + d - 1   slopes[t] = 1 - exp(-d)
void kl_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const Tensor& log_ratios, const Tensor& mask);
WITAN_KERNEL_TWINS(kl_terms)

// Direct preference optimisation (arXiv:2305.18290): of the sequences of a row, 2 i is chosen and 2 i + 1 rejected.
struct PreferenceOptions {
  enum class Loss : uint8_t { sigmoid, robust, hinge, ipo };
  double beta = 0.1;
  double label_smoothing = 0;  // probability that a pair is the wrong way round; of sigmoid and robust
  Loss loss = Loss::sigmoid;
  bool averages = false;  // scores are means over tokens instead of sums
  double sft_weight = 0;  // of the mean loss of the chosen text's tokens (arXiv:2404.19733)
};
struct PreferenceInputs {
  Tensor losses;        // [T] A: -log p of the targets
  Tensor sums, counts;  // of log_ratios against the reference, and of tokens
  Tensor mask;
};
// With s[n] = sums[n], or sums[n] / counts[n] if `averages`, z = beta (s[chosen] - s[rejected]) and e =
// label_smoothing, the loss of a pair is, for the tokens of both,
//   sigmoid  -(1 - e) log sigmoid(z) - e log sigmoid(-z)
//   robust   (-(1 - e) log sigmoid(z) + e log sigmoid(-z)) / (1 - 2 e)   (arXiv:2403.00409)
//   hinge    max(0, 1 - z)                                               (arXiv:2305.10425)
//   ipo      (z / beta - 1 / (2 beta))^2                                 (arXiv:2310.12036)
// and for those of the chosen text sft_weight times the token's loss besides. Weighted by sequence_weights(), terms sum
// to means over pairs: what one text of a pair has alone has a factor of 2, and slopes one of 2 counts[n]. Rewards are
// of sums, whatever the loss is of. A pair of which one text has no token that counts has terms of 0.
namespace preference_term {
inline constexpr int64_t loss = 0,
                         accuracy = 1,  // 1 where the chosen text's reward is the higher one
    margin = 2,                         // by how much it is
    chosen = 3,                         // 2 beta sums[chosen], for tokens of the chosen text
    rejected = 4,                       // 2 beta sums[rejected], for tokens of the rejected one
    chosen_loss = 5,                    // 2 losses[t], for tokens of the chosen text
    count = 6;
}  // namespace preference_term
// terms [preference_term::count, T] A   slopes [T] A
void preference_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PreferenceInputs& inputs,
                      const RowSequences& sequences, const PreferenceOptions& options);
WITAN_KERNEL_TWINS(preference_terms)

// sums[k] = sum_t weights[t] terms[k,t], over t in float64: in order, on a GPU in a fixed tree.
// terms [K, T] A   weights [T] A   sums [K] A
void weighted_sums(Stream& stream, const Tensor& sums, const Tensor& terms, const Tensor& weights);
WITAN_KERNEL_TWINS(weighted_sums)

// out[t] = sums[n] / counts[n] for a token of sequence n that counts, and 0 for others.  out [T] A
void sequence_means(Stream& stream, const Tensor& out, const Tensor& sums, const Tensor& counts, const Tensor& mask,
                    const RowSequences& sequences);
WITAN_KERNEL_TWINS(sequence_means)

// out[t] = scale seed[0] a[t] b[t];  seed [1] A, or undefined: 1; b may be undefined: 1.
void scaled_products(Stream& stream, const Tensor& out, double scale, const Tensor& seed, const Tensor& a,
                     const Tensor& b);
WITAN_KERNEL_TWINS(scaled_products)

}  // namespace witan::kernels
