// Samples the next token from logits: temperature, then top-k (Fan et al., 2018), then top-p, "nucleus" sampling
// (Holtzman et al., 2019), then min-p (Nguyen et al., 2024, arXiv:2407.01082), as in Hugging Face transformers. The
// result is a pure function of (seed, position, logits): there is no state, so a resumed generation, another batch or
// another order of requests draws the same tokens, on a CPU or a GPU (kernels/vocabulary/sampling.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "witan/kernels/vocabulary/sampling.h"

namespace witan {

struct SamplerOptions {
  double temperature = 1;  // 0: greedy, the largest logit
  int64_t top_k = 0;       // only the k most likely tokens; 0: all
  double top_p = 1;        // of those, the smallest set with total probability at least p; 1: all
  double min_p = 0;        // of those, the tokens that are at least p times as likely as the likeliest; 0: all
  uint64_t seed = 0;
  // For tokens in the text, its prompt included (Keskar et al., "CTRL", 2019, arXiv:1909.05858): positive logits are
  // divided by it, others multiplied, before the temperature; 1: no penalty.
  double repetition_penalty = 1;
  // For tokens that were generated in the text, as OpenAI's API defines them: logits are lowered by presence_penalty,
  // and by frequency_penalty for each occurrence.
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, double> logit_bias = {};  // added to the logits of these tokens
};

// The tokens of a text so far, as penalties count them.
struct SeenTokens {
  std::set<int32_t> all;                 // tokens of the prompt and of the generated text
  std::map<int32_t, int64_t> generated;  // generated tokens with their number of occurrences
};

class Sampler {
 public:
  // Throws ConfigError, naming the option, if temperature is negative or not finite, top_k is negative, top_p is
  // outside (0, 1], min_p is outside [0, 1], repetition_penalty is not a positive number, or another penalty or a bias
  // is not finite.
  explicit Sampler(const SamplerOptions& options);

  // Draws the token at `position` of its sequence from the logits [V]. Equal logits rank by token id, lower first.
  // Minus infinity rules a token out. Throws DivergedError if a logit is NaN or +infinity, or if no token is left.
  int32_t next(std::span<const float> logits, int64_t position) const;
  // How the kernel draws that token from the first `words` logits of a row.
  kernels::SamplingRow row(int64_t words, int64_t position) const;
  // Whether logits are changed before a token is drawn.
  bool changes_logits() const;
  // The logits from which tokens are drawn: with the repetition penalty, as transformers computes it, then the
  // penalties of generated tokens, then the biases.
  std::vector<float> changed(std::span<const float> logits, const SeenTokens& seen) const;

 private:
  SamplerOptions options_;
};

}  // namespace witan
