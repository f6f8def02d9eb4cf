// Samples the next token from logits: temperature, then top-k (Fan et al., 2018), then top-p, "nucleus" sampling
// (Holtzman et al., 2019), then min-p (Nguyen et al., 2024, arXiv:2407.01082), as transformers does. The result is a
// pure function of (seed, position, logits): there is no state, so a resumed generation, another batch or another order
// of requests draws the same tokens.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace witan {

struct SamplerOptions {
  double temperature = 1;  // 0: greedy, the largest logit
  int64_t top_k = 0;       // only the k most likely tokens; 0: all
  double top_p = 1;        // of those, the smallest set with total probability at least p; 1: all
  double min_p = 0;        // of those, the tokens that are at least p times as likely as the likeliest; 0: all
  uint64_t seed = 0;
  // Of tokens that the text has, its prompt included (Keskar et al., "CTRL", 2019, arXiv:1909.05858): their logits are
  // divided by it where they are positive, else multiplied, before the temperature; 1: none.
  double repetition_penalty = 1;
  // Of tokens that were generated in the text, as OpenAI's API defines them: their logits are lowered by
  // presence_penalty, and by frequency_penalty for each time that they were.
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, double> logit_bias = {};  // is added to the logits of these tokens
};

// The tokens of a text so far, as penalties count them.
struct SeenTokens {
  std::set<int32_t> all;                 // of the prompt and of what follows it
  std::map<int32_t, int64_t> generated;  // of what follows it, and how often each has been
};

class Sampler {
 public:
  // Throws ConfigError naming the option when temperature is negative or not finite, top_k negative, top_p outside (0,
  // 1], min_p outside [0, 1], repetition_penalty not a positive number, or another penalty or a bias not finite.
  explicit Sampler(const SamplerOptions& options);

  // The id of the token at `position` of its sequence, drawn from the logits [V]. Equal logits rank by token id, the
  // lower first. Minus infinity rules a token out. Throws DivergedError if a logit is NaN or +infinity, or if no token
  // is left.
  int32_t next(std::span<const float> logits, int64_t position) const;
  // Whether logits are changed before a token is drawn.
  bool changes_logits() const;
  // The logits as tokens are drawn from them: with the repetition penalty, as transformers computes it, then with the
  // penalties of what was generated and the biases.
  std::vector<float> changed(std::span<const float> logits, const SeenTokens& seen) const;

 private:
  SamplerOptions options_;
};

}  // namespace witan
