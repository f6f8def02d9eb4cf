#include "witan/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

// Throws DivergedError if no token can be chosen.
void check(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (size_t id = 0; id < logits.size(); ++id)
    require<DivergedError>(logits[id] < kInfinity, "sampling: the logit of token ", id, " is ", logits[id],
                           ": the model's weights or activations are no longer finite; use an earlier checkpoint");
  require<DivergedError>(std::ranges::any_of(logits, [](float logit) { return logit > -kInfinity; }),
                         "sampling: none of the ", logits.size(),
                         " tokens has a finite logit, so there is none to choose");
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  require<ConfigError>(options.temperature >= 0 && std::isfinite(options.temperature),
                       "temperature must be 0 (greedy) or a positive number, got ", options.temperature);
  require<ConfigError>(options.top_k >= 0, "top_k must be 0 (all tokens) or a positive number of tokens, got ",
                       options.top_k);
  require<ConfigError>(options.top_p > 0 && options.top_p <= 1,
                       "top_p must be above 0 and at most 1 (all tokens), got ", options.top_p);
  require<ConfigError>(options.min_p >= 0 && options.min_p <= 1,
                       "min_p must be from 0 (all tokens) to 1 (only the likeliest), got ", options.min_p);
  require<ConfigError>(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty),
                       "repetition_penalty must be a positive number (1: none), got ", options.repetition_penalty);
  require<ConfigError>(std::isfinite(options.presence_penalty), "presence_penalty must be a number (0: none), got ",
                       options.presence_penalty);
  require<ConfigError>(std::isfinite(options.frequency_penalty), "frequency_penalty must be a number (0: none), got ",
                       options.frequency_penalty);
  for (const auto& [token, bias] : options.logit_bias)
    require<ConfigError>(std::isfinite(bias), "logit_bias of token ", token, " must be a number, got ", bias);
}

bool Sampler::changes_logits() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0 ||
         !options_.logit_bias.empty();
}

std::vector<float> Sampler::changed(std::span<const float> logits, const SeenTokens& seen) const {
  std::vector<float> out(logits.begin(), logits.end());
  const auto change = [&](int32_t token, const auto& how) {
    if (token < 0 || static_cast<size_t>(token) >= out.size()) return;
    float& logit = out[static_cast<size_t>(token)];
    logit = how(logit);
  };
  if (const auto penalty = static_cast<float>(options_.repetition_penalty); penalty != 1)
    for (const int32_t token : seen.all)
      change(token, [&](float logit) { return logit < 0 ? logit * penalty : logit / penalty; });
  for (const auto& [token, count] : seen.generated)
    change(token, [&](float logit) {
      const double lowered = options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count);
      return static_cast<float>(static_cast<double>(logit) - lowered);
    });
  for (const auto& [token, bias] : options_.logit_bias)
    change(token, [&](float logit) { return static_cast<float>(static_cast<double>(logit) + bias); });
  return out;
}

kernels::SamplingRow Sampler::row(int64_t words, int64_t position) const {
  const Philox rng(options_.seed, Philox::stream_of("sampler"));
  return kernels::sampling_row({options_.temperature, options_.top_k, options_.top_p, options_.min_p}, words,
                               rng.bits(static_cast<uint64_t>(position)));
}

int32_t Sampler::next(std::span<const float> logits, int64_t position) const {
  const int32_t token = kernels::cpu::sample_token(logits, row(static_cast<int64_t>(logits.size()), position));
  if (token < 0) check(logits);
  return token;
}

}  // namespace witan
